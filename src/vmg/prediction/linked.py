"""Predictions of targets whose likelihood has no closed form: p(y | f) averaged over a Gaussian function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special

from vmg.likelihoods.scalar import Binomial, ScalarLikelihood
from vmg.prediction.quantile_search import find_quantiles
from vmg.prediction.row_covariance import bent_row_covariance

__all__ = ["LinkedPrediction"]

Array = NDArray[np.float64]

NODES = 32  # of f
LEAST_WEIGHT = 1e-9  # of a node: those of less are left out
TAIL = 1e-4  # of probability on each side that the CRPS leaves out: its square counts
SCORE_NODES = 40
MOST_VALUES = 512  # of a discrete target between its tails; more are scored as if continuous


@dataclass(frozen=True)
class LinkedPrediction:
    """The target of each of N rows: the likelihood with parameters θ, averaged over f ~ N(loc, function_scale²).

    All numbers are in the target's own units. Where ``squeeze`` is set results are [N], otherwise [N, 1].

    Parameters
    ----------
    loc, function_scale : array [N]
        Of the function f, on the likelihood's own scale.
    likelihood : ScalarLikelihood
    theta : array [P]
        Its parameters.
    factor : callable () -> array [K, N]
        F with FᵀF the covariance between rows of f.
    """

    loc: Array
    function_scale: Array
    likelihood: ScalarLikelihood
    theta: Array
    factor: Callable[[], Array]
    squeeze: bool = True

    def _shape(self, values: Array) -> Array:
        return values if self.squeeze else values[..., None]

    @property
    def n_rows(self) -> int:
        return len(self.loc)

    @property
    def n_outputs(self) -> int:
        return 1

    def take(self, rows: NDArray[Any]) -> LinkedPrediction:
        """Some rows of the prediction."""
        factor = self.factor
        return replace(
            self,
            loc=self.loc[rows],
            function_scale=self.function_scale[rows],
            factor=lambda: factor()[:, rows],
        )

    def with_trials(self, trials: int) -> LinkedPrediction:
        """The share of successes among another number of trials, where the likelihood is binomial."""
        if not isinstance(self.likelihood, Binomial):
            raise ValueError(f"trials are of the likelihood binomial; got {self.likelihood.name}")
        if trials < 1:
            raise ValueError(f"trials must be at least 1; got {trials}")
        return replace(self, likelihood=replace(self.likelihood, trials=int(trials)))

    # -- moments ------------------------------------------------------------------------------------------------------

    @cached_property
    def _rule(self) -> tuple[Array, Array]:
        """Values of f [K, N] and their weights [K]."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        kept = weights > LEAST_WEIGHT
        nodes, weights = nodes[kept], weights[kept] / weights[kept].sum()
        return self.loc + self.function_scale * nodes[:, None], weights

    @cached_property
    def _means(self) -> Array:
        return self.likelihood.mean(self._rule[0], self.theta)

    @cached_property
    def _mean(self) -> Array:
        return self._rule[1] @ self._means

    @cached_property
    def _epistemic(self) -> Array:
        return np.sqrt(self._rule[1] @ (self._means - self._mean) ** 2)

    @cached_property
    def _aleatoric(self) -> Array:
        f, weights = self._rule
        return np.sqrt(weights @ self.likelihood.variance(f, self.theta))

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self._shape(self._mean)

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation: what more data would not remove."""
        return self._shape(self._aleatoric)

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far the target's mean may be from what is predicted."""
        return self._shape(self._epistemic)

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return self._shape(np.hypot(self._aleatoric, self._epistemic))

    def row_covariance(self) -> Array:
        """Covariance between rows, noise on the diagonal: [N, N], or [N, N, 1]; rows correlate as their functions."""
        parts = (self.factor(), self._epistemic, self._aleatoric)
        return self._shape(bent_row_covariance(*(part[..., None] for part in parts))[..., 0])

    # -- the distribution ---------------------------------------------------------------------------------------------

    def _targets(self, y: ArrayLike) -> Array:
        values = np.asarray(y, dtype=np.float64)
        if values.shape[:1] != (self.n_rows,) or values.shape not in ((self.n_rows,), (self.n_rows, 1)):
            raise ValueError(f"y must have {self.n_rows} rows and 1 output; got shape {values.shape}")
        return values.reshape(self.n_rows)

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N]: a probability of discrete targets and of intervals, else a density.

        ``y`` may be [N, 2] where the likelihood's targets are: successes and trials.
        """
        values = np.asarray(y, dtype=np.float64)
        target = self.likelihood.targets(values if values.shape == (self.n_rows, 2) else self._targets(values))
        possible = np.asarray(~np.isnan(target.reshape(self.n_rows, -1)).any(-1))
        safe = np.where(possible if target.ndim == 1 else possible[:, None], target, self.likelihood.example())
        f, weights = self._rule
        log_prob = self.likelihood.log_prob(*(torch.as_tensor(part) for part in (f, safe, self.theta))).numpy()
        return np.where(possible, special.logsumexp(log_prob, axis=0, b=weights[:, None]), -np.inf)

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row."""
        return self._shape(self._below(self.likelihood.index(self._targets(y))))

    def _below(self, index: Array) -> Array:
        f, weights = self._rule
        return np.minimum(weights @ self.likelihood.cdf(index, f, self.theta), 1.0)

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N], or [Q, N] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q must be inside (0, 1); got {levels}")
        found = np.stack([self.likelihood.values(self._quantile(float(level))) for level in levels.reshape(-1)])
        return self._shape(found.reshape(*levels.shape, self.n_rows))

    def _quantile(self, level: float | Array) -> Array:
        """The index of a quantile, between the components' own quantiles, which lie around it."""
        f, _ = self._rule
        component = self.likelihood.quantile(np.asarray(level), f, self.theta)
        low, high = component.min(0), component.max(0)
        if self.likelihood.discrete:
            low = low - 1
            while (high - low > 1).any():
                middle = np.floor(0.5 * (low + high))
                enough = self._below(middle) >= level
                low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            return high
        return find_quantiles(self._below, level, low, high)

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with this coverage: [N, 2], or [N, 1, 2]; a coverage of 1 asks for all that can be."""
        tail = (1 - np.asarray(coverage, dtype=np.float64).reshape(-1)) / 2
        if not ((tail >= 0) & (tail <= 0.5)).all():
            raise ValueError(f"coverage must be from 0 to 1; got {coverage}")
        inner = np.where(tail < 1e-15, 0.25, tail)
        ends = np.stack([self.likelihood.values(self._quantile(level)) for level in (inner, 1 - inner)])
        ends = np.where(tail < 1e-15, np.array(self.likelihood.support)[:, None], ends)
        return np.moveaxis(self._shape(ends), 0, -1)

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with at least probability ``coverage``: [N, 2], or [N, 1, 2]."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        return self.interval_at(np.asarray(coverage))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row, ∫ (P(target <= t) − 1{t >= y})² dt."""
        target = self._targets(y)
        low, high = (self._quantile(level) for level in (TAIL, 1 - TAIL))
        if self.likelihood.discrete and (high - low).max() <= MOST_VALUES:
            return self._shape(self._crps_of_steps(target, low, high))
        low, high = self.likelihood.values(low), self.likelihood.values(high)
        middle = np.clip(target, low, high)
        nodes, weights = np.polynomial.legendre.leggauss(SCORE_NODES)
        total = np.abs(target - middle)
        for node, weight in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
            left, right = (end + (middle - end) * node for end in (low, high))
            total = total + weight * (middle - low) * self._below(self.likelihood.index(left)) ** 2
            total = total + weight * (high - middle) * (1 - self._below(self.likelihood.index(right))) ** 2
        return self._shape(total)

    def _crps_of_steps(self, target: Array, low: Array, high: Array) -> Array:
        """The integral as a sum over the steps between possible targets."""
        values = self.likelihood.values
        total = np.maximum(values(low) - target, 0) + np.maximum(target - values(high), 0)
        for step in range(int((high - low).max())):
            here, after = low + step, low + step + 1
            left, right = values(here), values(after)
            inside = np.clip(target, left, right)
            below = self._below(here)
            piece = (inside - left) * below**2 + (right - inside) * (1 - below) ** 2
            total = total + np.where(after <= high, piece, 0.0)
        return total

    # -- draws --------------------------------------------------------------------------------------------------------

    def _functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        factor = self.factor()
        return self.loc + rng.standard_normal((n_samples, len(factor))) @ factor

    def sample_functions(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target's mean given the function, [n_samples, N]; rows of a draw go together."""
        functions = self._functions(n_samples, np.random.default_rng(random_state))
        return self._shape(self.likelihood.mean(functions, self.theta))

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N]: one function a draw, with noise of each row."""
        rng = np.random.default_rng(random_state)
        index = self.likelihood.sample(self._functions(n_samples, rng), self.theta, rng)
        return self._shape(self.likelihood.values(index))
