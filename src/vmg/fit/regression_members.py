"""Members for numeric targets: a Bayesian head on anchored features, its weights and noise integrated out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.calibration import t_log_density
from vmg.fit.members import Members
from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    condition_on_rows,
    group_precision,
    log_evidence,
    log_precision_prior,
)
from vmg.nn.anchored import AnchoredFeatures
from vmg.nn.outputs import GaussianOutput

__all__ = ["MemberPredictions", "RegressionMembers"]

Array = NDArray[np.float64]

SCORE_DEGREES = 4.0  # of the Student t that scores held-out errors: one wild row decides nothing
ROWS_AT_ONCE = 1024  # whose features of all members are small pieces of memory, which the allocator uses again


class MemberPredictions(NamedTuple):
    """Centre and variance of each member's function [E, n, C], and what it takes the noise for [E, C]."""

    loc: Array
    variance: Array
    noise: Array


class RegressionMembers(Members):
    """E networks of anchored features with C outputs."""

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        n_outputs: int,
        activations: Sequence[str],
        n_members: int,
        noise_prior: NoisePrior | None = None,
    ) -> None:
        super().__init__()
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, n_members=n_members)
        self.head = GaussianOutput(
            self.features.group_sizes, n_outputs, noise_prior=noise_prior, batch_shape=(n_members,)
        )

    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log evidence of the rows plus the anchored log prior."""
        log_precision = self.head.log_precision
        precision = group_precision(log_precision, self.features.group_sizes)
        evidence = log_evidence(self.features(x), y, precision, weight=weight, prior=self.head.noise_prior)
        return evidence + self.features.log_prior() + log_precision_prior(log_precision), evidence

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Functions of members that are conditioned on the rows they have seen, at all rows."""
        phi = self.features(x)
        targets = y.expand(len(phi), *y.shape)
        posterior, _ = condition_on_rows(phi, targets, seen, self.head.prior_precision(), self.head.noise_prior)
        noise = posterior.noise_variance
        variance = posterior.relative_variance(phi).unsqueeze(-1) * noise.unsqueeze(-2)
        return MemberPredictions(*(part.double().numpy() for part in (phi @ posterior.mean, variance, noise)))

    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> float:
        """Mean log density of held-out errors under a Student t whose scale is the best, summed over outputs."""
        w = weight.double().numpy()
        kept, share = w > 0, w[w > 0] / w.sum()
        error = y.double().numpy() - predictions.loc
        total = 0.0
        for c in range(error.shape[-1]):
            squared = error[..., c][kept] ** 2
            scale = float(np.median(squared)) + 1e-12
            for _ in range(15):
                scale = float(share @ ((SCORE_DEGREES + 1) / (SCORE_DEGREES + squared / scale) * squared)) + 1e-12
            total += float(share @ t_log_density(np.sqrt(squared), np.asarray(scale), SCORE_DEGREES))
        return total if math.isfinite(total) else -math.inf

    def condition_on(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Condition every member on all rows, whatever it saw in training."""
        self.head.forget()
        self.update(x, y, weight)

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Condition every member on more rows."""
        for start in range(0, len(x), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            given = None if weight is None else weight[part].expand(self.features.n_members, -1)
            self.head.update(self.features(x[part]), y[part], given)

    def posterior(self) -> LinearPosterior:
        """What members know of their output weights."""
        return self.head.posterior()
