"""Split-conformal correction: coverage that holds in finite samples, whatever the model (Vovk et al. 2005).

With several outputs each is calibrated on its own: its intervals cover it as promised, on average over rows. Nothing is
promised of all outputs at once: intervals of 90 % hold C outputs together with anything from 1 − 0.1 C up.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CoverageError", "calibration_scores", "conformal_interval", "conformal_level"]

Array = NDArray[np.float64]


class CoverageError(ValueError):
    """A coverage that too few calibration rows can promise; the message says how many it takes."""


def calibration_scores(cdf_values: Array) -> Array:
    """Sorted scores |2F(y) − 1| of held-out targets [n, C]: the coverage of the central interval that just holds y.

    Well calibrated predictions have uniform scores.
    """
    return np.sort(np.abs(2 * cdf_values - 1), axis=0)


def conformal_level(scores: Array, coverage: float) -> Array:
    """The nominal coverage to ask the model for so that the true one is at least ``coverage``, for each output [C].

    The ⌈(n + 1) coverage⌉-th smallest score; if n is too small for that rank, the interval must be everything.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
    n = len(scores)
    rank = max(1, math.ceil((n + 1) * coverage - 1e-9))
    if rank > n:
        raise CoverageError(
            f"conformalize needs at least {math.ceil(coverage / (1 - coverage) - 1e-9)} rows for coverage {coverage}; "
            f"got {n}"
        )
    return scores[rank - 1]


def conformal_interval(prediction: Any, scores: Array | None, coverage: float) -> Array:
    """The interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2].

    Args:
        prediction: a :class:`~vmg.prediction.student.StudentPrediction` or :class:`~vmg.prediction.Prediction`.
        scores: of :func:`calibration_scores`; None asks the model for ``coverage`` as it is.
    """
    if scores is None:
        return prediction.interval(coverage)
    return prediction.interval_at(conformal_level(scores, coverage))
