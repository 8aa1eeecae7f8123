"""Parameters of both table estimators, their rows (arrays, or frames with words, dates and holes) and predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from vmg.estimators.base import Array, EstimatorBase, parameter, to_dense
from vmg.fit.design import Size, Standardiser, choose_size
from vmg.fit.stacking import EXPERTS
from vmg.nn.mlp import ACTIVATIONS
from vmg.prediction import ClassPrediction
from vmg.prediction.conformal import conformal_level
from vmg.tables.cells import CellTable, TableError, as_frame, count, require_columns
from vmg.tables.columns import TableChoices
from vmg.tables.encoder import TableEncoder
from vmg.tables.inputs import EncodedRows, TableInputs, draw_shares
from vmg.training import Callback

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    *("FAMILIARITY", "FLAGS", "MIN_ROWS", "Outside", "TableEstimator", "column_relevance", "conformal_interval"),
    *("flag_texts", "named_after", "split_flags", "tabulate_numbers"),
]

Mask = NDArray[np.bool_]
Outside = Literal["flag", "clip", "error"]

MIN_ROWS = 5
"""Fewest rows of a fit: with fewer, none can be left out to learn the noise from."""

MOST_COLUMNS = 1000  # of numbers, of which training rows are kept to draw missing ones from
AUTO, WHOLE = StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")
FAMILIARITY, FLAGS = "familiarity", "flags"
POINTS = ("mean", "median", "class")  # columns that have the target's own name
NOT_FINITE = "not-finite"
SEPARATOR = ";"
OBJECTS_THAT_ARE_NUMBERS = ("floating", "integer", "mixed-integer-float", "boolean")


@dataclass(repr=False, eq=False)
class TableEstimator(EstimatorBase):
    """Parameters and fitting of both estimators; see :class:`TableRegressor` for what each parameter means."""

    hidden_layer_sizes: int | Sequence[int] | str = parameter("auto", AUTO, "array-like", WHOLE)
    activation: str = parameter("auto", StrOptions({"auto", *ACTIVATIONS}))
    _: KW_ONLY
    n_members: int | str = parameter("auto", AUTO, WHOLE)
    experts: str | Sequence[str] = parameter("networks", str, "array-like")
    batch_size: int | str = parameter("auto", AUTO, WHOLE)
    learning_rate_init: float = parameter(0.03, Interval(Real, 0, None, closed="neither"))
    max_iter: int | str = parameter("auto", AUTO, WHOLE)
    n_iter_no_change: int | str = parameter("auto", AUTO, WHOLE)
    categorical: Sequence[str] = parameter((), "array-like")
    ignore: Sequence[str] = parameter((), "array-like")
    date_formats: Mapping[str, str] | None = parameter(None, dict, None)
    decimal: str | None = parameter(None, StrOptions({".", ","}), None)
    random_state: int | np.random.RandomState | None = parameter(None, "random_state")
    verbose: bool | int = parameter(False, "verbose")

    inputs_: TableInputs | None = field(init=False)
    ensemble_: Any = field(init=False)

    _min_rows: ClassVar[int] = MIN_ROWS
    _known_scaling: tuple[Standardiser, ...] = field(init=False, default=())  # of the present call of fit

    @abstractmethod
    def _fit_features(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        """Fit to features and set every fitted attribute."""

    @abstractmethod
    def _described_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        """Targets that columns are described by: numbers [N] or [N, outputs], or the places of classes [N]."""

    @property
    def n_iter_(self) -> int:
        """Optimiser steps of the last fit, under scikit-learn's name."""
        return self.n_steps_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        scaling: Sequence[Standardiser] = (),
    ) -> Self:
        """Fit to rows X [N, D] with targets or classes y [N], or targets [N, C], in any units.

        Cells of X may be numbers, words, dates, booleans, and missing. An interrupted or refused fit leaves the model
        as it was. A row with weight 2 counts as two rows. Callbacks are called with a
        :class:`~vmg.training.Progress` as training goes; one that returns True ends it.

        ``scaling`` gives the units of inputs and numeric targets where they are known from more rows than these, as of
        a stream. No rows are kept then to draw missing cells from, so rows to come must be complete.
        """
        self._known_scaling = tuple(scaling)
        try:
            return super().fit(X, y, sample_weight, callbacks=callbacks)
        finally:
            del self._known_scaling

    def _fit(self, X: Array | pd.DataFrame, y: NDArray[Any], weight: Array | None) -> Array:
        if isinstance(X, pd.DataFrame):
            choices = self._choices()
            require_columns(X, choices.named)
            table = CellTable(X.drop(columns=choices.ignored), training=True)
            self.inputs_, X = TableInputs.fit(table, self._described_targets(y), choices)
        else:
            keeps = not self._known_scaling and X.shape[1] <= MOST_COLUMNS
            self.inputs_ = TableInputs.of_numbers(X, self._column_names()) if keeps else None
        self._fit_features(X, y, weight)
        return X

    def _standardise(self, X: Array, weight: Array | None) -> Array:
        """Features of a fit in the units that it keeps."""
        self.input_scaling_ = self._known_scaling[0] if self._known_scaling else Standardiser.fit(X, weight)
        return self.input_scaling_.transform(X)

    def read_with(self, inputs: TableInputs) -> Self:
        """Let rows to come be tables: ``inputs`` makes the features that this estimator was fitted to."""
        names = inputs.encoder.column_names
        self.inputs_, self.n_features_in_, self.feature_names_in_ = inputs, len(names), np.array(names, dtype=object)
        return self

    def _size(self, n_rows: int, *, classes: bool = False) -> Size:
        """The network and its training that parameters and table ask for."""
        hidden = None if isinstance(self.hidden_layer_sizes, str) else self.hidden_sizes()
        return choose_size(n_rows, classes=classes).changed(
            hidden=hidden,
            activations=None if self.activation == "auto" else (self.activation,),
            n_members=None if self.n_members == "auto" else int(self.n_members),
            max_steps=None if self.max_iter == "auto" else int(self.max_iter),
            batch_rows=None if self.batch_size == "auto" else int(self.batch_size),
            rate=float(self.learning_rate_init),
            patience=None if self.n_iter_no_change == "auto" else 10 * int(self.n_iter_no_change),
        )

    def _expert_names(self) -> tuple[str, ...]:
        """Experts beside the networks that the parameters ask for; a stream has too many rows for any."""
        asked = (self.experts,) if isinstance(self.experts, str) else tuple(self.experts)
        known = ("networks", *EXPERTS)
        if asked != ("auto",) and not (asked and set(asked) <= set(known)):
            raise ValueError(f'experts must be "auto" or among {known}; got {self.experts!r}')
        if self._known_scaling:
            return ()
        return tuple(name for name in EXPERTS if asked == ("auto",) or name in asked)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _choices(self) -> TableChoices:
        """Choices about columns from the parameters."""
        return TableChoices.of(
            categorical=self.categorical, ignore=self.ignore, date_formats=self.date_formats, decimal=self.decimal
        )

    def _check_training_X(self, X: Any) -> Array | pd.DataFrame:
        """Validated rows of a fit: an array where all cells are numbers, else a frame."""
        X = to_dense(X)
        if self._choices() != TableChoices() or not _is_numeric(X):
            return self._as_frame(X, reset=True)
        options = {"dtype": np.float64, "order": "C", "ensure_all_finite": "allow-nan"}
        rows = validate_data(self, X, **options, reset=True)
        return pd.DataFrame(rows, columns=self._column_names()) if np.isnan(rows).any() else rows

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predict_frame(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        outside: Outside = "flag",
        point: str = "mean",
        above: Sequence[float] = (),
    ) -> pd.DataFrame:
        """Predictions as a table with a row for each row of X, whose columns are found by their names.

        Numbers: the ``point``; ``std``; the interval from ``lower`` to ``upper`` that holds the target with probability
        ``coverage``; the two parts of the standard deviation, ``noise`` and ``ignorance``; and P(target > 100) as
        ``above_100``. Each of several outputs has its own, such as ``mean_0``. Classes: the likeliest, ``class``,
        ``probability_a`` of each, and ``entropy`` in nats with its two parts. Both: ``familiarity``, 1 for a row as
        near to the training rows as they are to each other and 1/k for one k times as far; and ``flags``, such as
        ``missing:area;unseen:city;outside:year``.

        Parameters
        ----------
        X : DataFrame or array-like
            Rows with the columns of the fit.
        coverage : float
            Of the intervals.
        outside : {"flag", "clip", "error"}
            What to do with values outside the range of the training rows: flag them, move them to its ends and flag
            them, or raise a TableError.
        point : {"mean", "median"}
            The one number that is predicted.
        above : sequence of float
            Bounds whose probability to be exceeded is predicted.
        """
        check_is_fitted(self, "seed_")
        if self.inputs_ is None:
            raise ValueError("predict_frame needs training rows, which this fit did not keep")
        if not 0 < coverage < 1:
            raise TableError(f"coverage must be between 0 and 1; got {coverage}")
        if np.isnan(above).any():
            raise TableError("above must be numbers; got nan")
        encoder, reference = self.inputs_.encoder, self.inputs_.reference
        by_name = hasattr(X, "columns") and hasattr(self, "feature_names_in_")
        table = CellTable(as_frame(X) if by_name else self._as_frame(X))
        marks = encoder.marks(table)
        if not len(table):
            raise TableError("the table has no rows")
        if outside == "error":
            refuse_outside(encoder.column_names, marks)
        clip, shares = outside == "clip", draw_shares(encoder.columns, marks)
        rows = EncodedRows(encoder.transform(table, clip=clip), shares, None if clip else encoder.extra_std(table))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is flagged below
            how = self.conformal_scores_, coverage, point, above
            parts = [
                tabulate_classes(part) if isinstance(part, ClassPrediction) else tabulate_numbers(part, *how)
                for _, part in self.predictions(rows)
            ]
        predictions = pd.concat(parts, ignore_index=True).set_axis(table.frame.index)
        in_time = 1.0 if clip else encoder.time_familiarity(table)
        predictions[FAMILIARITY] = in_time * reference.familiarity(rows.features, shares > 0)
        finite = np.isfinite(predictions.select_dtypes("number").to_numpy(dtype=np.float64)).all(1)
        predictions[FLAGS] = flag_texts(encoder.column_names, marks, ~finite)
        return predictions

    @property
    def plot(self) -> Any:
        """Pictures of this model on Matplotlib's axes; see :class:`vmg.report.plots.Plots`."""
        check_is_fitted(self, "seed_")
        return import_module("vmg.report.plots").Plots(self)

    @property
    def expert_weights_(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        return dict(self.ensemble_.weights)

    def _relevance(self) -> Array:
        relevance: Array = self.ensemble_.relevance()
        return relevance

    @property
    def feature_importances_(self) -> Array:
        """Shares of the columns of X in ``feature_relevance_``; columns that are left out have none."""
        relevance = self.feature_relevance_
        if self.inputs_ is not None:
            by_column = column_relevance(self.inputs_.encoder, relevance)
            relevance = np.array([by_column.get(name, 0.0) for name in self._column_names()])
        return relevance / relevance.sum()


def _is_numeric(X: Any) -> bool:
    """Whether rows are numbers, as far as their types say."""
    if hasattr(X, "dtypes"):  # a frame
        return all(pd.api.types.is_numeric_dtype(dtype) for dtype in as_frame(X).dtypes)
    try:
        array = np.asarray(X)
    except ValueError:  # of rows that are not of one length, which the checks of numbers tell
        return True
    if array.dtype == object and array.ndim == 2:
        return pd.api.types.infer_dtype(array.ravel(), skipna=False) in OBJECTS_THAT_ARE_NUMBERS
    return array.dtype.kind in "biufc" or array.ndim != 2


# -- predictions in a table ------------------------------------------------------------------------------------------


def conformal_interval(prediction: Any, scores: Array | None, coverage: float) -> Array:
    """The interval that holds the target with probability ``coverage``, [N, 2] or [N, C, 2], given calibration scores.

    Without scores it is the model's own.
    """
    if scores is None:
        return prediction.interval(coverage)
    return prediction.interval_at(conformal_level(scores, coverage))


def tabulate_numbers(
    prediction: Any,
    conformal_scores: NDArray[Any] | None,
    coverage: float,
    point: str = "mean",
    above: Sequence[float] = (),
) -> pd.DataFrame:
    """A point, the standard deviation and its parts, the interval and probabilities of each row, and of each output."""
    lower, upper = np.moveaxis(conformal_interval(prediction, conformal_scores, coverage), -1, 0)
    columns = {
        point: getattr(prediction, point),
        "std": prediction.std,
        "lower": lower,
        "upper": upper,
        "noise": prediction.aleatoric_std,
        "ignorance": prediction.epistemic_std,
        **{f"above_{_digits(bound)}": prediction.probability(above=bound) for bound in above},
    }
    if prediction.mean.ndim == 1:
        return pd.DataFrame(columns)
    return pd.DataFrame({f"{name}_{c}": column for name, of in columns.items() for c, column in enumerate(of.T)})


def _digits(bound: float) -> str:
    """A bound as it is written shortly, with as many digits as tell it from others."""
    return f"{bound:g}" if float(f"{bound:g}") == bound else f"{bound:.15g}"


def tabulate_classes(prediction: ClassPrediction) -> pd.DataFrame:
    """The likeliest class of each row, the probability of each class, and how unsure they are."""
    names = [f"probability_{label}" for label in prediction.classes]
    table = pd.DataFrame(prediction.probabilities, columns=names)
    table.insert(0, "class", prediction.label)
    noise, ignorance = prediction.expected_entropy, prediction.mutual_information
    return table.assign(entropy=prediction.predictive_entropy, noise=noise, ignorance=ignorance)


def named_after(target: str, predictions: pd.DataFrame) -> pd.DataFrame:
    """Predictions with columns named after the target, but for those that are about the row."""
    names = {name: target if name in POINTS else f"{target}_{name}" for name in predictions.columns}
    return predictions.rename(columns={**names, FAMILIARITY: FAMILIARITY, FLAGS: FLAGS})


# -- flags ------------------------------------------------------------------------------------------------------------


def refuse_outside(names: Sequence[str], marks: Sequence[Mapping[str, Mask]]) -> None:
    """Raise a TableError that says in which columns values are outside the range of the training rows."""
    n_outside = {name: int(of["outside"].sum()) for name, of in zip(names, marks, strict=True) if "outside" in of}
    where = ", ".join(f"'{name}' in {count(n, 'row')}" for name, n in n_outside.items() if n)
    if where:
        raise TableError(f"values must be inside the range of the training rows; they are outside in {where}")


def flag_texts(names: Sequence[str], marks: Sequence[Mapping[str, Mask]], not_finite: Mask) -> NDArray[Any]:
    """Flags of each row, such as "missing:area;unseen:city"; empty where there is nothing to say.

    ``not_finite`` [N] are rows with predictions that left the range of floating-point numbers.
    """
    texts = np.full(len(not_finite), "", dtype=object)
    for name, kinds in zip(names, marks, strict=True):
        for kind, rows in kinds.items():
            texts[rows] += f"{SEPARATOR}{kind}:{name.replace(SEPARATOR, ' ')}"
    texts[not_finite] += SEPARATOR + NOT_FINITE
    return np.array([text.removeprefix(SEPARATOR) for text in texts], dtype=object)


def split_flags(text: str) -> list[str]:
    """The flags of a row one by one."""
    return text.split(SEPARATOR) if text else []


def column_relevance(encoder: TableEncoder, relevance: Array) -> dict[str, float]:
    """The relevance of each column from that of its features: their norm."""
    of_columns = np.split(relevance, encoder.widths.cumsum()[:-1])
    return {name: float(np.linalg.norm(own)) for name, own in zip(encoder.column_names, of_columns, strict=True)}
