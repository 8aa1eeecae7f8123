"""One-dimensional distributions that predictions and calibrations share: Student t, normal rules, two searches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = [
    "Array",
    "best_student_score",
    "find_quantiles",
    "hermite_rule",
    "lowest",
    "student_cdf",
    "student_log_density",
    "student_quantile",
    "student_variance",
]

Array = NDArray[np.float64]

SCORE_DEGREES = 4.0  # of the Student t that scores held-out errors
SCALE_STEPS, LEAST_SCALE = 15, 1e-12  # to its best squared scale, and the least of it

MOST_STEPS = 100
TOLERANCE = 4 * np.finfo(np.float64).eps  # of a quantile, relative to its size
SMALLEST = 2.0**-60  # of the first bracket: a quantile at zero has no size


# -- Student t, with infinite degrees of freedom a normal distribution ------------------------------------------------


def student_log_density(error: Array, squared_scale: Array, df: Array | float) -> Array:
    """Log density of a Student t around zero."""
    if np.isinf(df).all():
        return -0.5 * (np.log(2 * np.pi) + np.log(squared_scale) + error**2 / squared_scale)
    if np.isinf(df).any():
        degrees = (np.inf, np.where(np.isinf(df), 1.0, df))
        return np.where(np.isinf(df), *(student_log_density(error, squared_scale, part) for part in degrees))
    half = 0.5 * (df + 1)
    normaliser = special.gammaln(half) - special.gammaln(0.5 * df) - 0.5 * np.log(np.pi * df)
    return normaliser - 0.5 * np.log(squared_scale) - half * np.log1p(error**2 / (df * squared_scale))


def student_cdf(z: Array, df: Array | float) -> Array:
    """P(t <= z) of the standard Student t."""
    return np.asarray(special.ndtr(z) if np.isinf(df).all() else special.stdtr(df, z))


def student_quantile(level: Array | float, df: Array | float) -> Array:
    """The z that the standard Student t stays below with probability ``level``."""
    return np.asarray(special.stdtrit(df, level))


def student_variance(df: Array | float) -> Array:
    """The variance df/(df − 2) of the standard Student t; infinite for df <= 2."""
    with np.errstate(divide="ignore"):
        return np.where(np.greater(df, 2), 1 + 2 / np.maximum(np.subtract(df, 2), 0), np.inf)


def best_student_score(squared: Array, weight: Array) -> Array:
    """Mean log density [...] of errors, by their squares and weights [..., n], under a Student t of the best scale.

    It has four degrees of freedom: one wild error decides nothing.
    """
    counted, share = weight > 0, weight / weight.sum(-1, keepdims=True)
    scale = np.nanmedian(np.where(counted, squared, np.nan), axis=-1, keepdims=True) + LEAST_SCALE
    for _ in range(SCALE_STEPS):
        ratio = (SCORE_DEGREES + 1) / (SCORE_DEGREES + squared / scale)
        scale = (share * ratio * squared).sum(-1, keepdims=True) + LEAST_SCALE
    return (share * student_log_density(np.sqrt(squared), scale, SCORE_DEGREES)).sum(-1)


# -- means over a normal distribution ---------------------------------------------------------------------------------


@cache
def hermite_rule(n_nodes: int) -> tuple[Array, Array]:
    """Nodes and weights [K] of the mean over a standard normal, by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return nodes, weights / weights.sum()


# -- quantiles of distributions that only have a cdf ------------------------------------------------------------------


def find_quantiles(cdf: Callable[[Array], Array], level: Array | float, low: Array, high: Array) -> Array:
    """The x in [low, high] with cdf(x) = level, elementwise; where the cdf jumps over the level, the x of the jump.

    Chandrupatla's method (1997): an inverse quadratic through the last three points where it can be trusted, the middle
    of the bracket elsewhere. An element's steps do not depend on the others, and it rests once it has arrived.

    Args:
        cdf: of the whole array of x, not falling in any of its elements.
        level: with cdf(low) <= level <= cdf(high), up to rounding.
    """
    x1, x2 = (np.array(end, dtype=np.float64) for end in (low, high))
    f1, f2 = cdf(x1) - level, cdf(x2) - level
    least_width = SMALLEST * np.abs(x2 - x1)
    resting = (f1 >= 0) | ~(f2 > 0) | (x1 == x2)
    root = np.where(f1 >= 0, x1, x2)  # what rounding has put beyond an end is at that end
    share = np.full(x1.shape, 0.5)
    for _ in range(MOST_STEPS):
        if resting.all():
            break
        x = np.where(resting, root, x1 + share * (x2 - x1))
        f = cdf(x) - level
        same = np.sign(f) == np.sign(f1)
        x3, f3 = np.where(same, x1, x2), np.where(same, f1, f2)
        x2, f2 = np.where(same, x2, x1), np.where(same, f2, f1)
        x1, f1 = x, f
        width = np.abs(x2 - x1)
        least = TOLERANCE * np.maximum(np.abs(x1), np.abs(x2)) + least_width
        ends_here = ~resting & ((f1 == 0) | (width <= 2 * least))
        root = np.where(ends_here, np.where(f1 == 0, x1, np.maximum(x1, x2)), root)
        resting = resting | ends_here
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            place, height = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
            trusted = (height**2 < place) & ((1 - height) ** 2 < 1 - place)
            curve = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
            margin = np.minimum(least / width, 0.5)
            share = np.clip(np.where(trusted & np.isfinite(curve), curve, 0.5), margin, 1 - margin)
    return np.where(resting, root, np.maximum(x1, x2))


# -- the least of a function of few numbers ---------------------------------------------------------------------------


def lowest(
    loss: Callable[[Array], float],
    starts: Array,
    *,
    first_step: float,
    rounds: int,
    x_tolerance: float,
    loss_tolerance: float,
) -> Array:
    """The best point [D] by Nelder and Mead's simplex search from several ``starts`` [K, D].

    ``first_step`` is the length of the sides of the first simplex, which must be larger than the tolerances.
    """
    options: dict[str, Any] = {"maxiter": rounds, "xatol": x_tolerance, "fatol": loss_tolerance}
    ends = []
    for start in starts:
        options["initial_simplex"] = start + first_step * np.eye(len(start) + 1, len(start), -1)
        ends.append(optimize.minimize(loss, start, method="Nelder-Mead", options=options))
    return np.asarray(min(ends, key=lambda end: end.fun).x)
