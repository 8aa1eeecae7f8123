"""Noise, ignorance and tails, learned from rows that their predictors have not seen.

A held-out row has an error r and a *stated* variance u of the function: the variance of its output layer's weights
and the disagreement between members that have not seen the row. The target's distribution is

    y ~ Student t with ν degrees of freedom, centre f, squared scale σ² + c u.

σ², c and ν maximise the density of held-out errors: those of random folds and those of whole regions count alike. So c
says by how much the members' own ignorance must be stretched to hold where there are no rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = ["NORMAL_DEGREES", "Calibration", "HeldOut", "calibrate", "t_log_density"]

Array = NDArray[np.float64]

FEWEST_DEGREES = 3.0
"""Fewest degrees of freedom: below, a standard deviation says little."""
MOST_DEGREES = 100.0
NORMAL_DEGREES = 1e6
"""A Student t of so many is a normal distribution."""
STRETCH_ROWS, DEGREES_ROWS = 10.0, 3.0
"""Rows that the priors log c ~ N(0, 1) and log ν ~ N(2, 2²) count as: few held-out rows change c little."""


class HeldOut(NamedTuple):
    """Errors of one output on rows that their predictors have not seen, each [n]."""

    error: Array
    variance: Array
    weight: Array


@dataclass(frozen=True)
class Calibration:
    """How one output's error is distributed: t with ``degrees``, squared scale noise + stretch · variance."""

    noise: float
    stretch: float
    degrees: float


def t_log_density(error: Array, squared_scale: Array, degrees: float) -> Array:
    """Log density of a Student t around zero."""
    half = 0.5 * (degrees + 1)
    normaliser = special.gammaln(half) - special.gammaln(0.5 * degrees) - 0.5 * math.log(math.pi * degrees)
    return normaliser - 0.5 * np.log(squared_scale) - half * np.log1p(error**2 / (degrees * squared_scale))


def calibrate(
    folds: HeldOut, regions: HeldOut | None, least_noise: float, fixed_degrees: float | None = None
) -> Calibration:
    """Fit noise, stretch and degrees to held-out errors; the noise is at least what members find on rows they saw.

    ``fixed_degrees`` leaves the tails as they are asked for.
    """
    weight = folds.weight / folds.weight.sum()
    n_rows = len(folds.error)
    spread = float(np.sqrt(weight @ folds.error**2))
    floor = math.log(max(least_noise, 1e-12 * spread**2, np.finfo(np.float64).tiny))

    def parts(values: Array) -> tuple[float, float, float]:
        log_noise, log_stretch, log_degrees = values
        degrees = fixed_degrees or FEWEST_DEGREES + math.exp(min(log_degrees, math.log(MOST_DEGREES)))
        return math.exp(max(log_noise, floor)), math.exp(np.clip(log_stretch, -20, 20)), degrees

    def loss(values: Array) -> float:
        noise, stretch, degrees = parts(values)
        total = -float(weight @ t_log_density(folds.error, noise + stretch * folds.variance, degrees))
        if regions is not None and len(regions.error):
            inside = t_log_density(regions.error, noise + stretch * regions.variance, degrees)
            total -= float(np.average(inside, weights=regions.weight))
        prior = STRETCH_ROWS * values[1] ** 2 + DEGREES_ROWS * ((values[2] - 2) / 2) ** 2
        return total + 0.5 * prior / n_rows

    typical = 2 * math.log(max(float(np.median(np.abs(folds.error))), 1e-6 * spread, np.finfo(np.float64).tiny) * 1.5)
    starts = [np.array([max(typical, floor), log_stretch, 2.0]) for log_stretch in (0.0, 2.0)]
    options = {"maxiter": 300, "xatol": 1e-3, "fatol": 1e-6}
    found = [optimize.minimize(loss, start, method="Nelder-Mead", options=options) for start in starts]
    best = min(found, key=lambda result: float(result.fun))
    return Calibration(*parts(best.x))
