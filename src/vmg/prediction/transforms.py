"""Monotone maps from the unbounded scale on which a Student t lives to targets with a smallest value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["LogTransform", "Rectified", "TargetTransform"]

Array = NDArray[np.float64]


class TargetTransform(Protocol):
    """y = T(z), not falling, with zero as the smallest y; or, with the small probability ``doubt``, y = z."""

    @property
    def doubt(self) -> float:
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
    def doubt(self) -> float:
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

    That N targets are not negative does not show that none can be. A target is z itself with the probability ``doubt``;
    a negative one is then unlikely and not impossible.
    """

    doubt: float = 0.0

    @classmethod
    def after(cls, n_rows: int) -> Rectified:
        """Rectified after so many targets of which none was negative: doubt is the mean of a Beta(1/2, 1/2 + N)."""
        return cls(0.5 / (n_rows + 1))

    def forward(self, z: Array) -> Array:
        return np.maximum(z, 0.0)

    def inverse(self, y: Array) -> Array:
        return np.maximum(y, 0.0)

    def log_slope(self, y: Array) -> Array:
        return np.zeros(np.shape(y))

    def floor(self) -> float:
        return 0.0
