"""A table's model: encoder and estimator in one, from the columns as they are to predictions in a table."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg import metrics
from vmg.estimators.classifier import TableClassifier
from vmg.estimators.regressor import TableRegressor
from vmg.estimators.table_estimator import FAMILIARITY, FLAGS, MIN_ROWS, Outside, conformal_interval, named_after
from vmg.model_file import Document, ModelFileError, Tensors, from_fields, write
from vmg.prediction import ClassPrediction, NumberPrediction
from vmg.tables.cells import Cells, CellTable, TableError, as_frame, count, listing, require_columns
from vmg.tables.columns import TableChoices
from vmg.tables.encoder import TableEncoder, decide_comma, find_suspicions
from vmg.tables.files import MISSING
from vmg.tables.inputs import (
    EncodedRows,
    TableInputs,
    Target,
    Task,
    fit_target,
    known_labels,
    require_numbers,
    row_digests,
)
from vmg.tables.numbers import to_numbers
from vmg.training import Callback

__all__ = ["PreparedTable", "TableModel", "prepare_table"]

DEFAULT_CHOICES = TableChoices()
MIN_CONFORMAL_ROWS = 19  # fewer cannot promise a coverage of 95 %


class PreparedTable(NamedTuple):
    """A table that is ready for training."""

    estimator: TableRegressor | TableClassifier
    inputs: TableInputs
    target: Target
    rows: CellTable
    values: NDArray[Any]
    features: NDArray[Any]
    aside: pd.DataFrame  # rows to calibrate with
    aside_values: NDArray[Any]
    notes: list[str]

    def model_of(
        self, estimator: Any, name: str, choices: TableChoices, notes: Sequence[str], values: NDArray[Any]
    ) -> TableModel:
        """The model of a fitted estimator that predicts the column ``name``; ``values`` are its training targets."""
        of_target = self.target.task, self.target.decimal_comma, tuple(notes), self.target.unit
        return TableModel(estimator, name, *of_target, choices, base_rate=metrics.base_rate(values))


def prepare_table(
    frame: Any,
    target: str,
    choices: TableChoices = DEFAULT_CHOICES,
    *,
    task: Task | None = None,
    exclude: Sequence[str] = (),
    conformal: float = 0.0,
    options: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] | None = None,
    target_statistics: bool = True,
) -> PreparedTable:
    """All of :meth:`TableModel.fit` but the training, with its notes told one by one.

    A TableError says what is wrong with the table. ``target_statistics`` is that of :meth:`TableInputs.fit`.
    """
    frame = as_frame(frame)
    require_columns(frame, [target, *exclude, *choices.named])
    left_out = list(dict.fromkeys([*exclude, *choices.ignored]))
    if target in left_out:
        raise TableError(f"the target '{target}' cannot be excluded")
    if target in (FAMILIARITY, FLAGS):
        raise TableError(
            f"the target cannot be called '{target}', as predictions have a column of this name; rename it"
        )
    has_target = ~Cells(frame[target]).missing
    n_without = int((~has_target).sum())
    columns = frame[has_target].drop(columns=left_out)
    if len(columns) < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {len(columns)}")
    whole = CellTable(columns, training=True)
    fitted = fit_target(whole[target], task, decide_comma(whole, choices))
    estimator = (TableRegressor if fitted.task == "regression" else TableClassifier)(**(options or {}))
    if isinstance(estimator, TableRegressor):
        low, high = estimator.limits
        if conformal and np.isfinite([low, high]).any():
            raise TableError("conformal needs targets that are seen; those at a limit are not")
        if not ((fitted.values > low) & (fitted.values < high)).any():
            raise TableError(f"the target '{target}' must have values between the limits; all are at one or beyond")
        fitted = fitted._replace(values=np.clip(fitted.values, low, high))
    inside, outside = _split(len(columns), conformal, fitted.task, estimator.random_state)
    rows = CellTable(columns.iloc[inside], training=True) if len(outside) else whole
    values = fitted.values[inside]
    inputs, features = TableInputs.fit(rows, values, choices, target=target, target_statistics=target_statistics)

    notes = [fitted.reason]
    if n_without:
        notes.append(f"{count(n_without, 'row')} without a target left out.")
    if len(outside):
        notes.append(f"{count(len(outside), 'row')} set aside to calibrate intervals.")
    if left_out:
        notes.append(f"Columns left out as asked: {listing(left_out)}.")
    notes += [*inputs.encoder.describe(), *find_suspicions(rows, inputs.encoder, target, values)]
    for note in notes if tell is not None else ():
        tell(note)  # type: ignore[misc]
    aside = columns.iloc[outside], fitted.values[outside]
    return PreparedTable(estimator, inputs, fitted, rows, values, features, *aside, notes)


def _split(n_rows: int, share: float, task: Task, seed: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Positions of the rows to fit to and of those to calibrate with, in their own order."""
    if not 0 <= share < 1:
        raise TableError(f"conformal must be a share of the rows from 0 to below 1; got {share}")
    if share == 0:
        return np.arange(n_rows), np.arange(0)
    if task != "regression":
        raise TableError("conformal calibrates intervals of regression; the task is classification")
    n_outside = round(share * n_rows)
    if n_outside < MIN_CONFORMAL_ROWS or n_rows - n_outside < MIN_ROWS:
        raise TableError(
            f"conformal needs at least {MIN_CONFORMAL_ROWS} rows to calibrate with and {MIN_ROWS} to fit to; "
            f"{share:g} of {count(n_rows, 'row')} leaves {n_outside} and {n_rows - n_outside}"
        )
    order = np.random.default_rng(seed).permutation(n_rows)
    return np.sort(order[n_outside:]), np.sort(order[:n_outside])


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator that reads tables.

    Make one with :meth:`fit`, keep it with :meth:`save`, get it back with :func:`vmg.load`. Tables may be data frames
    of pandas or Polars, or Arrow tables.

    Parameters
    ----------
    estimator : TableRegressor or TableClassifier
        Fitted; its ``inputs_`` say how columns become features.
    target : str
        The column that is predicted.
    task : {"regression", "classification"}
        What is predicted of it.
    decimal_comma : bool
        Whether a comma in the target is a decimal point.
    notes : sequence of str
        What was done with the training table, in short sentences.
    unit : str
        The unit that the target is written with, if any.
    choices : TableChoices
        What the user said about columns.
    held_out : mapping
        Scores on held-out rows, where some were held out.
    base_rate : sequence of float
        Mean and standard deviation of the target in training rows, or the share of each class.
    """

    estimator: TableRegressor | TableClassifier
    target: str
    task: Task
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()
    unit: str = ""
    choices: TableChoices = DEFAULT_CHOICES
    held_out: Mapping[str, Any] = field(default_factory=dict)
    base_rate: tuple[float, ...] = ()

    def _repr_html_(self) -> str:
        """Target, columns, scores and notes of the model, for notebooks."""
        scores = {name: value for name, value in self.held_out.items() if isinstance(value, float)}
        facts = {
            "target": f"{self.target} ({self.unit})" if self.unit else self.target,
            "task": self.task,
            "columns": ", ".join(self.encoder.column_names),
            "experts": ", ".join(f"{name} {weight:.2f}" for name, weight in self.estimator.expert_weights_.items()),
            **{f"held-out {name}": f"{value:.4g}" for name, value in scores.items()},
            "notes": " ".join(self.notes),
        }
        with pd.option_context("display.max_colwidth", None):
            return pd.Series(facts, name="TableModel").to_frame().to_html()

    # -- fitting ------------------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        frame: Any,
        target: str,
        *,
        task: Task | None = None,
        exclude: Sequence[str] = (),
        conformal: float = 0.0,
        choices: TableChoices = DEFAULT_CHOICES,
        options: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        tell: Callable[[str], None] | None = None,
    ) -> TableModel:
        """Fit to the rows of ``frame`` that have a target.

        Parameters
        ----------
        frame : DataFrame
            Numbers, texts, dates, booleans; cells may be missing.
        target : str
            The column to predict.
        task : {"regression", "classification"} or None
            None: inferred from the target.
        exclude : sequence of str
            Columns to leave out.
        conformal : float
            Share of rows set aside to calibrate intervals (regression only).
        choices : TableChoices, optional
            Kinds of columns, formats of dates and the meaning of commas, where they should not be found out.
        options : mapping, optional
            Parameters of the estimator, such as ``{"n_members": 5}``.
        callbacks : sequence of callables
            Called with a :class:`~vmg.training.Progress` as training goes.
        tell : callable, optional
            Called with each sentence of ``notes``, those about copies of rows after training and the others before.
        """
        asked: dict[str, Any] = {"task": task, "exclude": exclude, "conformal": conformal, "options": options}
        given = prepare_table(frame, target, choices, **asked, tell=tell)
        estimator = given.estimator
        try:
            estimator.fit(given.features, given.values, callbacks=callbacks).read_with(given.inputs)
        except ValueError as error:
            if "likelihood" in (options or {}):  # the target is not of its kind
                raise TableError(f"the target '{target}' does not suit the likelihood: {error}") from error
            raise
        learned = list(estimator.history_.notes)
        if n_outliers := getattr(estimator, "n_outliers_", 0):
            learned.append(f"{count(n_outliers, 'row')} left out: the target is absurdly far beyond all others.")
        for note in learned if tell is not None else ():
            tell(note)  # type: ignore[misc]
        model = given.model_of(estimator, target, choices, (*given.notes, *learned), given.values)
        if len(given.aside):
            estimator.conformalize(model.inputs.read(given.aside), given.aside_values)
        return model

    # -- predicting ---------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> TableInputs:
        """How rows of a table are read."""
        assert self.estimator.inputs_ is not None
        return self.estimator.inputs_

    @property
    def encoder(self) -> TableEncoder:
        """How columns become features."""
        return self.inputs.encoder

    def pred_dist(self, frame: Any) -> Any:
        """The whole predictive distribution of each row; a row with unknown cells is a mixture over their values."""
        return self.estimator.pred_dist(self.inputs.read(as_frame(frame)))

    def filled_dist(self, frame: Any) -> NumberPrediction | ClassPrediction:
        """The same with unknown cells filled as in training, so that rows share draws of the function."""
        return self.estimator.pred_dist(EncodedRows(self.encoder.transform(as_frame(frame))))

    def predict_frame(
        self,
        frame: Any,
        coverage: float = 0.9,
        *,
        outside: Outside = "flag",
        point: str = "mean",
        above: Sequence[float] = (),
    ) -> pd.DataFrame:
        """Predictions as a table with a row for each row of ``frame``.

        Options and columns are those of :meth:`vmg.TableRegressor.predict_frame`, in which the target's name stands for
        ``mean``, ``median`` or ``class`` and before the others, such as ``price_lower``.
        """
        if self.task == "classification" and (point != "mean" or above):
            raise TableError("point and above are for numbers; the task is classification")
        how: dict[str, Any] = {"outside": outside, "point": point, "above": above}
        return named_after(self.target, self.estimator.predict_frame(as_frame(frame), coverage, **how))

    @property
    def plot(self) -> Any:
        """Pictures of this model on Matplotlib's axes; see :class:`vmg.report.plots.Plots`."""
        return import_module("vmg.report.plots").Plots(self)

    # -- scoring ------------------------------------------------------------------------------------------------------

    def read_target(self, column: pd.Series) -> NDArray[np.float64]:
        """Cells of a numeric target as numbers, in the convention and the unit of the fit, none beyond its limits."""
        values = to_numbers(Cells(column, training=True), self.decimal_comma, self.unit)
        return values if isinstance(self.estimator, TableClassifier) else np.clip(values, *self.estimator.limits)

    def target_values(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The true targets of rows that all have one: numbers, or classes as the estimator writes them."""
        require_columns(frame, [self.target])
        column = frame[self.target]
        if isinstance(self.estimator, TableClassifier):
            return known_labels(Cells(column), self.estimator.classes_)
        values = self.read_target(column)
        require_numbers(Cells(column), values)
        return values

    def with_target(self, frame: Any) -> pd.DataFrame:
        """The rows of ``frame`` that have a target."""
        frame = as_frame(frame)
        require_columns(frame, [self.target])
        rows = frame[~Cells(frame[self.target]).missing]
        if rows.empty:
            raise TableError(f"no row has a value in the target '{self.target}'")
        return rows

    def evaluate(self, frame: Any, coverage: float = 0.9) -> dict[str, float]:
        """Scores on rows with a known target; rows without are left out.

        Regression: ``rmse``, ``r2``, ``log_likelihood``, ``coverage`` and ``width`` of the intervals, ``crps``.
        Classification: ``accuracy``, ``log_likelihood``, ``brier``, ``ece``.
        """
        rows = self.with_target(frame)
        if isinstance(self.estimator, TableClassifier):
            labels = np.searchsorted(self.estimator.classes_, self.target_values(rows))
            return {"rows": len(rows), **metrics.class_scores(self.probabilities(rows), labels)}
        return {"rows": len(rows), **metrics.number_scores(*self.number_parts(rows, coverage))}

    def probabilities(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        """Probability of each class [N, K], in the order of the estimator's ``classes_``."""
        assert isinstance(self.estimator, TableClassifier)
        return self.estimator.predict_proba(self.inputs.read(rows))

    def number_parts(self, rows: pd.DataFrame, coverage: float) -> tuple[NDArray[Any], ...]:
        """Targets of rows that all have a number, and means, log densities, intervals and CRPS.

        Where targets have limits, all of them are of what is measured: nothing beyond a limit.
        """
        assert not isinstance(self.estimator, TableClassifier)
        limits = low, high = self.estimator.limits
        truth, parts = self.target_values(rows), []
        for piece, part in self.estimator.predictions(self.inputs.read(rows)):
            y = truth[piece]
            ends = conformal_interval(part, self.estimator.conformal_scores_, coverage)
            log_prob = part.log_prob(y)
            for beyond, at, sign in ((y <= low, low, 1), (y >= high, high, -1)):
                if beyond.any():
                    mass = part.cdf(np.full(len(y), at))
                    log_prob = np.where(beyond, np.log(np.maximum(mass if sign > 0 else 1 - mass, 1e-300)), log_prob)
            crps = part.crps(y) if np.isinf(limits).all() else part.measured_crps(y, low, high)
            parts.append((np.clip(part.mean, low, high), log_prob, np.clip(ends, low, high), crps))
        return truth, *map(np.concatenate, zip(*parts, strict=True))

    def evaluate_base_rate(self, frame: Any, coverage: float = 0.9) -> dict[str, float]:
        """The scores that knowing the training targets alone gives."""
        if not self.base_rate:
            return {}
        truth = self.target_values(self.with_target(frame))
        if isinstance(self.estimator, TableClassifier):
            truth = np.searchsorted(self.estimator.classes_, truth)
        return metrics.base_rate_scores(self.base_rate, truth, classes=self.task == "classification", coverage=coverage)

    def training_share(self, frame: Any) -> float:
        """The share of the rows with a target that the model was fitted to, as far as the file knows."""
        rows = self.with_target(frame)
        digests = row_digests(self.encoder.transform(rows), self.target_values(rows))
        return float(np.isin(digests, self.inputs.reference.digests).mean())

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of :func:`~vmg.tables.read_table` with which a file is read as at the fit."""
        texts = self.encoder.text_columns
        if isinstance(self.estimator, TableClassifier):
            texts[self.target] = [str(label) for label in self.estimator.classes_ if str(label) in MISSING]
        return {**self.choices.reading, "texts": texts, "decimal_comma": self.decimal_comma}

    def with_decimal(self, decimal_comma: bool) -> TableModel:
        """The model for tables that write numbers in the other convention."""
        estimator = copy.copy(self.estimator)
        estimator.inputs_ = replace(self.inputs, encoder=self.encoder.with_decimal(decimal_comma))
        return replace(self, estimator=estimator, decimal_comma=decimal_comma)

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, which :func:`vmg.load` reads."""
        write(path, *self.to_document())

    def to_document(self) -> tuple[Tensors, Document]:
        """Tensors and a document for a model file."""
        tensors, estimator = self.estimator.to_document()
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        own |= {"estimator": estimator, "choices": asdict(self.choices), "held_out": dict(self.held_out)}
        return tensors, {"holds": "TableModel", **own}

    @classmethod
    def from_document(cls, tensors: Tensors, document: Document) -> TableModel:
        """The model that :meth:`to_document` described; a ModelFileError where it describes none."""
        try:
            own = {one.name: document[one.name] for one in fields(cls)}
            kind = TableRegressor if own["task"] == "regression" else TableClassifier
            estimator = kind.from_document(tensors, own["estimator"])
            choices = from_fields(TableChoices, own["choices"])
            model = from_fields(cls, own | {"estimator": estimator, "choices": choices})
            if estimator.inputs_ is None:
                raise ValueError("the estimator must have inputs")
            n_base = 2 if isinstance(estimator, TableRegressor) else len(estimator.classes_)
            if len(model.base_rate) not in (0, n_base):
                raise ValueError("base_rate must be a mean and a deviation, or a share of each class")
        except ModelFileError:
            raise
        except Exception as error:  # a document may be wrong in any way
            raise ModelFileError(f"the file does not describe a whole model: {error!r}") from error
        return model
