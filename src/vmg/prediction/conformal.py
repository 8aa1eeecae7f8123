"""Split-conformal correction: coverage that holds in finite samples, whatever the model (Vovk et al. 2005).

Held-out rows get scores that say how badly a target fits its prediction. The ⌈(n + 1) coverage⌉-th smallest of n scores
is exceeded by the score of a new row with probability at most 1 − coverage, on average over rows like these. So regions
of all targets with smaller scores cover as promised: intervals of one output, boxes of several outputs together, and
sets of classes. Scores of a *group* of rows promise it for that group (Mondrian).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CoverageError",
    "calibration_scores",
    "class_scores",
    "class_sets",
    "conformal_interval",
    "conformal_level",
    "conformal_region",
    "group_intervals",
    "ignorance_groups",
    "row_scores",
    "widened_interval",
]

Array = NDArray[np.float64]

BASE_COVERAGE = 0.5
"""Coverage of the interval whose width is the unit of scores by width."""


class CoverageError(ValueError):
    """A coverage that too few calibration rows can promise; the message says how many it takes."""


def calibration_scores(cdf_values: Array) -> Array:
    """Sorted scores |2F(y) − 1| of held-out targets [n, C]: the coverage of the central interval that just holds y.

    Well calibrated predictions have uniform scores.
    """
    return np.sort(np.abs(2 * cdf_values - 1), axis=0)


def conformal_level(scores: Array, coverage: float) -> Array:
    """The score that a new row stays below with probability ``coverage``, for each output [C], from sorted ones [n, C].

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
        prediction: a :class:`~vmg.prediction.StudentPrediction` or any other of numbers.
        scores: of :func:`calibration_scores`; None asks the model for ``coverage`` as it is.
    """
    if scores is None:
        return prediction.interval(coverage)
    return prediction.interval_at(conformal_level(scores, coverage))


# -- scores of rows ---------------------------------------------------------------------------------------------------


def row_scores(prediction: Any, y: Array, kind: str) -> Array:
    """Scores of held-out rows [n, C], not sorted: by ``coverage`` as :func:`calibration_scores`, or by ``width``.

    By width the score is the distance from the model's central interval of 50 %, negative inside, in units of that
    interval's width (normalised conformal quantile regression, Romano et al. 2019).
    """
    if kind == "coverage":
        return np.abs(2 * prediction.cdf(y).reshape(len(y), -1) - 1)
    low, high = _base(prediction)
    target = np.asarray(y, dtype=np.float64).reshape(low.shape)
    return np.maximum(low - target, target - high) / (high - low)


def _base(prediction: Any) -> tuple[Array, Array]:
    """Ends of the base interval, [N, C] each, never equal."""
    ends = prediction.interval(BASE_COVERAGE).reshape(prediction.n_rows, -1, 2)
    low, high = ends[..., 0], ends[..., 1]
    least = 1e-9 * np.maximum(np.abs(high), 1e-290)
    return low, np.maximum(high, low + least)


def widened_interval(prediction: Any, level: Array) -> Array:
    """The interval of all targets whose score by width is at most ``level`` [C]: [N, 2], or [N, C, 2]."""
    low, high = _base(prediction)
    middle, reach = 0.5 * (low + high), np.maximum(0.5 + np.asarray(level), 0.0) * (high - low)
    ends = np.stack([middle - reach, middle + reach], -1)
    smallest = prediction.interval_at(np.ones(1))[..., :1].reshape(prediction.n_rows, -1, 1)
    ends = np.maximum(ends, smallest)  # no bound below what the target can be
    return ends[:, 0] if prediction.interval(BASE_COVERAGE).ndim == 2 else ends


def conformal_region(prediction: Any, scores: Array, coverage: float) -> Array:
    """Boxes that hold all outputs of a row together with probability ``coverage``: [N, 2], or [N, C, 2].

    The score of a row is the largest over its outputs of ``scores`` [n, C] by coverage, so that outputs are equally
    likely to lie outside.
    """
    level = conformal_level(np.sort(scores.max(1))[:, None], coverage)
    return prediction.interval_at(np.broadcast_to(level, scores.shape[1:]))


# -- groups -----------------------------------------------------------------------------------------------------------


def ignorance_groups(prediction: Any) -> NDArray[np.str_]:
    """Whether more of a row's variance is noise or ignorance, [N]; several outputs count together."""
    noise, ignorance = (part.reshape(prediction.n_rows, -1) for part in _shares(prediction))
    return np.where(ignorance.mean(1) > noise.mean(1), "ignorance", "noise")


def _shares(prediction: Any) -> tuple[Array, Array]:
    total = prediction.std**2
    return prediction.aleatoric_std**2 / total, prediction.epistemic_std**2 / total


def group_intervals(
    prediction: Any,
    scores: Array,
    calibrated: NDArray[Any],
    groups: ArrayLike,
    coverage: float,
    kind: str,
) -> Array:
    """Intervals of rows in ``groups`` [N] from the ``scores`` [n, C] of calibration rows in the same group."""
    labels = np.asarray(groups)
    if labels.shape != (prediction.n_rows,):
        raise ValueError(f"groups must have one label for each of {prediction.n_rows} rows; got shape {labels.shape}")
    unknown = np.setdiff1d(labels, calibrated)
    if len(unknown):
        raise ValueError(f"groups must be among those of conformalize, {np.unique(calibrated)}; got {unknown}")
    found: Array | None = None
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        own = np.sort(scores[calibrated == label], axis=0)
        try:
            level = conformal_level(own, coverage)
        except CoverageError as error:
            raise CoverageError(f"group {label!s}: {error}") from error
        part = prediction.take(rows)
        ends = part.interval_at(level) if kind == "coverage" else widened_interval(part, level)
        if found is None:
            found = np.empty((prediction.n_rows, *ends.shape[1:]))
        found[rows] = ends
    assert found is not None
    return found


# -- classes ----------------------------------------------------------------------------------------------------------


def class_scores(probabilities: Array, position: NDArray[np.int64]) -> Array:
    """Scores 1 − p of the true classes, [n, 1], from probabilities [n, K] (Sadinle et al. 2019)."""
    return 1 - np.take_along_axis(probabilities, position[:, None], 1)


def class_sets(probabilities: Array, scores: Array, coverage: float) -> NDArray[np.bool_]:
    """Which classes are in the set of each row, [N, K]: those with a small score, and always the most probable one."""
    level = conformal_level(np.sort(scores, axis=0), coverage)
    inside = 1 - probabilities <= level
    inside[np.arange(len(probabilities)), probabilities.argmax(1)] = True
    return inside
