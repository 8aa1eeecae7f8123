"""Inputs beyond those of training: how the networks see them, and how much less is known there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputRange", "soften"]

Array = NDArray[np.float64]

SOFT_LIMIT = 3.0  # standard deviations, beyond which an input counts by its logarithm


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
