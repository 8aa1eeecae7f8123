"""Checks of rows and targets, and what estimators read out of a predictive distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vmg.fit.design import Standardiser
from vmg.fit.variational.targets import ClassTargets, NumericTargets
from vmg.prediction import row_pieces
from vmg.prediction.conformal import calibration_scores, check_groups, row_levels

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MAX_DENSE_CELLS", "ReadsClasses", "ReadsNumbers", "ReadsRows", "dense"]

Array = NDArray[np.float64]

MAX_DENSE_CELLS = 2**27
"""Most numbers of a sparse table, zeros included; more would take over a gigabyte."""


def dense(X: Any) -> Any:
    """A sparse table as an array, anything else as it is; a ValueError where it is too large for that."""
    if not sparse.issparse(X):
        return X
    cells = int(np.prod(X.shape, dtype=np.float64))
    if cells > MAX_DENSE_CELLS:
        raise ValueError(
            f"a sparse X must have at most {MAX_DENSE_CELLS:,} cells, zeros included, as it is made dense; got "
            f"{X.shape[0]:,} rows of {X.shape[1]:,}. Encode fewer categories, or use vmg.FrameRegressor."
        )
    return X.toarray()


class MeanAndStd(tuple[NDArray[Any], NDArray[Any]]):
    """A mean and a standard deviation, which some of scikit-learn's tools take for one array."""

    def __getattr__(self, name: str) -> Any:
        if name in ("ndim", "shape", "reshape"):
            raise TypeError(
                "predict with return_std=True gives a mean and a standard deviation, which TransformedTargetRegressor "
                "cannot transform back; use likelihood='lognormal', or predict_interval of the inner regressor"
            )
        raise AttributeError(f"a mean and a standard deviation have no attribute {name!r}")


