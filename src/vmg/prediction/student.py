"""Predictions in closed form: a centre plus a scale times noise that is Student t or a mixture, or a monotone function
of it: amounts, whose logarithm or excess it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vmg.math.distributions import (
    hermite_rule,
    student_cdf,
    student_log_density,
    student_quantile,
    student_variance,
)
from vmg.prediction.base import Array, Factor, NumberPrediction, Rows, rescaled_factor, row_factor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "LogTransform",
    "MixtureNoisePrediction",
    "Rectified",
    "Shape",
    "StudentPrediction",
    "TargetTransform",
    "TransformedPrediction",
]

KNOTS = np.linspace(-7.9, 7.9, 2**12 + 1)
"""Standard normal numbers at which draws know the quantiles of the noise; beyond are 1e-15 of probability."""

GRID = np.linspace(-9, 9, 181)  # of t in x = sinh t: far enough for tails of three degrees of freedom
FUNCTION_NODES = 15
UNTOUCHED = 1e-4  # of probability below zero: less leaves a rectified row's moments as they are


@dataclass(frozen=True, repr=False)
class StudentPrediction(NumberPrediction):
    """The target of each of N rows: Student t with squared scale ``noise_scale² + function_scale²``.

    Parameters
    ----------
    loc : array [N, C]
        Centres.
    noise_scale : array [N, C]
        The part of the scale that is noise.
    function_scale : array [N, C]
        The part that is ignorance of the function.
    df : array [C]
        Degrees of freedom, above 2.
    factor : callable () -> array [K, N, C]
        F with FᵀF the covariance between rows of the function, before the Student t's factor df/(df − 2).
    squeeze : bool
        Give [N] instead of [N, 1].
    n_shared : int
        How many of F's first K rows are functions that all outputs share; the others are each output's own.
    """

    loc: Array
    noise_scale: Array
    function_scale: Array
    df: Array
    factor: Factor
    squeeze: bool = True
    n_shared: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.loc.shape[0], self.loc.shape[1]

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        parts = {name: getattr(self, name)[rows] for name in ("loc", "noise_scale", "function_scale")}
        return replace(self, **parts, factor=row_factor(self.factor, rows))

    @cached_property
    def scale(self) -> Array:
        """The scale of the target, [N, C]."""
        return np.hypot(self.noise_scale, self.function_scale)

    # -- the noise in units of the scale, [..., C] --------------------------------------------------------------------

    @property
    def tails(self) -> Array:
        """Standard deviation over the scale, [C]."""
        return np.sqrt(student_variance(self.df))

    def _error_cdf(self, r: Array) -> Array:
        return student_cdf(r, self.df)

    def _error_quantile(self, tail: Array, *, upper: bool) -> Array:
        lower = student_quantile(tail, self.df)
        return -lower if upper else lower

    # -- primitives ---------------------------------------------------------------------------------------------------

    @property
    def _mean(self) -> Array:
        return self.loc

    @property
    def _aleatoric(self) -> Array:
        return self.noise_scale * self.tails

    @property
    def _epistemic(self) -> Array:
        return self.function_scale * self.tails

    @property
    def _std(self) -> Array:
        return self.scale * self.tails

    def log_density(self, y: Array) -> Array:
        """log p(y) of each row and output, [N, C]."""
        return student_log_density(y - self.loc, self.scale**2, self.df)

    def _log_prob(self, y: Array) -> Array:
        return self.log_density(y).sum(-1)

    def _cdf(self, y: Array) -> Array:
        return self._error_cdf((y - self.loc) / self.scale)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        r = self._error_quantile(np.broadcast_to(tail, (*tail.shape[:-1], self.n_outputs)), upper=upper)
        return self.loc + self.scale * r

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units (Jordan et al. 2019)."""
        nu, z = self.df, (self._as_rows(y) - self.loc) / self.scale
        density, below = np.exp(student_log_density(z, np.ones(1), nu)), student_cdf(z, nu)
        spread = 2 * np.sqrt(nu) / (nu - 1) * special.beta(0.5, nu - 0.5) / special.beta(0.5, 0.5 * nu) ** 2
        return self._shaped(self.scale * (z * (2 * below - 1) + 2 * density * (nu + z**2) / (nu - 1) - spread))

    # -- draws --------------------------------------------------------------------------------------------------------

    @cached_property
    def _function_factor(self) -> Array:
        return self.factor()

    def _factors(self) -> tuple[Array, Array]:
        spread = self._function_factor * self.tails
        return spread[: self.n_shared], spread[self.n_shared :]

    def draw_deviations(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Draws Fᵀz of the function's Gaussian deviation from its centre, [S, N, C], before the factor of the tails."""
        z = rng.standard_normal((n_samples, len(self._function_factor), self.n_outputs))
        z[:, : self.n_shared] = z[:, : self.n_shared, :1]
        return np.einsum("skc,knc->snc", z, self._function_factor, optimize=True)

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._mean + self.draw_deviations(n_samples, rng) * self.tails

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Normal draws of the function and of each row's noise, and of their sum the quantile at the same level.

        So a row's draws have exactly its distribution, and rows and outputs go together as their functions do.
        """
        normal = self.draw_deviations(n_samples, rng)
        normal += self.noise_scale * rng.standard_normal(normal.shape)
        normal /= np.sqrt(np.square(self._function_factor).sum(0) + self.noise_scale**2)
        for c, quantiles in enumerate(self._error_knots.T):
            normal[..., c] = np.interp(normal[..., c], KNOTS, quantiles)
        return self.loc + self.scale * normal

    @property
    def _error_knots(self) -> Array:
        """Quantiles of the noise at the levels of ``KNOTS``, [Q, C]."""
        middle = len(KNOTS) // 2
        tails = np.repeat(special.ndtr(KNOTS[: middle + 1])[:, None], self.n_outputs, 1)
        low, high = (self._error_quantile(tails, upper=upper) for upper in (False, True))
        return np.concatenate([low, high[-2::-1]])


class Shape(Protocol):
    """The distribution of errors in units of a row's scale."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float: ...

    def log_density(self, r: Array) -> Array: ...

    def cdf(self, r: Array) -> Array: ...

    def quantile(self, q: Array) -> Array: ...

    def crps(self, r: Array) -> Array: ...


@dataclass(frozen=True, repr=False)
class MixtureNoisePrediction(StudentPrediction):
    """The target of each of N rows: y = loc + scale · r, where r has the shape of a mixture of normals for each output.

    ``df`` does not matter; everything else is as in a Student t, in closed form or by a search in one dimension.
    """

    shapes: Sequence[Shape] = ()

    def _each(self, values: Array, what: str) -> Array:
        """A function of each output's shape at values [..., C]."""
        return np.stack([getattr(shape, what)(values[..., c]) for c, shape in enumerate(self.shapes)], -1)

    @property
    def tails(self) -> Array:
        """Standard deviation over the scale, [C]."""
        return np.array([shape.std for shape in self.shapes])

    def _error_cdf(self, r: Array) -> Array:
        return self._each(r, "cdf")

    def _error_quantile(self, tail: Array, *, upper: bool) -> Array:
        tail = np.maximum(tail, np.finfo(np.float64).epsneg)
        return self._each(1 - tail if upper else tail, "quantile")

    @property
    def _mean(self) -> Array:
        return self.loc + self.scale * np.array([shape.mean for shape in self.shapes])

    def log_density(self, y: Array) -> Array:
        """log p(y) of each row and output, [N, C]."""
        return self._each((y - self.loc) / self.scale, "log_density") - np.log(self.scale)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units."""
        return self._shaped(self.scale * self._each((self._as_rows(y) - self.loc) / self.scale, "crps"))


# -- monotone functions of a Student t ---------------------------------------------------------------------------------


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
        """The mean; of a logarithm inside the 90 % interval and at most the ceiling, for nobody has seen its tail."""
        loc, scale = self.base.loc, self.base.scale
        mean = self._with_touched(loc, self._mean_over(loc[self._touched], scale[self._touched]))
        if not isinstance(self.transform, LogTransform):
            return mean
        end = self._quantile(np.full((1, 1), 0.05), upper=True).reshape(mean.shape)
        return np.minimum(np.minimum(mean, end), self.transform.ceiling)

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
