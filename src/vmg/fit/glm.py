"""Ensembles for likelihoods without a closed form: an output layer of one function at its optimum.

Held-out rows calibrate the function and the likelihood's parameters. Classes, in :mod:`vmg.fit.classes`, have an output
layer of the same kind.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vmg.fit.calibration import NORMAL_DEGREES, Factors, MemberPredictions, calibrate_scalar
from vmg.fit.design import FitSettings, InputRange, squash, threads_for
from vmg.fit.ensemble import Fitted, Function, HeldOutSample
from vmg.fit.gaussian import FunctionEnsemble, OutputLayers
from vmg.fit.trainer import MemberRun, Members, train_ensemble
from vmg.likelihoods.families import Censored
from vmg.likelihoods.scalar import LikelihoodAt, ScalarLikelihood
from vmg.math.distributions import Array
from vmg.math.scalar_evidence import (
    GaussianPrior,
    ScalarPosterior,
    ScalarRows,
    mean_log_prob,
    newton_step,
    optimise,
    scalar_bound,
)
from vmg.model_file import require_shapes
from vmg.prediction import GLMPrediction, NumberPrediction, StudentPrediction
from vmg.prediction.base import Factor, all_together, scaled_factor

__all__ = ["OptimisedMembers", "ScalarEnsemble", "ScalarMembers", "fit_scalar", "mean_score", "posterior_of_all_rows"]

FIRST_STEPS = 8  # of the output layer before training begins
REFRESH_EVERY = 5  # steps of the hidden layers; in between the mean alone follows them
TRAINING_NODES = 5  # of the quadrature over f, whose variance is small at rows that were seen
CHECKING_STEPS = 2  # from the posterior of the last training step
FINAL_STEPS, TOLERANCE = 60, 1e-6  # where the hidden layers stand still
ROWS_OF_POSTERIOR = 20_000  # at most, that output layers are conditioned on at once


class OptimisedMembers(Members):
    """E networks of anchored features, whose output layers follow them by natural-gradient steps."""

    def __init__(self, *sizes: Any, **more: Any) -> None:
        super().__init__(*sizes, **more)
        self.log_precision = nn.Parameter(torch.zeros(self.features.n_members, len(self.features.group_sizes)))
        self._posterior: Any = None  # of the last training step, to start the next one from
        self._n_steps = 0

    def weight_shapes(self, *n_functions: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the output weights' mean and of the root of their precision."""
        n_members, n_features = self.features.n_members, self.features.n_features
        return {"mean": (n_members, n_features, *n_functions), "root": (n_members, n_features, n_features)}

    @abstractmethod
    def posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> Any:
        """The output layer's posterior given rows with weights [E, n]."""


def posterior_of_all_rows(trained: MemberRun[Any]) -> tuple[Tensor, Tensor]:
    """Mean and root of the members' output weights given all rows, or some for all where there are very many.

    Their numbers are in order, as files keep them: another order of memory may give another last bit.
    """
    rows, n_rows = trained.rows, len(trained.rows.x)
    some = torch.arange(n_rows)
    if n_rows > ROWS_OF_POSTERIOR:
        some = torch.randperm(n_rows, generator=rows.generator)[:ROWS_OF_POSTERIOR]
    counted = (torch.as_tensor(rows.weight)[some] * (n_rows / len(some))).expand(trained.members.features.n_members, -1)
    posterior = trained.members.posterior(torch.as_tensor(rows.x)[some], torch.as_tensor(rows.y)[some], counted)
    return posterior.mean.contiguous(), posterior.root.contiguous()


def mean_score(values: Tensor, weight: Tensor) -> float:
    """Weighted mean over members and rows, of values and weights [E, n]."""
    mean = float(torch.where(weight > 0, weight * values, 0.0).sum() / weight.sum())
    return mean if math.isfinite(mean) else -math.inf


