"""Members for classes: a softmax layer on anchored features, with a matrix Gaussian posterior at its optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.members import Members
from vmg.math.evidence import group_precision, log_precision_prior
from vmg.math.softmax_evidence import SoftmaxPosterior, improve, mean_probabilities, softmax_bound, step_mean
from vmg.nn.anchored import AnchoredFeatures

__all__ = ["ClassificationMembers", "MemberLogits"]

Array = NDArray[np.float64]

TRAINING_STEPS = 2  # of the output layer's mean where its covariance is set anew
REFRESH_EVERY = 10  # steps of the hidden layers; in between the mean alone follows them
SETTLING_STEPS = 60  # where the hidden layers stand still
CHECKING_STEPS = 8  # from the posterior of the last training step


class MemberLogits(NamedTuple):
    """Mean of each member's logits [E, n, K] and their variance [E, n]."""

    loc: Array
    variance: Array


class ClassificationMembers(Members):
    """E networks of anchored features with K classes."""

    def __init__(
        self, in_features: int, hidden: Sequence[int], n_classes: int, activations: Sequence[str], n_members: int
    ) -> None:
        super().__init__()
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, n_members=n_members)
        self.n_classes = n_classes
        self.log_precision = nn.Parameter(torch.zeros(n_members, len(self.features.group_sizes)))
        self._posterior: SoftmaxPosterior | None = None  # of the last training step, to start the next one from
        self._n_steps = 0

    def prior_precision(self) -> Tensor:
        """a [E, D]: every group of features has one precision."""
        return group_precision(self.log_precision, self.features.group_sizes)

    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The bound of the output layer plus the anchored log prior, for labels y [N]."""
        phi, labels = self.features(x), self._one_hot(y, x.dtype)
        with torch.no_grad():
            precision = self.prior_precision()
            fresh = self._posterior is None or self._n_steps % REFRESH_EVERY == 0
            if self._posterior is None or fresh:
                self._posterior = improve(self._posterior, phi, labels, precision, weight, TRAINING_STEPS)
            spread = phi @ self._posterior.covariance
            if not fresh:
                self._posterior = step_mean(self._posterior, phi, spread, labels, precision, weight)
            self._n_steps += 1
        bound = softmax_bound(phi, labels, self.prior_precision(), self._posterior, weight, spread)
        return bound + self.features.log_prior() + log_precision_prior(self.log_precision), bound

    def _one_hot(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        return nn.functional.one_hot(y, self.n_classes).to(dtype)

    @torch.no_grad()
    def posterior(self, x: Tensor, y: Tensor, weight: Tensor, n_steps: int = SETTLING_STEPS) -> SoftmaxPosterior:
        """The output layer's posterior given rows with weights [E, n]."""
        phi = self.features(x)
        labels, precision, weight = self._one_hot(y, phi.dtype), self.prior_precision(), weight.to(phi.dtype)
        start = improve(None, phi, labels, precision, weight, n_steps)
        return improve(start, phi, labels, precision, weight, n_steps)  # p now knows of the variance

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberLogits:
        """Logits of members that are conditioned on the rows they have seen, at all rows."""
        phi = self.features(x)
        labels, precision = self._one_hot(y, phi.dtype), self.prior_precision()
        posterior = improve(self._posterior, phi, labels, precision, seen, CHECKING_STEPS)
        loc = phi @ posterior.mean
        return MemberLogits(loc.double().numpy(), posterior.variance(phi).double().numpy())

    def score(self, predictions: MemberLogits, y: Tensor, weight: Tensor) -> float:
        """Mean log probability of held-out labels."""
        p = mean_probabilities(torch.as_tensor(predictions.loc), torch.as_tensor(predictions.variance))
        chosen = p.gather(-1, y.expand(len(p), -1).unsqueeze(-1)).squeeze(-1).clamp_min(1e-12).log()
        total = float((weight * chosen).sum() / weight.sum())
        return total if math.isfinite(total) else -math.inf
