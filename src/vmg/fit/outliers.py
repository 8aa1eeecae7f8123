"""Targets so far beyond all others that they must be mistakes: training leaves their rows out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmg.fit.targets import log_shift

__all__ = ["ordinary_rows"]

Array = NDArray[np.float64]

REACH = 30.0  # times the distance from the median that nine of ten targets keep
LOG_REACH = 6.0  # the same, of the logarithm of amounts
AMOUNTS = ("lognormal", "gamma", "poisson", "negative-binomial")


def ordinary_rows(y: Array, likelihood: str) -> NDArray[np.bool_]:
    """Rows [N] whose targets [N] or [N, C] are not absurd, on the scale that the likelihood works on.

    A target is absurd beyond 30 times the ninth decile of the distance from the median; for amounts these are distances
    of logarithms, 6 times the ninth decile, and only large ones count. Fractions, grades and bounds never are.
    """
    columns = y.reshape(len(y), -1)
    if likelihood in AMOUNTS:
        logs = np.log(columns + log_shift(y))
        return np.asarray((logs - np.median(logs, axis=0) <= _limit(logs, LOG_REACH)).all(1))
    if likelihood in ("student", "normal", "mixture"):
        return np.asarray((np.abs(columns - np.median(columns, axis=0)) <= _limit(columns, REACH)).all(1))
    return np.ones(len(y), dtype=np.bool_)


def _limit(columns: Array, reach: float) -> Array:
    limit = reach * np.quantile(np.abs(columns - np.median(columns, axis=0)), 0.9, axis=0)
    return np.where(limit > 0, limit, np.inf)  # nine of ten are the same: the rest cannot be told from mistakes
