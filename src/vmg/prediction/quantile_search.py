"""Quantiles of distributions that only have a cdf: a bracketed search of many at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["find_quantiles"]

Array = NDArray[np.float64]

MOST_STEPS = 100
TOLERANCE = 4 * np.finfo(np.float64).eps  # of a quantile, relative to its size
SMALLEST = 2.0**-60  # of the first bracket: a quantile at zero has no size


def find_quantiles(cdf: Callable[[Array], Array], level: Array | float, low: Array, high: Array) -> Array:
    """The x in [low, high] with cdf(x) = level, elementwise; where the cdf jumps over the level, the x of the jump.

    Chandrupatla's method (1997): an inverse quadratic through the last three points where it can be trusted, the middle
    of the bracket elsewhere. An element's steps do not depend on the others, and it rests once it is found.

    Args:
        cdf: of the whole array of x, not falling in any of its elements.
        level: with cdf(low) <= level <= cdf(high), up to rounding.
    """
    x1, x2 = (np.array(end, dtype=np.float64) for end in (low, high))
    f1, f2 = cdf(x1) - level, cdf(x2) - level
    least_width = SMALLEST * np.abs(x2 - x1)
    resting = (f1 >= 0) | ~(f2 > 0) | (x1 == x2)
    found = np.where(f1 >= 0, x1, x2)  # what rounding has put beyond an end is at that end
    share = np.full(x1.shape, 0.5)
    for _ in range(MOST_STEPS):
        if resting.all():
            break
        x = np.where(resting, found, x1 + share * (x2 - x1))
        f = cdf(x) - level
        same = np.sign(f) == np.sign(f1)
        x3, f3 = np.where(same, x1, x2), np.where(same, f1, f2)
        x2, f2 = np.where(same, x2, x1), np.where(same, f2, f1)
        x1, f1 = x, f
        width = np.abs(x2 - x1)
        least = TOLERANCE * np.maximum(np.abs(x1), np.abs(x2)) + least_width
        ends_here = ~resting & ((f1 == 0) | (width <= 2 * least))
        found = np.where(ends_here, np.where(f1 == 0, x1, np.maximum(x1, x2)), found)
        resting = resting | ends_here
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            place, height = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            trusted = (height**2 < place) & ((1 - height) ** 2 < 1 - place)
            curve = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
            margin = np.minimum(least / width, 0.5)
            share = np.clip(np.where(trusted & np.isfinite(curve), curve, 0.5), margin, 1 - margin)
    return np.where(resting, found, np.maximum(x1, x2))
