"""Predictions of amounts: their logarithm, or their excess over zero, is what another prediction says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vmg.math.distributions import hermite_rule
from vmg.prediction.base import Array, Generator, Rows, WrappedPrediction, rescaled_factor
from vmg.prediction.student import StudentPrediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LogTransform", "Rectified", "TargetTransform", "TransformedPrediction"]

NORMAL = np.linspace(-7.9, 7.9, 159)  # nodes of means over the noise, by the trapezium rule in normal units
FUNCTION_NODES = 15
LEAST_NOISE = 1e-6  # of the base's: rows whose targets are all but surely zero keep so much
MEAN_TAIL = 0.0501  # of probability above the largest mean of a logarithm: inside the 90 % interval, with rounding
MEAN_IGNORANCE = 5.0  # times the noise: what the mean of numbers that are cut at zero counts
UNTOUCHED = 1e-4  # of probability below zero: less leaves a rectified row's moments as they are


@dataclass(frozen=True)
class LogTransform:
    """y = e^z − shift, nothing below zero, and from ``ceiling`` on a straight line.

    The line keeps means and standard deviations finite, which a Student t in log units does not have. With a shift some
    targets are zero: those with e^z up to the shift.
    """

    ceiling: float
    shift: float = 0.0
    negative_probability: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if not (self.ceiling > 0 and self.shift >= 0):
            raise ValueError(f"ceiling must be positive, and shift at least 0; got {self.ceiling} and {self.shift}")

    def forward(self, z: Array) -> Array:
        """T(z)."""
        bend = np.log(self.ceiling)
        amount = np.exp(np.minimum(z, bend)) * (1 + np.maximum(z - bend, 0))
        return np.maximum(amount - self.shift, 0.0)

    def inverse(self, y: Array) -> Array:
        """The largest z with T(z) = y, for y from 0 on; −∞ where no z gives zero."""
        amount = np.maximum(y, 0.0) + self.shift
        with np.errstate(divide="ignore"):
            below = np.log(np.minimum(amount, self.ceiling))
        return below + np.maximum(amount / self.ceiling - 1, 0)

    def log_slope(self, y: Array) -> Array:
        """log dz/dy where y > 0."""
        with np.errstate(divide="ignore"):
            return -np.log(np.minimum(np.maximum(y, 0.0) + self.shift, self.ceiling))


@dataclass(frozen=True)
class Rectified:
    """y = max(z, 0): amounts that behave like any number, only that none is below zero.

    That N targets are not negative does not show that none can be. A target is z itself with the probability
    ``negative_probability``; a negative one is then unlikely and not impossible.
    """

    negative_probability: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.negative_probability < 1:
            raise ValueError(f"negative_probability must be in [0, 1); got {self.negative_probability}")

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


TargetTransform = LogTransform | Rectified
"""y = T(z), not falling, with zero as the smallest y; with ``negative_probability``, if there is one, y = z."""


@dataclass(frozen=True, repr=False)
class TransformedPrediction(WrappedPrediction):
    """The target of each of N rows: y = T(z) with z as ``base`` says, T monotone and never below zero.

    Quantiles, cdf and log density are exact; means and deviations are quadratures. The density at targets below zero,
    which training has not seen, is that of z times ``transform.negative_probability``.
    """

    base: StudentPrediction
    transform: TargetTransform
    row_fields = ("base",)

    @property
    def _support(self) -> tuple[float, float]:
        return 0.0, np.inf

    def widened(self, extra_std: Array) -> Self:
        """The prediction with more ignorance: as far on the scale of the base as a deviation above the median is."""
        median = self.transform.forward(self.base._quantile(np.full((1, 1), 0.5)))
        extra = self.transform.inverse(median + extra_std) - self.transform.inverse(median)
        return replace(self, base=self.base.widened(extra))

    @cached_property
    def _touched(self) -> Rows:
        """Rows whose moments are not those of the base."""
        if isinstance(self.transform, Rectified):
            return np.flatnonzero((self._mass_at_zero >= UNTOUCHED).any(1))
        return np.arange(self.n_rows)

    def _integrate(self, centre: Array, scale: Array) -> tuple[Array, Array]:
        """Mean and variance of T(centre + scale · r) over the noise r, for centre [..., N, C] and scale [N, C]."""
        weights = np.exp(-0.5 * NORMAL**2)
        mean, square = np.zeros((2, *np.broadcast_shapes(centre.shape, scale.shape)))
        anchor = self.transform.forward(centre)  # so that squares do not cancel
        for node, weight in zip(self.base.error_quantiles(NORMAL), weights / weights.sum(), strict=True):
            away = self.transform.forward(centre + scale * node) - anchor
            mean += weight * away
            square += weight * away**2
        return anchor + mean, np.maximum(square - mean**2, 0.0)

    @cached_property
    def _whole(self) -> tuple[Array, Array]:
        """Mean and variance of touched rows; of a logarithm inside the 90 % interval, for nobody has seen its tail.

        Ignorance far from the rows is as large below the centre as above it; cutting it at zero must not move the mean.
        So the mean of rectified numbers counts no more of it than ``MEAN_IGNORANCE`` times the noise.
        """
        base = self.base.take(self._touched)
        mean, variance = self._integrate(base.loc, base.scale)
        if isinstance(self.transform, LogTransform):
            end = self.transform.forward(base._quantile(np.full((1, 1), MEAN_TAIL), upper=True))
            capped = np.minimum(np.minimum(mean, end), self.transform.ceiling)
        else:
            limit = np.hypot(1, MEAN_IGNORANCE) * base.noise_scale
            capped, _ = self._integrate(base.loc, np.minimum(base.scale, limit))
        return capped, variance + (mean - capped) ** 2

    @cached_property
    def _mean(self) -> Array:
        mean = self.base._mean.copy()
        mean[self._touched] = self._whole[0]
        return mean

    @cached_property
    def _parts(self) -> Array:
        """Noise and ignorance, [2, N, C]: shares of the variance as Var E[y | f] to E Var[y | f].

        Both are of a Gaussian function f with the noise around it, which together are not quite the distribution that
        the whole variance is of.
        """
        base, parts = self.base.take(self._touched), np.stack([self.base._aleatoric, self.base._epistemic])
        nodes, weights = hermite_rule(FUNCTION_NODES)
        f = base.loc + base.function_scale * base.tails * nodes[:, None, None]
        means, variances = self._integrate(f, base.noise_scale)
        within = np.tensordot(weights, variances, 1)
        between = np.tensordot(weights, (means - np.tensordot(weights, means, 1)) ** 2, 1)
        unit = self._whole[1] / np.maximum(within + between, np.finfo(np.float64).tiny)
        least = LEAST_NOISE * base._aleatoric * np.exp(-self.transform.log_slope(np.zeros(1)))
        parts[:, self._touched] = np.maximum(np.sqrt(unit * within), least), np.sqrt(unit * between)
        return parts

    @property
    def _aleatoric(self) -> Array:
        return self._parts[0]

    @property
    def _epistemic(self) -> Array:
        return self._parts[1]

    def _factors(self) -> tuple[Array, int]:
        factor, n_shared = self.base._factors()
        return rescaled_factor(factor, self._epistemic), n_shared

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
        return self.base._cdf(self.transform.inverse(np.zeros(self.shape)))

    def _atom(self, y: Array) -> Array:
        return np.where(y == 0, self._mass_at_zero, 0.0)

    def _cdf(self, y: Array) -> Array:
        return np.where(y >= 0, self.base._cdf(self.transform.inverse(y)), 0.0)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        return self.transform.forward(self.base._quantile(tail, upper=upper))

    def _score_knots(self) -> Array:
        return np.concatenate([super()._score_knots(), np.zeros((1, *self.shape))])  # where the cdf may jump

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        z = self.base._draw(n_samples, functions, noise)
        return self._integrate(z, self.base.noise_scale)[0] if noise is None else self.transform.forward(z)
