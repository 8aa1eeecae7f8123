"""Predictions of targets that are a monotone function of a Student t: amounts, whose logarithm or excess it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from vmg.prediction.row_covariance import bent_row_covariance
from vmg.prediction.student import StudentPrediction
from vmg.prediction.transforms import Rectified, TargetTransform

__all__ = ["TransformedPrediction"]

Array = NDArray[np.float64]

GRID = np.linspace(-9, 9, 181)  # of t in x = sinh t: far enough for tails of three degrees of freedom
FUNCTION_NODES = 15
SCORE_NODES = 48  # of each of two integrals of the CRPS
UNTOUCHED = 1e-4  # of probability below zero: less leaves a rectified row's moments as they are


@dataclass(frozen=True)
class TransformedPrediction:
    """The target of each of N rows: y = T(z) with z as ``base`` says, T monotone and never below zero.

    With the small probability ``transform.doubt`` the target is z itself, so that no number is impossible. Results have
    the shapes of :class:`~vmg.prediction.student.StudentPrediction`. Quantiles, cdf and log density are exact; means
    and deviations are quadratures.
    """

    base: StudentPrediction
    transform: TargetTransform

    @property
    def loc(self) -> Array:
        """Centres before the transform, [N, C]."""
        return self.base.loc

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def n_outputs(self) -> int:
        return self.base.n_outputs

    def take(self, rows: NDArray[Any]) -> TransformedPrediction:
        """Some rows of the prediction."""
        return replace(self, base=self.base.take(rows))

    # -- moments ------------------------------------------------------------------------------------------------------

    def _mean_over(self, centre: Array, scale: Array, power: int = 1) -> Array:
        """E T(centre + scale · t)^power over the Student t, for centre [..., N, C] and scale [N, C]."""
        nodes, weights = self._rule
        total = np.zeros(np.broadcast_shapes(centre.shape, scale.shape))
        for node, weight in zip(nodes, weights, strict=True):
            z = centre + scale * node
            total += weight * self._either(self.transform.forward(z) ** power, z**power)
        return total

    @cached_property
    def _rule(self) -> tuple[Array, Array]:
        """Values of the Student t [K] and their weights [K, C], by the trapezium rule in t of x = sinh t."""
        nodes = np.sinh(GRID)
        weights = stats.t.pdf(nodes[:, None], self.base.df) * np.cosh(GRID)[:, None]
        return nodes, weights / weights.sum(0)

    @cached_property
    def _touched(self) -> NDArray[np.int64]:
        """Rows with an output whose moments need a quadrature."""
        return np.flatnonzero(~self._untouched.all(1))

    def _with_touched(self, known: Array, found: Array) -> Array:
        """What is known of all rows [N, C], but for touched outputs, of whose rows it was ``found``."""
        values = known.copy()
        values[self._touched] = np.where(self._untouched[self._touched], known[self._touched], found)
        return values

    def _either(self, bounded: Array, free: Array) -> Array:
        """The mean of what is so with T and what is so without it."""
        doubt = self.transform.doubt
        return (1 - doubt) * bounded + doubt * free if doubt > 0 else bounded

    @cached_property
    def _untouched(self) -> Array:
        """Rows whose moments are those of the Student t itself, [N, C]."""
        if not isinstance(self.transform, Rectified):
            return np.zeros(self.base.loc.shape, dtype=np.bool_)
        return np.asarray(special.stdtr(self.base.df, -self.base.loc / self.base.scale) < UNTOUCHED)

    @cached_property
    def _mean(self) -> Array:
        loc, scale = self.base.loc, self.base.scale
        return self._with_touched(loc, self._mean_over(loc[self._touched], scale[self._touched]))

    @cached_property
    def _std(self) -> Array:
        loc, scale, mean = (part[self._touched] for part in (self.base.loc, self.base.scale, self._mean))
        square = self._mean_over(loc, scale, 2)
        return self._with_touched(self.base.scale * self.base.tails, np.sqrt(np.maximum(square - mean**2, 0.0)))

    @cached_property
    def _epistemic(self) -> Array:
        """Deviation over functions of the target's mean given the function, [N, C]."""
        known = self.base.function_scale * self.base.tails
        nodes, weights = np.polynomial.hermite_e.hermegauss(FUNCTION_NODES)
        weights = weights / weights.sum()
        loc, size, noise, std = (
            part[self._touched] for part in (self.base.loc, known, self.base.noise_scale, self._std)
        )
        means = self._mean_over(loc + size * nodes[:, None, None], noise)
        centre = np.tensordot(weights, means, 1)
        spread = np.sqrt(np.tensordot(weights, (means - centre) ** 2, 1))
        return self._with_touched(known, np.minimum(spread, std))

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self.base.squeezed(self._mean)

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return self.base.squeezed(self._std)

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far the target's mean may be from what is predicted."""
        return self.base.squeezed(self._epistemic)

    @cached_property
    def _aleatoric(self) -> Array:
        rest = np.sqrt(np.maximum(self._std**2 - self._epistemic**2, 0.0))
        return np.where(self._untouched, self.base.noise_scale * self.base.tails, rest)

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share: what more data would not remove."""
        return self.base.squeezed(self._aleatoric)

    def row_covariance(self) -> Array:
        """Covariance between rows, noise on the diagonal: [N, N], or [N, N, C]; rows correlate as their functions."""
        return self.base.squeezed(bent_row_covariance(self.base.spread, self._epistemic, self._aleatoric))

    # -- the distribution ---------------------------------------------------------------------------------------------

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], summed over outputs; of a zero that has a probability, its logarithm."""
        target, doubt = self.base.as_rows(y), self.transform.doubt
        inside = target > 0
        z = self.transform.inverse(np.where(inside, target, 1.0))
        density = self.base.log_density(z) + self.transform.log_slope(np.where(inside, target, 1.0))
        with np.errstate(divide="ignore"):
            at_zero = np.log((1 - doubt) * self._mass_at_zero)
            below = np.log(doubt) + self.base.log_density(np.minimum(target, 0.0))
        return np.where(inside, density, np.where(target == 0, at_zero, below)).sum(-1)

    @cached_property
    def _mass_at_zero(self) -> Array:
        """The probability that T(z) is zero, [N, C]."""
        floor = self.transform.floor()
        return self.base.below(np.full_like(self.base.loc, floor)) if np.isfinite(floor) else np.zeros(self.loc.shape)

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row and output."""
        return self.base.squeezed(self._below(self.base.as_rows(y)))

    def _below(self, target: Array) -> Array:
        z = self.transform.inverse(target)
        possible = (target >= 0) & np.isfinite(z)
        bounded = np.where(possible, self.base.below(np.where(possible, z, 0.0)), 0.0)
        return np.where(target < 0, self._either(bounded, self.base.below(target)), bounded)

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N] (or [N, C]), or [Q, N, ...] for several q."""
        z = self.base.quantile(q)  # refuses a q that is none
        levels = np.asarray(q, dtype=np.float64)[..., None, None]
        return self.base.squeezed(self._at(levels, z.reshape(*levels.shape[:-2], *self.base.loc.shape)))

    def _at(self, level: Array, z: Array) -> Array:
        """The quantile of the target at a level, where z [..., N, C] is that of the base."""
        bounded = self._bounded(z)
        doubt = self.transform.doubt
        if doubt == 0:
            return bounded
        free = np.minimum(level / doubt, 1.0)
        return np.where(
            free < self._mass_at_zero, self.base.loc + self.base.scale * stats.t.ppf(free, self.base.df), bounded
        )

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with a coverage of its own for each output [C]: [N, 2], or [N, C, 2].

        It is that of T(z): no end is below zero, also in doubt.
        """
        return self._bounded(self.base.interval_at(coverage))

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2]."""
        return self._bounded(self.base.interval(coverage))

    def _bounded(self, z: Array) -> Array:
        """T(z), also where z is infinite."""
        return np.where(np.isposinf(z), np.inf, self.transform.forward(np.where(np.isposinf(z), 0.0, z)))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units.

        2 ∫₀^F(y) u (y − Q(u)) du + 2 ∫_F(y)¹ (1 − u)(Q(u) − y) du, with Q the quantiles (Gneiting & Raftery 2007).
        """
        target = self.base.as_rows(y)
        at_y = self._below(target)
        nodes, weights = np.polynomial.legendre.leggauss(SCORE_NODES)
        nodes, weights = 0.5 * (nodes + 1), 0.5 * weights
        total = np.zeros_like(target)
        for node, weight in zip(nodes, weights, strict=True):
            tail, slope = node**4, 4 * node**3 * weight  # many nodes near the ends, where quantiles run away
            for share, sign in ((at_y, 1.0), (1 - at_y, -1.0)):
                u = np.maximum(share * tail, 1e-50)
                z = self.base.loc + sign * self.base.scale * stats.t.ppf(u, self.base.df)
                level = u if sign > 0 else 1 - u
                total += 2 * share * slope * u * sign * (target - self._at(level, z))
        return self.base.squeezed(total)

    # -- draws --------------------------------------------------------------------------------------------------------

    def sample_functions(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target's mean given the function, [n_samples, N] or [n_samples, N, C]."""
        functions = self.base.functions(n_samples, np.random.default_rng(random_state))
        return self.base.squeezed(self._mean_over(functions, self.base.noise_scale))

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N] or [n_samples, N, C]: one function a draw, with noise of each row."""
        rng = np.random.default_rng(random_state)
        z = self.base.sample(n_samples, rng)
        doubt = self.transform.doubt
        return (
            np.where(rng.random(z.shape) < doubt, z, self.transform.forward(z)) if doubt else self.transform.forward(z)
        )
