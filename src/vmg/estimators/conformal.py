"""Split-conformal correction: coverage that holds in finite samples, whatever the model (Vovk et al. 2005).

With several outputs each is calibrated on its own: its intervals cover it as promised, on average over rows. Nothing is
promised of all outputs at once: intervals of 90 % hold C outputs together with anything from 1 − 0.1 C up.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["calibration_scores", "conformal_level"]

Array = NDArray[np.float64]


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
        raise ValueError(
            f"conformalize needs at least {math.ceil(coverage / (1 - coverage) - 1e-9)} rows for coverage {coverage}; "
            f"got {n}"
        )
    return scores[rank - 1]