class ReadsRows(ABC):
    """Checks rows and takes their distributions in pieces, in memory that does not grow with the rows."""

    seed_: int

    @abstractmethod
    def _distribution(self, rows: Array) -> Any:
        """The predictive distribution of checked rows."""

    def pred_dist(self, X: Any) -> Any:
        """The whole predictive distribution of each row of X.

        Returns
        -------
        Prediction or ClassPrediction
            In the target's own units, or over ``classes_``.
        """
        check_is_fitted(self, "seed_")
        return self._distribution(self._check_X(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags

    def _check_X(self, X: Any) -> Array:
        return validate_data(self, dense(X), dtype=np.float64, order="C", reset=False)

    def _in_pieces(self, X: Any, *reads: Callable[[Any], NDArray[Any]]) -> list[NDArray[Any]]:
        """What each function reads from the predictive distributions of rows."""
        check_is_fitted(self, "seed_")
        rows = self._check_X(X)
        parts = (self._distribution(rows[piece]) for piece in row_pieces(len(rows)))
        read_out = [[read(part) for read in reads] for part in parts]
        return [np.concatenate(pieces) for pieces in zip(*read_out, strict=True)]


class ReadsNumbers(ReadsRows):
    """Means, intervals, quantiles and draws of numeric targets."""

    n_outputs_: int
    target_scaling_: Standardiser
    conformal_scores_: Array | None  # of calibration rows, [n, C]
    conformal_groups_: NDArray[Any] | None  # their groups [n]

    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray[Any]]:
        """Validated X [N, D] and y, with what must be remembered of them."""
        # one memory order, so that frames and arrays of the same numbers give the same bits
        options = {"dtype": np.float64, "order": "C", "reset": reset}
        X, y = validate_data(self, dense(X), y, multi_output=True, y_numeric=True, **options)
        y = np.asarray(y, dtype=np.float64)
        n_outputs = 1 if y.ndim == 1 else y.shape[1]
        if reset:
            self.n_outputs_, self._single_output = n_outputs, y.ndim == 1
            self._forget_calibration()
        elif n_outputs != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} outputs, as in the first call; got shape {y.shape}")
        return X, y

    def _forget_calibration(self) -> None:
        """Give the model's own intervals again: scores are of the model before."""
        self.conformal_scores_ = self.conformal_groups_ = None

    def _learn_targets(self, y: NDArray[Any], weight: Array | None) -> None:
        """Remember the targets' units of the training rows."""
        self.target_scaling_ = Standardiser.fit(y.reshape(len(y), -1), weight)

    def _n_targets(self) -> int:
        return self.n_outputs_

    def _targets(self) -> NumericTargets:
        return NumericTargets(self.target_scaling_, self._single_output)

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The mean of the target at each row of X, [N] or [N, C].

        Parameters
        ----------
        X : array-like [N, D]
        return_std : bool
            Also give the standard deviation, [N] or [N, C].
        return_cov : bool
            Also give the covariance between all rows, noise on its diagonal: [N, N], or [N, N, C].
        """
        if return_std and return_cov:
            raise ValueError("at most one of return_std and return_cov can be True; got both")
        if return_cov:
            prediction = self.pred_dist(X)
            return prediction.mean, prediction.row_covariance()
        if return_std:
            return MeanAndStd(self._in_pieces(X, lambda part: part.mean, lambda part: part.std))
        [mean] = self._in_pieces(X, lambda part: part.mean)
        return mean

    def predict_interval(self, X: Any, coverage: float = 0.9, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Lower and upper end of the central interval: [N, 2], or [N, C, 2] for several outputs.

        After :meth:`conformalize` the stated coverage holds on average over rows like the calibration rows; where it
        was given groups, over rows of each group.

        Parameters
        ----------
        X : array-like [N, D]
        coverage : float
        groups : array-like [N]
            Labels of the rows, where :meth:`conformalize` was given groups.
        """
        check_is_fitted(self, "seed_")
        rows = self._check_X(X)
        if self.conformal_scores_ is None:
            if groups is not None:
                raise ValueError("groups are for a model that conformalize was given groups for")
            pieces = (self._distribution(rows[piece]).interval(coverage) for piece in row_pieces(len(rows)))
        else:
            levels = row_levels(self.conformal_scores_, self.conformal_groups_, coverage, groups, len(rows))
            pieces = (
                self._distribution(rows[piece]).interval_at(levels if groups is None else levels[piece])
                for piece in row_pieces(len(rows))
            )
        return np.concatenate(list(pieces))

    def predict_quantiles(self, X: Any, alpha: ArrayLike) -> NDArray[Any]:
        """Quantiles at the levels alpha: [N, Q], or [N, C, Q] for several outputs."""
        levels = np.atleast_1d(alpha)
        [quantiles] = self._in_pieces(X, lambda part: np.moveaxis(part.quantile(levels), 0, -1))
        return quantiles

    def sample(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> NDArray[Any]:
        """Draws of the target, noise included: [n_samples, N] or [n_samples, N, C]."""
        check_is_fitted(self, "seed_")
        return self.pred_dist(X).sample(n_samples, self.seed_ if random_state is None else random_state)

    def conformalize(self, X: Any, y: Any, *, groups: ArrayLike | None = None) -> Self:
        """Calibrate intervals on rows that ``fit`` has not seen, so that their coverage holds in finite samples.

        Several outputs are calibrated one by one: the coverage is that of each output, not of all together. Changes
        :meth:`predict_interval` alone. Calling it again replaces the calibration; ``fit`` and
        ``partial_fit`` forget it.

        Parameters
        ----------
        X, y
            Rows like those to come, as in ``fit``.
        groups : array-like [N], optional
            A label for each row: the coverage then holds within each group of rows, and :meth:`predict_interval` needs
            the groups of its rows.
        """
        check_is_fitted(self, "seed_")
        rows, y = self._check_data(X, y, reset=False)
        labels = None if groups is None else check_groups(groups, len(rows))
        self.conformal_scores_ = calibration_scores(self._distribution(rows), y)
        self.conformal_groups_ = labels
        return self


class ReadsClasses(ReadsRows):
    """Probabilities and labels of classes."""

    classes_: NDArray[Any]
    _announced: NDArray[Any] | None = None  # classes of the first partial_fit, during that call

    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray[Any]]:
        """Validated X [N, D] and y, with what must be remembered of them."""
        X, y = validate_data(self, dense(X), y, dtype=np.float64, order="C", reset=reset)
        check_classification_targets(y)
        found = np.unique(y)
        if reset:
            classes = found if self._announced is None else self._announced
            if len(classes) < 2:
                raise ValueError(f"y must hold at least 2 classes; got one class, {classes[0]!r}")
            if getattr(self, "warm_start", False) and not np.array_equal(classes, getattr(self, "classes_", classes)):
                raise ValueError(f"warm_start needs the classes of the last fit, {self.classes_}; got {classes}")
            self.classes_ = classes
        unknown = np.setdiff1d(found, self.classes_)
        if len(unknown):
            raise ValueError(f"y must be among the classes {self.classes_}; got {unknown}")
        return X, y

    @contextmanager
    def _announce(self, classes: Any) -> Iterator[None]:
        """Let the fit inside the block know all classes that will ever come; None: those of its rows."""
        self._announced = None if classes is None else np.unique(classes)
        try:
            yield
        finally:
            del self._announced

    def _check_announced(self, classes: Any) -> None:
        """Refuse classes in a later call that are not those of the first."""
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")

    def _learn_targets(self, y: NDArray[Any], weight: Array | None) -> None:
        """Classes have no units."""
        return None

    def _n_targets(self) -> int:
        return len(self.classes_)

    def _targets(self) -> ClassTargets:
        return ClassTargets(self.classes_)

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probability of each class, [N, K], in the order of ``classes_``."""
        [probabilities] = self._in_pieces(X, lambda part: part.probabilities)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        [label] = self._in_pieces(X, lambda part: part.label)
        return label
