"""Predictions of targets that are a monotone function of a Student t: amounts, whose logarithm or excess it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vmg.math.distributions import hermite_rule, student_cdf, student_log_density, student_quantile
from vmg.prediction.base import Array, NumberPrediction, Rows, rescaled_factor
from vmg.prediction.student import StudentPrediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LogTransform", "Rectified", "TargetTransform", "TransformedPrediction"]

GRID = np.linspace(-9, 9, 181)  # of t in x = sinh t: far enough for tails of three degrees of freedom
FUNCTION_NODES = 15
UNTOUCHED = 1e-4  # of probability below zero: less leaves a rectified row's moments as they are


class TargetTransform(Protocol):
    """y = T(z), not falling, with zero as the smallest y; or, with a small probability, y = z."""

    @property
    def negative_probability(self) -> float:
        """The probability that targets can be below zero after all."""

    def forward(self, z: Array) -> Array:
        """T(z)."""

    def inverse(self, y: Array) -> Array:
        """The largest z with T(z) = y, for y from 0 on."""

    def log_slope(self, y: Array) -> Array:
        """log dz/dy where y > 0."""

    def floor(self) -> float:
        """The z up to which targets are zero: −∞ where none are."""


@dataclass(frozen=True)
class LogTransform:
    """y = e^z − shift, nothing below zero, and from ``ceiling`` on a straight line.

    The line keeps means and standard deviations finite, which a Student t in log units does not have. With a shift some
    targets are zero: those with e^z up to the shift.
    """

    ceiling: float
    shift: float = 0.0

    @property
    def negative_probability(self) -> float:
        return 0.0

    def forward(self, z: Array) -> Array:
        bend = np.log(self.ceiling)
        amount = np.exp(np.minimum(z, bend)) * (1 + np.maximum(z - bend, 0))
        return np.maximum(amount - self.shift, 0.0)

    def inverse(self, y: Array) -> Array:
        amount = np.maximum(y, 0.0) + self.shift
        with np.errstate(divide="ignore"):
            below = np.log(np.minimum(amount, self.ceiling))
        return below + np.maximum(amount / self.ceiling - 1, 0)

    def log_slope(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return -np.log(np.minimum(np.maximum(y, 0.0) + self.shift, self.ceiling))

    def floor(self) -> float:
        return float(np.log(self.shift)) if self.shift > 0 else -np.inf


@dataclass(frozen=True)
class Rectified:
    """y = max(z, 0): amounts that behave like any number, only that none is below zero.

    That N targets are not negative does not show that none can be. A target is z itself with the probability
    ``negative_probability``; a negative one is then unlikely and not impossible.
    """

    negative_probability: float = 0.0

    @classmethod
    def after(cls, n_rows: int) -> Rectified:
        """Rectified after N targets, none of them negative: the probability is the mean of a Beta(1/2, 1/2 + N)."""
        return cls(0.5 / (n_rows + 1))

    def forward(self, z: Array) -> Array:
        return np.maximum(z, 0.0)

    def inverse(self, y: Array) -> Array:
        return np.maximum(y, 0.0)

    def log_slope(self, y: Array) -> Array:
        return np.zeros(np.shape(y))

    def floor(self) -> float:
        return 0.0


@dataclass(frozen=True, repr=False)
class TransformedPrediction(NumberPrediction):
    """The target of each of N rows: y = T(z) with z as ``base`` says, T monotone and never below zero.

    With the small probability ``transform.negative_probability`` the target is z itself, so that no number is
    impossible; intervals have no end below zero all the same. Quantiles, cdf and log density are exact; means and
    deviations are quadratures.
    """

    base: StudentPrediction
    transform: TargetTransform

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.base.squeeze

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    @property
    def loc(self) -> Array:
        """Centres before the transform, [N, C]."""
        return self.base.loc

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        return replace(self, base=self.base.take(rows))

    @property
    def _support(self) -> tuple[float, float]:
        return 0.0, np.inf

    # -- moments ------------------------------------------------------------------------------------------------------

    @cached_property
    def _rule(self) -> tuple[Array, Array]:
        """Values of the Student t [K] and their weights [K, C], by the trapezium rule in t of x = sinh t."""
        nodes = np.sinh(GRID)
        density = np.exp(student_log_density(nodes[:, None], np.ones(1), self.base.df))
        weights = density * np.cosh(GRID)[:, None]
        return nodes, weights / weights.sum(0)

    def _mean_over(self, centre: Array, scale: Array) -> Array:
        """E T(centre + scale · t) over the Student t, for centre [..., N, C] and scale [N, C]."""
        return self._average(lambda y: y, centre, scale)

    def _average(self, what: Callable[[Array], Array], centre: Array, scale: Array) -> Array:
        """The mean of a function of the target, over z = centre + scale · t."""
        nodes, weights = self._rule
        total = np.zeros(np.broadcast_shapes(centre.shape, scale.shape))
        for node, weight in zip(nodes, weights, strict=True):
            z = centre + scale * node
            total += weight * self._either(what(self.transform.forward(z)), what(z))
        return total

    def _either(self, bounded: Array, free: Array) -> Array:
        """The mean of a number that holds with T and of one that holds without it."""
        share = self.transform.negative_probability
        return (1 - share) * bounded + share * free if share > 0 else bounded

    @cached_property
    def _untouched(self) -> Array:
        """Rows whose moments are those of the Student t itself, [N, C]."""
        if not isinstance(self.transform, Rectified):
            return np.zeros(self.shape, dtype=np.bool_)
        return np.asarray(student_cdf(-self.base.loc / self.base.scale, self.base.df) < UNTOUCHED)

    @cached_property
    def _touched(self) -> Rows:
        """Rows with an output whose moments need a quadrature."""
        return np.flatnonzero(~self._untouched.all(1))

    def _with_touched(self, known: Array, at_touched: Array) -> Array:
        """Numbers that are ``known`` of all rows [N, C], but for touched outputs, which have those of their rows."""
        values = known.copy()
        values[self._touched] = np.where(self._untouched[self._touched], known[self._touched], at_touched)
        return values

    @cached_property
    def _mean(self) -> Array:
        loc, scale = self.base.loc, self.base.scale
        return self._with_touched(loc, self._mean_over(loc[self._touched], scale[self._touched]))

    @cached_property
    def _std(self) -> Array:
        loc, scale, mean = (part[self._touched] for part in (self.base.loc, self.base.scale, self._mean))
        variance = self._average(lambda y: (y - mean) ** 2, loc, scale)
        return self._with_touched(self.base.scale * self.base.tails, np.sqrt(variance))

    @cached_property
    def _ignorance(self) -> Array:
        """The share of a touched row's variance that is ignorance: Var E[y | f] over Var E[y | f] + E Var[y | f].

        Both parts are of a Gaussian function f with Student t noise, which together are not quite the Student t that
        the whole variance is of. So it is their ratio that counts.
        """
        nodes, weights = hermite_rule(FUNCTION_NODES)
        parts = (self.base.loc, self.base.function_scale * self.base.tails, self.base.noise_scale)
        loc, size, noise = (part[self._touched] for part in parts)
        f = loc + size * nodes[:, None, None]
        means = self._mean_over(f, noise)
        within = np.tensordot(weights, self._average(lambda y: (y - means) ** 2, f, noise), 1)
        between = np.tensordot(weights, (means - np.tensordot(weights, means, 1)) ** 2, 1)
        return between / np.maximum(within + between, np.finfo(np.float64).tiny)

    @cached_property
    def _epistemic(self) -> Array:
        known = self.base.function_scale * self.base.tails
        return self._with_touched(known, self._std[self._touched] * np.sqrt(self._ignorance))

    @cached_property
    def _aleatoric(self) -> Array:
        known = self.base.noise_scale * self.base.tails
        return self._with_touched(known, self._std[self._touched] * np.sqrt(1 - self._ignorance))

    def _factors(self) -> tuple[Array, Array]:
        shared, own = self.base._factors()
        whole = rescaled_factor(np.concatenate([shared, own]), self._epistemic)
        return whole[: len(shared)], whole[len(shared) :]

    # -- the distribution ---------------------------------------------------------------------------------------------

    def _log_prob(self, y: Array) -> Array:
        share, inside = self.transform.negative_probability, y > 0
        safe = np.where(inside, y, 1.0)
        density = self.base.log_density(self.transform.inverse(safe)) + self.transform.log_slope(safe)
        with np.errstate(divide="ignore"):
            at_zero = np.log((1 - share) * self._mass_at_zero)
            below = np.log(share) + self.base.log_density(np.minimum(y, 0.0))
        return np.where(inside, density, np.where(y == 0, at_zero, below)).sum(-1)

    @cached_property
    def _mass_at_zero(self) -> Array:
        """The probability that T(z) is zero, [N, C]."""
        floor = self.transform.floor()
        return self.base._cdf(np.full(self.shape, floor)) if np.isfinite(floor) else np.zeros(self.shape)

    def _atom(self, y: Array) -> Array:
        return np.where(y == 0, (1 - self.transform.negative_probability) * self._mass_at_zero, 0.0)

    def _cdf(self, y: Array) -> Array:
        z = self.transform.inverse(y)
        possible = (y >= 0) & np.isfinite(z)
        bounded = np.where(possible, self.base._cdf(np.where(possible, z, 0.0)), 0.0)
        return np.where(y < 0, self._either(bounded, self.base._cdf(y)), bounded)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        z = self.base._quantile(tail, upper=upper)
        bounded = self.transform.forward(z)
        share = self.transform.negative_probability
        if share == 0:
            return bounded
        free = np.minimum((1 - tail if upper else tail) / share, 1.0)
        negative = self.base.loc + self.base.scale * student_quantile(free, self.base.df)
        return np.where(free < self._mass_at_zero, negative, bounded)

    def _score_knots(self) -> Array:
        return np.concatenate([super()._score_knots(), np.zeros((1, *self.shape))])  # where the cdf may jump

    # -- draws --------------------------------------------------------------------------------------------------------

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._mean_over(self.base._draw_functions(n_samples, rng), self.base.noise_scale)

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        z = self.base._draw(n_samples, rng)
        share, bounded = self.transform.negative_probability, self.transform.forward(z)
        return np.where(rng.random(z.shape) < share, z, bounded) if share else bounded
