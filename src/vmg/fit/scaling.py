"""Units of the rows: standardised columns, and how far inputs lie beyond those of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputRange", "Standardiser", "soften"]

Array = NDArray[np.float64]

SOFT_LIMIT = 3.0  # standard deviations, beyond which an input counts by its logarithm


@dataclass(frozen=True)
class Standardiser:
    """(values − mean)/scale of each column, fitted on training rows; constant columns get scale 1."""

    mean: Array
    scale: Array

    @classmethod
    def fit(cls, values: Array, weight: Array | None = None) -> Standardiser:
        """Weighted mean and standard deviation of each column of values [N, D]."""
        mean = np.average(values, axis=0, weights=weight)
        centred = values - mean
        largest = np.abs(centred).max(0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers would leave the range of floats
        scale = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
        # a column that varies by rounding alone counts as constant
        constant = scale <= 1e-10 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
        return cls(mean, np.where(constant, 1.0, scale))

    def transform(self, values: Array) -> Array:
        """Values in standard units."""
        return (values - self.mean) / self.scale

    def inverse(self, values: Array) -> Array:
        """Standard units back in the original ones."""
        return values * self.scale + self.mean


def soften(x: Array) -> Array:
    """Inputs in standard units, beyond ±3 growing with the logarithm alone.

    One row far outside then moves a network no more than its rank does, and is still farther than all others.
    """
    size = np.abs(x)
    return np.where(size > SOFT_LIMIT, np.sign(x) * (SOFT_LIMIT + np.log1p(np.maximum(size - SOFT_LIMIT, 0))), x)


@dataclass(frozen=True)
class InputRange:
    """Smallest and largest value of each softened input among rows, [D] each."""

    low: Array
    high: Array

    @classmethod
    def of(cls, x: Array) -> InputRange:
        """The range of rows x [N, D]."""
        return cls(x.min(0), x.max(0))

    def remoteness(self, x: Array) -> Array:
        """Factor of the function's variance at softened rows [N, D]: 1 in the range, 1 + d² at a distance d from it.

        Far from all rows a function is known no better than a straight line whose slope is unknown.
        """
        outside = np.maximum(np.maximum(x - self.high, self.low - x), 0.0)
        return 1.0 + np.square(outside).sum(-1)
