"""Ensembles for classes: a softmax layer on anchored features, with a matrix Gaussian posterior at its optimum.

Members are trained on all rows but their own held-out ones, which then calibrate their logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.boosted_trees import BoostedTrees, class_log_probabilities, grow_class_trees
from vmg.fit.calibration import Factors, MemberPredictions, calibrate_classes
from vmg.fit.design import FitSettings, InputRange, squash, threads_for
from vmg.fit.ensemble import Ensemble, Fitted
from vmg.fit.glm import OptimisedMembers, mean_score, posterior_of_all_rows
from vmg.fit.stacking import FEWEST_ROWS, MOST_ROWS
from vmg.fit.trainer import train_ensemble
from vmg.math.distributions import Array
from vmg.math.softmax_evidence import RowSpread, SoftmaxPosterior, improve, mean_probabilities, softmax_step
from vmg.model_file import require_shapes

__all__ = ["ClassificationEnsemble", "ClassificationMembers", "fit_classification", "improve_on"]

TRAINING_STEPS = 2  # of the output layer's mean where its covariance is set anew
REFRESH_EVERY = 10  # steps of the hidden layers; in between the mean alone follows them
FINAL_STEPS = 60  # where the hidden layers stand still
CHECKING_STEPS = 8  # from the posterior of the last training step


class ClassificationMembers(OptimisedMembers):
    """E networks of anchored features with K classes."""

    def __init__(self, *sizes: Any, n_classes: int, **more: Any) -> None:
        super().__init__(*sizes, **more)
        self.n_classes = n_classes
        self._spread: RowSpread | None = None  # of the rows of the last training step
        self._y: Tensor | None = None

    @property
    def made_with(self) -> dict[str, Any]:
        return {**super().made_with, "n_classes": self.n_classes}

    def evidence(self, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The bound of the output layer after a step of its posterior, [E], for labels y [N]."""
        labels, precision = self._one_hot(y, features.dtype), self.prior_precision()
        fresh = self._posterior is None or self._n_steps % REFRESH_EVERY == 0
        with torch.no_grad():
            if fresh:
                self._posterior = improve(self._posterior, features, labels, precision, weight, TRAINING_STEPS)
            if fresh or self._spread is None or y is not self._y:  # other rows
                self._spread, self._y = RowSpread.of(self._posterior, features, sum(self.features.hidden[-1:])), y
        self._n_steps += 1
        self._posterior, bound = softmax_step(self._posterior, features, labels, precision, weight, self._spread)
        return bound

    def _one_hot(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.one_hot(y, self.n_classes).to(dtype)

    @torch.no_grad()
    def posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> SoftmaxPosterior:
        """The output layer's posterior given rows with weights [E, n]."""
        self._spread = self._y = None  # of training rows, which the model need not keep
        phi = self.features(x)
        labels, precision, weight = self._one_hot(y, phi.dtype), self.prior_precision(), weight.to(phi.dtype)
        start = improve(None, phi, labels, precision, weight, FINAL_STEPS)
        return improve(start, phi, labels, precision, weight, FINAL_STEPS)  # p now knows of the variance

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Logits of members that are conditioned on the rows they have seen, at all rows."""
        phi = self.features(x)
        labels, precision = self._one_hot(y, phi.dtype), self.prior_precision()
        posterior = improve(self._posterior, phi, labels, precision, seen, CHECKING_STEPS)
        return MemberPredictions.of(phi @ posterior.mean, posterior.variance(phi), phi.new_zeros(len(phi), 0))

    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> float:
        """Mean log probability of held-out labels."""
        p = mean_probabilities(torch.as_tensor(predictions.loc), torch.as_tensor(predictions.variance))
        chosen = p.gather(-1, y.expand(len(p), -1).unsqueeze(-1)).squeeze(-1).clamp_min(1e-12).log()
        return mean_score(chosen, weight)


@dataclass(frozen=True)
class ClassificationEnsemble(Ensemble[ClassificationMembers]):
    """Members conditioned on all rows, and the factors of their logits that held-out rows ask for."""

    mean: Tensor  # of the output weights, [E, D, K]
    root: Tensor  # Cholesky factor of their row precision, [E, D, D]
    calibration: Factors
    trees: BoostedTrees | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        n_classes = self.members.n_classes
        require_shapes(self.members.weight_shapes(n_classes), vars(self))
        if self.trees is not None:
            self.trees.check(self.members.features.in_features)
            require_shapes({"start": (n_classes if n_classes > 2 else 1,)}, vars(self.trees))

    def log_probabilities_by_trees(self, x: Array) -> Array | float:
        """τ log q / (1 + d²) at squashed rows [N, D] with a distance d from the range of inputs, [N, K].

        Far from all rows trees are as sure as among them, so what they say fades. Zero without trees.
        """
        if self.trees is None:
            return 0.0
        log_q = class_log_probabilities(self.trees, np.arange(self.members.n_classes), self.members.n_classes, x)
        return self.calibration.trust * log_q / self.input_range.extrapolation_factor(x)[:, None]

    @property
    def weights(self) -> dict[str, float]:
        """The factor of each expert's log probabilities by its name."""
        by_trees = {} if self.trees is None else {BoostedTrees.name: self.calibration.trust}
        return {"networks": self.calibration.sharpness, **by_trees}

    @torch.no_grad()
    def sample_probabilities(self, x: Array, n_draws: int, seed: int) -> Array:
        """Class probabilities of ``n_draws`` whole functions of each member, [E n_draws, N, K]."""
        soft = squash(x)
        with threads_for(self.members.features.work(len(x)) + n_draws * self.mean[0].numel() * len(self.mean) * len(x)):
            phi = self.members.features(torch.as_tensor(soft))
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(n_draws, *self.mean.shape, generator=generator, dtype=torch.float64)
            half = n_draws // 2
            noise[half : 2 * half] = -noise[:half]  # pairs of opposite draws: their mean has less noise
            spread = SoftmaxPosterior(self.mean, self.root).weight_noise(noise)
            factor = self.calibration.inflation * self.input_range.extrapolation_factor(soft)
            by_trees = torch.as_tensor(self.log_probabilities_by_trees(soft))
            centre = self.calibration.sharpness * (phi @ self.mean) + by_trees
            logits = centre + torch.as_tensor(factor).sqrt().unsqueeze(-1) * (phi @ spread)
            return torch.softmax(logits, -1).flatten(0, 1).numpy()

    def updated(self, x: Array, y: NDArray[np.int64], weight: Array | None) -> ClassificationEnsemble:
        """Condition the output layers on more rows, the posterior so far being their prior."""
        soft = squash(x)
        phi = self.members.features(torch.as_tensor(soft)).detach()
        w = torch.ones(len(x), dtype=torch.float64) if weight is None else torch.as_tensor(weight)
        labels = nn.functional.one_hot(torch.as_tensor(y), self.members.n_classes).double()
        before = SoftmaxPosterior(self.mean, self.root)
        after = improve_on(before, phi, labels, w.expand(len(phi), -1), 2 * FINAL_STEPS)
        inputs = self.input_range.including(soft)
        return replace(self, mean=after.mean.contiguous(), root=after.root.contiguous(), input_range=inputs)


def improve_on(
    prior: SoftmaxPosterior, features: Tensor, labels: Tensor, weight: Tensor, n_steps: int
) -> SoftmaxPosterior:
    """Update a posterior MN(M₀, A₀⁻¹, I) with rows, in coordinates where it is a standard prior.

    With W = M₀ + A₀^(-½)V the prior of V is MN(0, I, I) and features become ΦA₀^(-½), with offsets ΦM₀ of the logits.
    """
    whitened = torch.linalg.solve_triangular(prior.root, features.mT, upper=False).mT
    offset = features @ prior.mean
    ones = torch.ones(whitened.shape[:-2] + whitened.shape[-1:], dtype=features.dtype)
    posterior = improve(None, whitened, labels, ones, weight, n_steps, offset=offset)
    posterior = improve(posterior, whitened, labels, ones, weight, n_steps, offset=offset)
    mean = prior.mean + torch.linalg.solve_triangular(prior.root.mT, posterior.mean, upper=True)
    return SoftmaxPosterior(mean, prior.root @ posterior.root)


def fit_classification(
    x: Array, y: NDArray[np.int64], n_classes: int, weight: Array | None, settings: FitSettings, experts: Sequence[str]
) -> Fitted:
    """Fit to rows in standard units, x [N, D], with labels y [N] from 0 to K − 1.

    Of ``experts`` beside the networks, classes know boosted trees.
    """
    with threads_for(settings.size.step_work(*x.shape)):
        trained = train_ensemble(ClassificationMembers, x, y, weight, settings, n_classes=n_classes)
        (rows, held), factors, trees = (trained.rows, trained.held), Factors(), None
        if held is not None:
            by_trees: list[Array] = []
            if BoostedTrees.name in experts and FEWEST_ROWS <= len(x) <= MOST_ROWS:
                grown = grow_class_trees(rows, n_classes)
                if grown is not None:
                    trees, fading = grown[0], held.factor[..., None]
                    by_trees = [log_q[held.index] / own for log_q, own in zip(grown[1], fading, strict=True)]
            factors = calibrate_classes(held, settings.seed, by_trees)
        weights, kept = posterior_of_all_rows(trained), trees if factors.trust else None
        ensemble = ClassificationEnsemble(trained.members, InputRange.of(rows.x), *weights, factors, kept)
        return Fitted(ensemble, trained.history, None)
