"""Split-conformal correction: coverage that holds in finite samples, whatever the model (Vovk et al. 2005).

Held-out rows get scores that say how badly a target fits its prediction. The ⌈(n + 1) coverage⌉-th smallest of n scores
is exceeded by the score of a new row with probability at most 1 − coverage, on average over rows like these. So the set
of all targets with smaller scores covers as promised: an interval of each output, or a set of classes. Scores of a
*group* of rows promise it for that group (Mondrian).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CoverageError",
    "calibration_scores",
    "check_groups",
    "class_scores",
    "class_sets",
    "conformal_level",
    "row_levels",
]

Array = NDArray[np.float64]


class CoverageError(ValueError):
    """A coverage that too few calibration rows can promise; the message says how many it takes."""


def calibration_scores(prediction: Any, y: Any) -> Array:
    """Scores |2F(y) − 1| of held-out targets [n, C]: the coverage of the central interval that just holds y.

    Well calibrated predictions have uniform scores.
    """
    return np.abs(2 * prediction.cdf(y).reshape(len(y), -1) - 1)


def class_scores(probabilities: Array, position: NDArray[np.int64]) -> Array:
    """Scores 1 − p of the true classes, [n, 1], from probabilities [n, K] (Sadinle et al. 2019)."""
    return 1 - np.take_along_axis(probabilities, position[:, None], 1)


def conformal_level(scores: Array, coverage: float) -> Array:
    """The score that a new row stays below with probability ``coverage``, for each output [C], from scores [n, C].

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
    return np.partition(scores, rank - 1, axis=0)[rank - 1]


def check_groups(groups: ArrayLike, n_rows: int) -> NDArray[Any]:
    """Labels of rows as an array [N]."""
    labels = np.asarray(groups)
    if labels.shape != (n_rows,):
        raise ValueError(f"groups must have one label for each of {n_rows} rows; got shape {labels.shape}")
    return labels


def row_levels(
    scores: Array, calibrated: NDArray[Any] | None, coverage: float, groups: ArrayLike | None, n_rows: int
) -> Array:
    """The conformal level of each row and output, [1, C], or [N, C] for rows in groups, by scores [n, C].

    ``calibrated`` has the groups of the calibration rows [n], if these have groups, and ``groups`` those of new rows.
    """
    if (groups is None) != (calibrated is None):
        raise ValueError("groups of the rows are needed where conformalize was given groups, and only there")
    if groups is None or calibrated is None:
        return conformal_level(scores, coverage)[None]
    labels = check_groups(groups, n_rows)
    unknown = np.setdiff1d(labels, calibrated)
    if len(unknown):
        raise ValueError(f"groups must be among those of conformalize, {np.unique(calibrated)}; got {unknown}")
    levels = np.empty((n_rows, scores.shape[1]))
    for label in np.unique(labels):
        try:
            levels[labels == label] = conformal_level(scores[calibrated == label], coverage)
        except CoverageError as error:
            raise CoverageError(f"group {label!s}: {error}") from error
    return levels


def class_sets(probabilities: Array, level: Array) -> NDArray[np.bool_]:
    """Which classes are in the set of each row, [N, K]: those with a small score, and always the most probable one."""
    inside = 1 - probabilities <= level
    inside[np.arange(len(probabilities)), probabilities.argmax(1)] = True
    return inside
