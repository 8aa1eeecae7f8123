"""``FrameRegressor`` and ``FrameClassifier``: scikit-learn estimators of raw data frames, with holes and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from vmg.estimators.table_model import TableModel
from vmg.tables.cells import as_frame
from vmg.tables.choices import TableChoices
from vmg.tables.target import Task

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FrameClassifier", "FrameRegressor"]

TARGET = "target"


class _TableEstimator(BaseEstimator):
    """What both share: parameters, and frames in place of arrays."""

    model_: TableModel

    def __init__(
        self,
        *,
        categorical: Sequence[str] = (),
        ignore: Sequence[str] = (),
        date_formats: Mapping[str, str] | None = None,
        decimal: str | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.categorical = categorical
        self.ignore = ignore
        self.date_formats = date_formats
        self.decimal = decimal
        self.options = options
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """X as a frame whose columns have the names of the fit."""
        if isinstance(X, np.ndarray | list | tuple):
            X = pd.DataFrame(check_array(X, dtype=None, ensure_all_finite=False))
        elif not isinstance(X, pd.DataFrame):
            try:
                X = as_frame(X)
            except ValueError:
                X = pd.DataFrame(check_array(X, dtype=None, ensure_all_finite=False))
        validate_data(self, X, skip_check_array=True, reset=reset)
        return X.rename(columns=lambda name: name if isinstance(name, str) else f"x{name}").reset_index(drop=True)

    def _fit_model(self, X: Any, y: NDArray[Any], task: Task) -> Self:
        frame = self._frame(X, reset=True)
        check_consistent_length(frame, y)
        if len(frame) < 2:
            raise ValueError(f"X must have several rows to fit to; got n_samples={len(frame)}")
        target = TARGET
        while target in frame.columns:
            target += "_"
        choices = TableChoices().changed(
            categorical=self.categorical, ignore=self.ignore, date_formats=self.date_formats, decimal=self.decimal
        )
        seed = self.random_state
        options = {**(self.options or {}), **({} if seed is None else {"random_state": seed})}
        self.model_ = TableModel.fit(frame.assign(**{target: y}), target, task=task, choices=choices, options=options)
        return self

    def pred_dist(self, X: Any) -> Any:
        """The whole predictive distribution of each row; a row with unknown cells is a mixture over their values."""
        check_is_fitted(self, "model_")
        return self.model_.pred_dist(self._frame(X, reset=False))

    def predict_frame(self, X: Any, coverage: float = 0.9) -> pd.DataFrame:
        """Predictions with intervals or probabilities, familiarity and flags, as :meth:`TableModel.predict_frame`."""
        check_is_fitted(self, "model_")
        return self.model_.predict_frame(self._frame(X, reset=False), coverage)


class FrameRegressor(RegressorMixin, _TableEstimator):
    """Regression on a raw data frame: numbers, words, dates and holes, inside scikit-learn's own tools.

    Parameters
    ----------
    categorical, ignore : sequence of str
        Columns whose values are names, and columns to leave out.
    date_formats : mapping of str to str, optional
        Such as ``{"sold": "%d/%m/%Y"}``.
    decimal : {".", ","} or None
        What numbers in texts have; None: found out.
    options : mapping, optional
        Parameters of :class:`~vmg.TableRegressor`, such as ``{"n_members": 5, "likelihood": "gamma"}``.
    random_state : int or None
        Same seed, same numbers.

    Attributes
    ----------
    model_ : TableModel
        The fitted model; ``model_.notes`` says what was done with the columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from vmg import FrameRegressor
    >>> X = pd.DataFrame({"area": [50, 70, None, 90, 40, 60] * 5, "city": ["Rome", "Oslo", None] * 10})
    >>> y = [100, 150, 120, 190, 85, 130] * 5
    >>> model = FrameRegressor(options={"max_iter": 20, "n_members": 2}, random_state=0).fit(X, y)
    >>> model.predict_interval(X[:2]).shape
    (2, 2)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the rows of a data frame X with targets y."""
        _require_y(y)
        target = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return self._fit_model(X, column_or_1d(target, warn=True), "regression")

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the target at each row; with ``return_std`` also the standard deviation."""
        found = self.predict_frame(X)
        mean = found["mean"].to_numpy()
        return (mean, found["std"].to_numpy()) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.9) -> NDArray[np.float64]:
        """Lower and upper end of the central interval, [N, 2]."""
        return self.predict_frame(X, coverage)[["lower", "upper"]].to_numpy()

    def predict_quantiles(self, X: Any, alpha: ArrayLike) -> NDArray[np.float64]:
        """Quantiles at the levels alpha, [N, Q]."""
        return np.moveaxis(self.pred_dist(X).quantile(np.atleast_1d(alpha)), 0, -1)


class FrameClassifier(ClassifierMixin, _TableEstimator):
    """Classification on a raw data frame; parameters as in :class:`FrameRegressor`.

    Attributes
    ----------
    classes_ : array [K]
        The classes, sorted.
    model_ : TableModel
        The fitted model, whose own classes are ``classes_`` as texts or whole numbers.
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to the rows of a data frame X with classes y."""
        _require_y(y)
        labels = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must hold at least 2 classes; got one class, {self.classes_[0]!r}")
        return self._fit_model(X, places, "classification")

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each class, [N, K], in the order of ``classes_``."""
        found = self.predict_frame(X)
        return found[[f"probability_{k}" for k in range(len(self.classes_))]].to_numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        place = self.predict_proba(X).argmax(1)
        return self.classes_[place]


def _require_y(y: Any) -> None:
    if y is None:
        raise ValueError("fit requires y to be passed, but the target y is None")
