"""Conformal intervals of numbers by group, by width and of all outputs together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from vmg.estimators.reading import ReadsNumbers
from vmg.prediction import Prediction, row_pieces
from vmg.prediction.conformal import (
    conformal_interval,
    conformal_region,
    group_intervals,
    ignorance_groups,
    row_scores,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ConformalNumbers"]

ONE_GROUP = "all rows"
SCORES = ("coverage", "width")


class ConformalNumbers(ReadsNumbers):
    """Intervals that cover as promised in finite samples, also within groups and for several outputs at once."""

    conformal_rows_: NDArray[Any] | None  # scores of calibration rows [n, C], in their order
    conformal_groups_: NDArray[Any] | None  # their groups [n]
    conformal_kind_: str  # of scores

    def conformalize(self, X: Any, y: Any, *, groups: ArrayLike | str | None = None, score: str = "coverage") -> Self:
        """Calibrate intervals on rows that ``fit`` has not seen, so that their coverage holds in finite samples.

        Changes :meth:`predict_interval` and :meth:`predict_region` alone. Calling it again replaces the calibration;
        ``fit`` and ``partial_fit`` forget it.

        Parameters
        ----------
        X, y
            Rows like those to come, as in ``fit``.
        groups : array-like [N] or "ignorance", optional
            A label for each row: the coverage then holds within each group of rows, and :meth:`predict_interval` needs
            the groups of its rows. "ignorance" makes two groups, rows whose variance is mostly noise and rows where it
            is mostly ignorance, and needs nothing later.
        score : {"coverage", "width"}
            How intervals change: "coverage" asks the model for another coverage, "width" makes its own intervals wider
            or narrower by a factor.
        """
        check_is_fitted(self, "seed_")
        if score not in SCORES:
            raise ValueError(f"score must be one of {SCORES}; got {score!r}")
        _, y = self._check_data(X, y, reset=False)
        prediction = self.pred_dist(X)
        if isinstance(prediction, Prediction) and (groups is not None or score != "coverage"):
            raise ValueError("groups and score are for models without pseudo-points; got n_pseudo")
        scores = row_scores(prediction, y, score)
        if isinstance(groups, str):
            if groups != "ignorance":
                raise ValueError(f"groups must be labels of rows or 'ignorance'; got {groups!r}")
            labels: NDArray[Any] = ignorance_groups(prediction)
        else:
            labels = np.full(len(y), ONE_GROUP) if groups is None else np.asarray(groups)
            if labels.shape != (len(y),):
                raise ValueError(f"groups must have one label for each of {len(y)} rows; got shape {labels.shape}")
        self.conformal_rows_, self.conformal_kind_ = scores, score
        self.conformal_groups_ = None if groups is None else labels
        self._groups_of_ignorance = isinstance(groups, str)
        self.conformal_scores_ = np.sort(scores, axis=0)
        return self

    def predict_interval(self, X: Any, coverage: float = 0.9, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Lower and upper end of the central interval: [N, 2], or [N, C, 2] for several outputs.

        After :meth:`conformalize` the stated coverage holds on average over rows like the calibration rows; where it
        was given groups, over rows of each group.

        Parameters
        ----------
        X : array-like [N, D]
        coverage : float
        groups : array-like [N]
            Of the rows, where :meth:`conformalize` was given groups.
        """
        check_is_fitted(self, "seed_")
        rows = self._check_X(X)
        grouped = self.conformal_scores_ is not None and getattr(self, "conformal_groups_", None) is not None
        by_width = self.conformal_scores_ is not None and getattr(self, "conformal_kind_", "coverage") == "width"
        if groups is not None and not grouped:
            raise ValueError("groups are for a model that conformalize was given groups for")
        given = None if groups is None else np.asarray(groups)
        if given is not None and given.shape != (len(rows),):
            raise ValueError(f"groups must have one label for each of {len(rows)} rows; got shape {given.shape}")
        found = []
        for piece in row_pieces(len(rows)):
            part = self._distribution(rows[piece])
            if grouped or by_width:
                found.append(self._by_group(part, None if given is None else given[piece], coverage))
            else:
                found.append(conformal_interval(part, self.conformal_scores_, coverage))
        return np.concatenate(found)

    def _by_group(self, part: Any, labels: NDArray[Any] | None, coverage: float) -> NDArray[Any]:
        assert self.conformal_rows_ is not None
        calibrated = self.conformal_groups_
        if calibrated is None:
            calibrated, labels = np.full(len(self.conformal_rows_), ONE_GROUP), np.full(part.n_rows, ONE_GROUP)
        elif self._groups_of_ignorance:
            labels = ignorance_groups(part)
        elif labels is None:
            raise ValueError("groups of the rows are needed, as conformalize was given groups")
        return group_intervals(part, self.conformal_rows_, calibrated, labels, coverage, self.conformal_kind_)

    def predict_region(self, X: Any, coverage: float = 0.9) -> NDArray[Any]:
        """Boxes that hold all outputs of a row *together* with probability ``coverage``: [N, 2], or [N, C, 2].

        Needs :meth:`conformalize` with scores by coverage; holds in finite samples, on average over rows.
        """
        check_is_fitted(self, "seed_")
        scores = None if self.conformal_scores_ is None else getattr(self, "conformal_rows_", None)
        if scores is None or self.conformal_kind_ != "coverage":
            raise ValueError("predict_region needs conformalize with scores by coverage first")
        [region] = self._in_pieces(X, lambda part: conformal_region(part, scores, coverage))
        return region
