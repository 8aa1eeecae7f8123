"""Standardising tables, so that users never have to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Standardiser"]

Array = NDArray[np.float64]


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