class ScalarMembers(OptimisedMembers):
    """E networks of anchored features with one function each, and the likelihood's parameters θ."""

    def __init__(self, *sizes: Any, likelihood: ScalarLikelihood, **more: Any) -> None:
        super().__init__(*sizes, **more)
        self.likelihood = likelihood
        start = torch.tensor(likelihood.start, dtype=torch.float32)
        self.theta = nn.Parameter(start.expand(self.features.n_members, -1).clone())

    @property
    def made_with(self) -> dict[str, Any]:
        return {**super().made_with, "likelihood": self.likelihood}

    @property
    def likelihood_at(self) -> LikelihoodAt:
        """The likelihood with each member's own parameters."""
        return LikelihoodAt(self.likelihood, self.theta)

    def evidence(self, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The bound of the output layer after a step of its posterior, [E]."""
        precision, rows = self.prior_precision(), ScalarRows(features, y, weight, self.likelihood_at, TRAINING_NODES)
        with torch.no_grad():
            prior, before = GaussianPrior.from_precision(precision), self._posterior
            if before is None:
                before = optimise(None, ScalarRows(*rows[:4]), prior, FIRST_STEPS)
            fresh = self._n_steps % REFRESH_EVERY == 0
            self._posterior, spread = newton_step(before, rows, prior, refresh=fresh)
            self._n_steps += 1
            moved = ScalarPosterior(self._posterior.mean, before.root)
            moved.__dict__["covariance"] = before.covariance  # the same A
        return scalar_bound(rows, precision, moved, spread)

    @torch.no_grad()
    def posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> ScalarPosterior:
        """The output layer's posterior given rows with weights [E, n]."""
        phi, prior = self.features(x), GaussianPrior.from_precision(self.prior_precision())
        return optimise(None, ScalarRows(phi, y, weight.to(phi), self.likelihood_at), prior, FINAL_STEPS, TOLERANCE)

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Functions of members that are conditioned on the rows they have seen, at all rows."""
        phi, prior = self.features(x), GaussianPrior.from_precision(self.prior_precision())
        n_steps = FIRST_STEPS if self._posterior is None else CHECKING_STEPS
        rows = ScalarRows(phi, y, seen, self.likelihood_at, TRAINING_NODES)
        posterior = optimise(self._posterior, rows, prior, n_steps)
        return MemberPredictions.of(posterior.centre(phi), posterior.variance(phi), self.theta)

    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> float:
        """Mean log probability of held-out targets."""
        loc, variance, theta = (torch.as_tensor(part) for part in predictions)
        return mean_score(mean_log_prob(LikelihoodAt(self.likelihood, theta), y.double(), loc, variance), weight)


@dataclass(frozen=True)
class ScalarEnsemble(FunctionEnsemble[ScalarMembers]):
    """Members conditioned on all rows, with the likelihood and the inflation that their held-out rows ask for."""

    mean: Tensor  # of the output weights, [E, D]
    root: Tensor  # Cholesky factor of their precision, [E, D, D]
    theta: Array  # of the likelihood, [P]
    calibration: Factors

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = self.members.weight_shapes()
        require_shapes({**shapes, "theta": (len(self.members.likelihood.start),)}, vars(self))

    @property
    def _outputs(self) -> OutputLayers:
        factors, units = self.calibration, np.ones((len(self.mean), 1))
        return OutputLayers(self.mean.unsqueeze(-1), self.root, units, factors.sharpness, np.array([factors.inflation]))

    def distribution(self, x: Array, *, squeeze: bool) -> NumberPrediction:
        """Predictions for rows x [N, D] in standard units, in the target's own unit.

        Targets that were censored in training are predicted as they would be uncensored: a normal distribution.
        """
        loc, variance = self._calibrated(x)
        return self.around(Function(loc[:, 0], variance[:, 0]), partial(self.function_factor, x), squeeze=squeeze)

    def around(self, rows: Function, factor: Factor, *, squeeze: bool) -> NumberPrediction:
        """Distributions of targets around functions [N]."""
        theta, likelihood, std = self.theta, self.members.likelihood, np.sqrt(rows.variance)
        if not isinstance(likelihood, Censored):
            return GLMPrediction(rows.loc, std, likelihood, theta, factor, squeeze)
        loc, noise = likelihood.mean(rows.loc, theta), np.sqrt(likelihood.variance(rows.loc, theta))
        unit = likelihood.scale
        scales, factor = (noise[:, None], unit * std[:, None]), partial(scaled_factor, factor, unit)
        return StudentPrediction(loc[:, None], *scales, np.full(1, NORMAL_DEGREES), factor, squeeze=squeeze)

    @torch.no_grad()
    def updated(self, x: Array, y: Array, weight: Array | None) -> ScalarEnsemble:
        """Condition the output layers on more rows, the posterior so far being their prior."""
        soft = squash(x)
        phi = self.members.features(torch.as_tensor(soft))
        given = torch.ones(len(x), dtype=torch.float64) if weight is None else torch.as_tensor(weight)
        before = ScalarPosterior(self.mean, self.root)
        rows = ScalarRows(phi, torch.as_tensor(y), given.expand(len(phi), -1), self.members.likelihood_at)
        after = optimise(before, rows, before.natural(), FINAL_STEPS, TOLERANCE)
        inputs = self.input_range.including(soft)
        return replace(self, mean=after.mean, root=after.root.contiguous(), input_range=inputs)


def fit_scalar(x: Array, y: Array, likelihood: ScalarLikelihood, weight: Array | None, settings: FitSettings) -> Fitted:
    """Fit to rows in standard units, x [N, D], and targets y [N] or [N, 2] as the likelihood takes them."""
    with threads_for(settings.size.step_work(*x.shape)):
        trained = train_ensemble(ScalarMembers, x, y, weight, settings, likelihood=likelihood)
        members, held = trained.members, trained.held
        theta, calibration, sample = members.theta.detach().mean(0).numpy(), Factors(), None
        if held is not None:
            folds, regions = (held.pooled(regions=kind) for kind in (False, True))
            theta, calibration = calibrate_scalar(likelihood, folds, regions, held.said.parameters.mean(0))
            variance = calibration.inflation * folds.variance + folds.excess
            sample = Function(calibration.sharpness * folds.loc, variance)
        weights, inputs = posterior_of_all_rows(trained), InputRange.of(trained.rows.x)
        ensemble = ScalarEnsemble(members, inputs, *weights, theta, calibration)
        if sample is None:
            return Fitted(ensemble, trained.history, None)
        said = ensemble.around(sample, all_together(np.sqrt(sample.variance)[:, None]), squeeze=True)
        return Fitted(ensemble, trained.history, HeldOutSample(folds.position, said))
