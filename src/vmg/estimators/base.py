"""Base of all estimators: a fit that happens whole or not at all, checks of rows and targets, and predictions."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, fields
from numbers import Integral
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from sklearn.utils.validation import _check_y as check_targets

from vmg.estimators.documents import decode_attributes, encode_attributes, from_document, to_document
from vmg.fit.design import Standardiser
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.model_file import Document, ModelFileError, Tensors, from_bytes, to_bytes, write
from vmg.prediction import ClassPrediction, row_pieces
from vmg.prediction.conformal import calibration_scores, check_groups, class_scores, class_sets, row_levels
from vmg.tables.cells import as_frame
from vmg.tables.inputs import EncodedRows, TableInputs
from vmg.training import Callback, History, TrainingError, print_progress

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DRAWS", "Array", "ClassesMixin", "EstimatorBase", "NumbersMixin", "draw_seed", "parameter", "to_dense"]

Array = NDArray[np.float64]

FITTED = "fitted"  # key of the state that is kept or sent, beside the parameters
CHECKED_ROWS = 8  # at which a fitted model must be finite
MIN_WEIGHT = 1.5  # sum of the weights of all rows below which they were hardly meant to count rows

DRAWS = Interval(Integral, 1, 10_000, closed="both")
"""Posterior draws behind a prediction, which takes time and memory in proportion."""

MAX_DENSE_CELLS = 2**27  # of a sparse table, zeros included; more would take over a gigabyte


def parameter(default: Any, *allowed: Any) -> Any:
    """A field of an estimator that is a parameter: its default, and what scikit-learn allows it to be."""
    return field(default=default, metadata={"allowed": allowed})


class EstimatorBase(BaseEstimator, ABC):
    """Fits whole or not at all, and reads predictions in pieces, in memory that does not grow with the rows.

    Final classes are dataclasses, whose ``__init__`` scikit-learn reads; fields without ``init`` are set by ``fit``.
    """

    hidden_layer_sizes: Any
    learning_rate_init: float
    random_state: int | np.random.RandomState | None
    verbose: bool | int

    seed_: int
    history_: History
    n_features_in_: int
    input_scaling_: Standardiser
    inputs_: TableInputs | None  # how rows that are not all numbers are read
    conformal_scores_: Array | None  # of calibration rows, [n, C]
    conformal_groups_: NDArray[Any] | None  # their groups [n]

    _callbacks: tuple[Callback, ...] = ()  # of the present call of fit
    _min_rows: ClassVar[int] = 2  # of a fit

    @property
    def _parameter_constraints(self) -> dict[str, list[Any]]:
        """Values that parameters may take, as scikit-learn checks them."""
        return {one.name: list(one.metadata["allowed"]) for one in fields(self) if one.init}

    # -- what final classes say ---------------------------------------------------------------------------------------

    @abstractmethod
    def _check_y(self, y: Any, *, reset: bool) -> NDArray[Any]:
        """Validated targets, with what must be remembered of them."""

    @abstractmethod
    def _fit(self, X: Any, y: NDArray[Any], weight: Array | None) -> Array:
        """Fit to checked rows, set every fitted attribute, and give back the rows' features."""

    @abstractmethod
    def _update(self, X: Array, y: NDArray[Any], weight: Array | None) -> Array:
        """Learn from features of more rows, and give them back."""

    @abstractmethod
    def _predict_features(self, X: Array) -> Any:
        """The predictive distributions of rows of numbers."""

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Fit to rows X [N, D] of numbers with targets or classes y [N], or targets [N, C], in any units.

        An interrupted or refused fit leaves the model as it was. A row with weight 2 counts as two rows. Callbacks are
        called with a :class:`~vmg.training.Progress` as training goes; one that returns True ends it.
        """
        with self._whole_or_not_at_all(callbacks):
            X, y = self._check_data(X, y, reset=True)
            X, y, weight = drop_unweighted_rows(X, y, sample_weight)
            if len(X) < self._min_rows:
                raise ValueError(f"a fit needs at least {self._min_rows} rows; got n_samples={len(X)}")
            self.seed_ = draw_seed(self.random_state)
            self._learn(self._fit, X, y, weight)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()) -> Self:
        """Update with new rows only, given as in ``fit``; the first call is a ``fit``.

        Units, hidden layers and calibration of a table estimator stay those of the first call, and its output layers
        are conditioned on the new rows without training. That is exact where they are integrated out; other likelihoods
        take the posterior so far as a prior, so the order and the size of batches change the result a little. Networks
        of the paper train, with the posterior so far as the prior. Forgets a conformal calibration, as ``fit`` does.
        """
        if not hasattr(self, "seed_"):
            return self.fit(X, y, sample_weight, callbacks=callbacks)
        with self._whole_or_not_at_all(callbacks):
            rows, y = self._check_data(X, y, reset=False)
            features = rows if isinstance(rows, np.ndarray) else rows.features
            self._learn(self._update, *drop_unweighted_rows(features, y, sample_weight))
        return self

    @contextmanager
    def _whole_or_not_at_all(self, callbacks: Sequence[Callback]) -> Iterator[None]:
        """Keep the attributes as they were unless the block ends without an exception, Ctrl-C included.

        Attributes are put back, not what they refer to: the block makes new objects and changes none of the old ones.
        Gradients are on in the block, whatever PyTorch's mode is around it.
        """
        before = dict(self.__dict__)
        try:
            self._validate_params()
            self._callbacks = (*callbacks, *([print_progress] if self.verbose else ()))
            self.conformal_scores_ = self.conformal_groups_ = None  # they were of the model before
            with torch.inference_mode(False), torch.enable_grad():
                yield
            del self._callbacks
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _learn(self, learn: Callable[..., Array], X: Any, y: NDArray[Any], weight: Array | None) -> None:
        """Learn from rows; a TrainingError where that leaves networks which are not finite at the first of them."""
        finite = False
        with suppress(NotPositiveDefiniteError):  # of features that are not finite
            features = learn(X, y, weight)[:CHECKED_ROWS]
            with suppress(ValueError), np.errstate(all="ignore"):  # of a layer whose inputs are not finite
                prediction = self._predict_features(features)
                numbers = prediction.probabilities if isinstance(prediction, ClassPrediction) else prediction.mean
                finite = bool(np.isfinite(numbers).all())
        if not finite:
            rate = self.learning_rate_init
            raise TrainingError(f"the trained networks are not finite; try a smaller learning_rate_init than {rate:g}")

    @property
    def n_steps_(self) -> int:
        """Optimiser steps of the last fit."""
        return self.history_.last.step

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, which :func:`vmg.load` reads.

        The file is safetensors inside, without code. It takes the place of an old one only when it is complete.
        """
        write(path, *self.to_document())

    def to_document(self) -> tuple[Tensors, Document]:
        """Tensors and a document for a model file."""
        check_is_fitted(self, "seed_")
        return to_document(self)

    @classmethod
    def from_document(cls, tensors: Tensors, document: Document) -> Self:
        """The estimator that :meth:`to_document` described; a ModelFileError where it describes none."""
        return from_document(cls, tensors, document)

    def rebuild(self) -> None:
        """Finish what was read from a file; called once its attributes are there."""

    def __getstate__(self) -> dict[str, Any]:
        """Parameters as they are, and all that ``fit`` left as the bytes of a model file, without code or tensors."""
        state: dict[str, Any] = super().__getstate__()
        if "seed_" not in state:
            return state
        try:
            tensors, attributes = encode_attributes(self)
            fitted = to_bytes(tensors, {"holds": type(self).__name__, "attributes": attributes})
        except ModelFileError:  # an attribute that a file cannot hold, as of a subclass
            return state
        return {**{name: state[name] for name in self.get_params(deep=False)}, FITTED: fitted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fitted = state.get(FITTED)
        super().__setstate__({name: value for name, value in state.items() if name != FITTED})
        if fitted is not None:
            tensors, document = from_bytes(fitted, type(self).__name__)
            decode_attributes(self, tensors, document["attributes"])

    @abstractmethod
    def _relevance(self) -> Array:
        """How much each feature can move the first layer, in any unit."""

    @property
    def feature_relevance_(self) -> Array:
        """How much each feature can move the first layer, largest 1.

        Features are the columns of X where all are numbers, else those of ``inputs_.encoder.feature_names``.
        """
        relevance = self._relevance()
        return relevance / max(relevance.max(), np.finfo(np.float64).tiny)

    def hidden_sizes(self) -> tuple[int, ...]:
        """``hidden_layer_sizes`` as a tuple."""
        return tuple(int(size) for size in np.atleast_1d(self.hidden_layer_sizes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # -- checking -----------------------------------------------------------------------------------------------------

    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, NDArray[Any]]:
        """Validated rows and targets."""
        X = self._check_training_X(X) if reset else self._check_X(X)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        check_consistent_length(X, y)
        return X, self._check_y(y, reset=reset)

    def _check_training_X(self, X: Any) -> Any:
        """Validated rows of a fit, a number in every cell."""
        # one memory order, so that frames and arrays of the same numbers give the same bits
        return validate_data(self, to_dense(X), dtype=np.float64, order="C", reset=True)

    def _check_X(self, X: Any) -> Array | EncodedRows:
        """Validated rows for a fitted model; only one with ``inputs_`` takes other cells than numbers."""
        if isinstance(X, EncodedRows):
            return X
        inputs = getattr(self, "inputs_", None)
        if inputs is not None and not inputs.plain:
            return inputs.read(self._as_frame(X))
        finite = True if inputs is None else "allow-nan"
        rows = validate_data(self, to_dense(X), dtype=np.float64, order="C", ensure_all_finite=finite, reset=False)
        return rows if inputs is None or not np.isnan(rows).any() else inputs.read_numbers(rows)

    def _as_frame(self, X: Any, *, reset: bool = False) -> pd.DataFrame:
        """X as a frame whose columns have the names of the fit."""
        try:
            frame = as_frame(X)
        except ValueError:  # not a table of any library
            frame = pd.DataFrame(check_array(to_dense(X), dtype=None, ensure_all_finite=False))
        validate_data(self, frame, skip_check_array=True, reset=reset)
        return frame.set_axis(self._column_names(), axis=1).reset_index(drop=True)

    def _column_names(self) -> list[str]:
        """The names of the columns, x0, x1, ... where they have none."""
        named = getattr(self, "feature_names_in_", None)
        return [f"x{k}" for k in range(self.n_features_in_)] if named is None else list(named)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predictions(self, X: Any) -> Iterator[tuple[slice, Any]]:
        """Pieces of the rows of X and their predictive distributions, in memory that does not grow with the rows."""
        check_is_fitted(self, "seed_")
        yield from self._predicted(self._check_X(X))

    def _predicted(self, rows: Array | EncodedRows) -> Iterator[tuple[slice, Any]]:
        for piece in row_pieces(len(rows)) if isinstance(rows, np.ndarray) else rows.pieces():
            yield piece, self._distribution(rows[piece])

    def _distribution(self, rows: Array | EncodedRows) -> Any:
        """The predictive distribution of checked rows."""
        if isinstance(rows, np.ndarray):
            return self._predict_features(rows)
        assert self.inputs_ is not None
        return self.inputs_.distribution(rows, self._predict_features)

    def pred_dist(self, X: Any) -> Any:
        """The whole predictive distribution of each row of X.

        Returns
        -------
        NumberPrediction or ClassPrediction
            In the target's own units, with ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``log_prob``,
            ``cdf``, ``quantile``, ``interval``, ``crps`` and ``sample``; or over ``classes_``, with ``probabilities``,
            ``label``, ``predictive_entropy``, ``expected_entropy``, ``mutual_information`` and ``log_prob``.
        """
        check_is_fitted(self, "seed_")
        return self._distribution(self._check_X(X))

    def _in_pieces(self, X: Any, *reads: Callable[[Any], NDArray[Any]]) -> list[NDArray[Any]]:
        """Results of each function on the predictive distributions of rows."""
        found = [[read(part) for read in reads] for _, part in self.predictions(X)]
        return [np.concatenate(pieces) for pieces in zip(*found, strict=True)]

    # -- calibrating --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _conformal_scores(self, rows: Any, y: NDArray[Any]) -> Array:
        """Scores of checked rows that intervals or sets are calibrated by."""

    def conformalize(self, X: Any, y: Any, *, groups: ArrayLike | None = None) -> Self:
        """Calibrate ``predict_interval`` or ``predict_set`` on rows that ``fit`` has not seen.

        Their coverage then holds in finite samples. Several outputs are calibrated one by one: the coverage is that of
        each output, not of all together. Calling it again replaces the calibration; ``fit`` and ``partial_fit`` forget
        it.

        Parameters
        ----------
        X, y
            Rows like those to come, as in ``fit``.
        groups : array-like [N], optional
            A label for each row: the coverage then holds within each group of rows, and intervals and sets need the
            groups of their rows.
        """
        check_is_fitted(self, "seed_")
        rows, y = self._check_data(X, y, reset=False)
        labels = None if groups is None else check_groups(groups, len(rows))
        self.conformal_scores_, self.conformal_groups_ = self._conformal_scores(rows, y), labels
        return self


class NumbersMixin(EstimatorBase):
    """Means, intervals, quantiles and draws of numeric targets."""

    n_outputs_: int
    target_scaling_: Standardiser
    _single_output: bool

    def _check_y(self, y: Any, *, reset: bool) -> NDArray[Any]:
        y = np.asarray(check_targets(y, multi_output=True, y_numeric=True, estimator=self), dtype=np.float64)
        self._check_outputs(1 if y.ndim == 1 else y.shape[1], y.ndim == 1, reset=reset)
        return y

    def _check_outputs(self, n_outputs: int, single: bool, *, reset: bool) -> None:
        """Remember how many numbers a target is, or refuse another number of them."""
        if reset:
            self.n_outputs_, self._single_output = n_outputs, single
        elif n_outputs != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} outputs, as in the first call; got {n_outputs}")

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        point: str = "mean",
        coverage: ArrayLike | None = None,
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The mean of the target at each row of X, or its median, [N] or [N, C].

        Parameters
        ----------
        X : array-like [N, D]
        return_std : bool
            Also give the standard deviation, [N] or [N, C].
        return_cov : bool
            Also give the covariance between all rows, noise on its diagonal: [N, N], or [N, N, C].
        point : {"mean", "median"}
            The mean has the least squared error, the median the least absolute error.
        coverage : float or sequence of float, optional
            Also give :meth:`predict_interval`; so it can be had from a pipeline too.
        """
        if point not in ("mean", "median"):
            raise ValueError(f"point must be 'mean' or 'median'; got {point!r}")
        if return_std + return_cov + (coverage is not None) > 1:
            raise ValueError("at most one of return_std, return_cov and coverage can be given; got several")
        if return_cov:
            prediction = self.pred_dist(X)
            return getattr(prediction, point), prediction.row_covariance()
        centre, *std = self._in_pieces(X, *map(attrgetter, [point, "std"] if return_std else [point]))
        if coverage is not None:
            return centre, self.predict_interval(X, coverage)
        return (centre, std[0]) if std else centre

    def predict_interval(self, X: Any, coverage: ArrayLike = 0.9, groups: ArrayLike | None = None) -> NDArray[Any]:
        """Lower and upper end of the central interval: [N, 2], or [N, C, 2]; for K coverages [N, 2, K] or [N, C, 2, K].

        After :meth:`conformalize` the stated coverage holds on average over rows like the calibration rows; where it
        was given groups, over rows of each group.

        Parameters
        ----------
        X : array-like [N, D]
        coverage : float or sequence of float
        groups : array-like [N]
            Labels of the rows, where :meth:`conformalize` was given groups.
        """
        check_is_fitted(self, "seed_")
        rows, wanted = self._check_X(X), np.atleast_1d(np.asarray(coverage, dtype=np.float64))
        if not ((wanted > 0) & (wanted < 1)).all():
            raise ValueError(f"coverage must be inside (0, 1); got {coverage!r}")
        if self.conformal_scores_ is None:
            if groups is not None:
                raise ValueError("groups are for a model that conformalize was given groups for")
            levels = [np.atleast_2d(level) for level in wanted]
        else:
            calibrated = self.conformal_scores_, self.conformal_groups_
            levels = [row_levels(*calibrated, float(level), groups, len(rows)) for level in wanted]
        ends = np.concatenate(
            [
                np.stack([part.interval_at(at if len(at) == 1 else at[piece]) for at in levels], -1)
                for piece, part in self._predicted(rows)
            ]
        )
        return ends[..., 0] if np.ndim(coverage) == 0 else ends

    def predict_quantiles(self, X: Any, alpha: ArrayLike) -> NDArray[Any]:
        """Quantiles at the levels alpha: [N, Q], or [N, C, Q] for several outputs."""
        levels = np.atleast_1d(alpha)
        [quantiles] = self._in_pieces(X, lambda part: part.quantile(levels))
        return quantiles

    def sample(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> NDArray[Any]:
        """Draws of the target, noise included: [n_samples, N] or [n_samples, N, C]."""
        return self.pred_dist(X).sample(n_samples, self.seed_ if random_state is None else random_state)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | None = 0) -> NDArray[Any]:
        """Draws in the order of scikit-learn's Gaussian processes, [N, n_samples] or [N, C, n_samples]."""
        return np.moveaxis(self.sample(X, n_samples, random_state), 0, -1)

    def _conformal_scores(self, rows: Any, y: NDArray[Any]) -> Array:
        return calibration_scores(self._distribution(rows), y)


class ClassesMixin(EstimatorBase):
    """Probabilities and labels of classes."""

    classes_: NDArray[Any]
    _announced: NDArray[Any] | None = None  # classes of the first partial_fit, during that call

    def _check_y(self, y: Any, *, reset: bool) -> NDArray[Any]:
        y = check_targets(y, estimator=self)
        check_classification_targets(y)
        present = np.unique(y)
        if reset:
            classes = present if self._announced is None else self._announced
            if len(classes) < 2:
                raise ValueError(f"y must hold at least 2 classes; got one class, {classes[0]!r}")
            self.classes_ = classes
        unknown = np.setdiff1d(present, self.classes_)
        if len(unknown):
            raise ValueError(f"y must be among the classes {self.classes_}; got {unknown}")
        return y

    def partial_fit(  # type: ignore[override]  # the place of classes is scikit-learn's
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> Self:
        """Update with new rows only, given as in ``fit``: the posterior so far becomes the prior.

        This is an approximation: the order and the size of batches change the result a little. ``classes`` are all that
        will ever come; the first call, which is a ``fit``, needs them where its rows do not show them all.
        """
        if classes is not None and hasattr(self, "seed_") and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")
        self._announced = None if classes is None else np.unique(classes)
        try:
            return super().partial_fit(X, y, sample_weight, callbacks=callbacks)
        finally:
            del self._announced

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probability of each class, [N, K], in the order of ``classes_``."""
        [probabilities] = self._in_pieces(X, lambda part: part.probabilities)
        return probabilities

    def sample_proba(self, X: Any, n_samples: int = 1, random_state: int | None = None) -> NDArray[Any]:
        """Class probabilities under posterior draws, [N, n_samples, K], as scikit-activeml's classifiers give them."""
        draws = self.pred_dist(X).samples
        chosen = np.random.default_rng(self.seed_ if random_state is None else random_state)
        return np.moveaxis(draws[chosen.integers(len(draws), size=n_samples)], 0, 1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        [label] = self._in_pieces(X, lambda part: part.label)
        return label

    def _conformal_scores(self, rows: Any, y: NDArray[Any]) -> Array:
        return class_scores(self._distribution(rows).probabilities, np.searchsorted(self.classes_, y))

    def predict_set(self, X: Any, coverage: float = 0.9, groups: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Which classes belong to a set that holds the true one with probability ``coverage``, [N, K].

        Needs :meth:`conformalize`; holds in finite samples, on average over rows (of each group, where it was given
        groups). The most probable class is always in the set.
        """
        check_is_fitted(self, "seed_")
        if self.conformal_scores_ is None:
            raise ValueError("predict_set needs conformalize first")
        probabilities = self.predict_proba(X)
        levels = row_levels(self.conformal_scores_, self.conformal_groups_, coverage, groups, len(probabilities))
        return class_sets(probabilities, levels)


def draw_seed(random_state: Any) -> int:
    """The seed of a fit, from ``random_state`` as scikit-learn takes it."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def to_dense(X: Any) -> Any:
    """A sparse table, such as that of a one-hot encoder, as an array; anything else as it is."""
    if not sparse.issparse(X):
        return X
    cells = int(np.prod(X.shape, dtype=np.float64))
    if cells > MAX_DENSE_CELLS:
        raise ValueError(
            f"a sparse X must have at most {MAX_DENSE_CELLS:,} cells, zeros included, as it is made dense; got "
            f"{X.shape[0]:,} rows of {X.shape[1]:,}. Encode fewer categories, or give a data frame."
        )
    return X.toarray()


def drop_unweighted_rows(X: Any, y: NDArray[Any], sample_weight: Any) -> tuple[Any, NDArray[Any], Array | None]:
    """The rows with a positive weight, and their weights."""
    if sample_weight is None:
        return X, y, None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.sum() > 0:
        raise ValueError("sample_weight must have a positive sum; got all zeros")
    kept = weight > 0
    if weight.sum() < MIN_WEIGHT and kept.sum() > 1:
        warnings.warn(
            f"sample_weight sums to {weight.sum():.3g}: a weight of 1 is one row, so {kept.sum():,} rows count as "
            "hardly one. Multiply it by the number of rows if it is normalised.",
            UserWarning,
            stacklevel=4,
        )
    return X[kept], y[kept], weight[kept]
