"""Probabilistic backpropagation (Hernández-Lobato & Adams 2015) [HA15]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vmg.prediction import Prediction
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.baselines.filtering import WeightPrior, filter_rows, forward, refine_prior, split_layers

__all__ = ["GaussianPrediction", "PBPRegressor"]


class Weights(NamedTuple):
    """Mean and variance of each layer's weights, [1, R, C], and of the noise."""

    mean: list[Array]
    variance: list[Array]
    noise_variance: float


@dataclass(frozen=True, repr=False)
class GaussianPrediction(Prediction):
    """One Gaussian for each row, of which ``function_share`` of the variance is ignorance [N]."""

    function_share: Array = field(default_factory=lambda: np.zeros(1))

    @property
    def _aleatoric(self) -> Array:
        return self.scale[0] * np.sqrt(1 - self.function_share)[:, None]

    @property
    def _epistemic(self) -> Array:
        return self.scale[0] * np.sqrt(self.function_share)[:, None]


@dataclass(eq=False)
class PBPRegressor(BatchedRegressor):
    """A ReLU network whose weights are independent Gaussians, found by assumed density filtering.

    Every pass takes in the rows one at a time, in a new order, and then refines the factors of the prior. As in the
    paper rows are taken in anew in every pass, so the posterior is that of as many copies of the table.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int
        Units of each hidden layer; none for a linear model.
    n_epochs : int
        Passes over the data, 40 in the paper.
    weight_prior, noise_prior : (float, float)
        Gamma(concentration, rate) of the precision of the weights, and of the noise in standardised units.
    noise_scale : float, optional
        Standard deviation of the noise in the target's own units, where it is known.
    n_starts : int
        Fits from different first means, of which that with the largest log evidence in the last pass is kept: on a
        handful of rows one start may end far from the data. 1 in the paper.
    random_state : int
        Of the first means and of the rows' order.
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    n_epochs: int = 40
    weight_prior: tuple[float, float] = (6.0, 6.0)
    noise_prior: tuple[float, float] = (6.0, 6.0)
    noise_scale: float | None = None
    n_starts: int = 1
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[Weights], int]:
        for name, count in (("n_epochs", self.n_epochs), ("n_starts", self.n_starts)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1; got {count}")
        for name, (concentration, rate) in (("weight_prior", self.weight_prior), ("noise_prior", self.noise_prior)):
            if not (concentration > 1 and rate > 0):
                raise ValueError(f"{name} must have concentration > 1 and rate > 0; got {concentration} and {rate}")
        sets = [rows for rows in sets for _ in range(self.n_starts)]
        n, n_rows = len(sets), np.array([len(rows.y) for rows in sets])
        x, y = (np.zeros((n, n_rows.max(), *tail)) for tail in ((sets[0].x.shape[1],), ()))
        for k, rows in enumerate(sets):
            x[k, : n_rows[k]], y[k, : n_rows[k]] = rows.x, rows.y
        sizes = [x.shape[2], *self.hidden_layer_sizes, 1]
        known = self.noise_scale is not None
        if self.noise_scale is not None:
            noise = np.array([[np.nan, (self.noise_scale / rows.unit) ** 2] for rows in sets])
        else:
            noise = np.tile(np.array(self.noise_prior, dtype=np.float64), (n, 1))

        # a generator for each replica, so that its numbers do not depend on the others
        generators = [np.random.default_rng([self.random_state, k % self.n_starts]) for k in range(n)]
        m = np.stack([_initial_means(sizes, generator) for generator in generators])
        prior = WeightPrior.start(n, m.shape[1], *self.weight_prior)
        v = 1 / prior.precision
        for _ in range(self.n_epochs):
            order = np.zeros((n, n_rows.max()), dtype=np.int64)
            for k, generator in enumerate(generators):
                order[k, : n_rows[k]] = generator.permutation(n_rows[k])
            log_evidence = filter_rows(sizes, n_rows, x, y, order, m, v, noise, known=known)
            refine_prior(prior, m, v)
        variance = noise[:, 1] if known else noise[:, 1] / (noise[:, 0] - 1)
        log_evidence = np.where(np.isnan(log_evidence), -np.inf, log_evidence)
        best = log_evidence.reshape(-1, self.n_starts).argmax(1) + np.arange(0, n, self.n_starts)
        kept = [
            Weights(split_layers(m[k : k + 1], sizes), split_layers(v[k : k + 1], sizes), float(variance[k]))
            for k in best
        ]
        return kept, self.n_epochs * int(n_rows.max())

    def _predict_standard(self, x: Array) -> GaussianPrediction:
        """N(y; m, v + b/(a − 1)), the Gaussian that the paper scores."""
        weights: Weights = self.posterior_
        mean, variance = forward(weights.mean, weights.variance, x[None])  # [1, N, 1]
        total = variance + weights.noise_variance
        share = (variance / total)[0, :, 0]
        return GaussianPrediction(mean, np.sqrt(total), np.full((1, 1, 1), np.inf), function_share=share)


def _initial_means(sizes: Sequence[int], generator: np.random.Generator) -> Array:
    """N(0, 1/R) for every weight, which breaks the symmetry between hidden units [the authors' code]."""
    layers = [generator.normal(0, (n_in + 1) ** -0.5, size=(n_in + 1) * n_out) for n_in, n_out in pairwise(sizes)]
    return np.concatenate(layers)
