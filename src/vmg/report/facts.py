"""Facts that the report shows: rows and columns of its table, networks of its model and their training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators import TableModel
from vmg.estimators.table_estimator import TableEstimator
from vmg.math.distributions import Array
from vmg.prediction import ClassPrediction
from vmg.tables.cells import Cells, to_texts
from vmg.tables.columns import DateColumn, NumberColumn
from vmg.tables.dates import to_timestamps

__all__ = [
    "INTERVAL_ROWS",
    "SCORED_ROWS",
    "SEED",
    "Array",
    "ColumnSummary",
    "NetworkSummary",
    "Positions",
    "TrainingCurve",
    "choose",
    "extremes",
    "network_summary",
    "read_columns",
    "scored_rows",
    "summarise_columns",
    "training_curve",
]

Positions = NDArray[np.int64]

SEED = 0  # of every subsample: the same table gives the same page
SCORED_ROWS = 5_000  # rows behind every number on the page,
SCORED_DRAWS = 2**25  # or as many as give this many posterior draws of outputs, for the sake of memory
INTERVAL_ROWS = 400  # rows whose interval ends are found (a root search each in a mixture) for pictures and mean widths
CERTAIN_ROWS = 5


def choose(n: int, most: int, seed: int = SEED) -> Positions:
    """At most ``most`` of n positions, at random but always the same ones, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def scored_rows(model: TableModel, frame: pd.DataFrame) -> Positions:
    """Positions of the rows that are predicted and scored."""
    one = model.filled_dist(frame.iloc[:1])
    in_memory = SCORED_DRAWS // (one.samples.size if isinstance(one, ClassPrediction) else 1)
    return choose(len(frame), min(SCORED_ROWS, max(in_memory, INTERVAL_ROWS)))


def extremes(uncertainty: Array) -> tuple[Positions, Positions]:
    """Positions of the most certain and the least certain rows, the most telling first; none is in both."""
    order = np.argsort(uncertainty, kind="stable")
    n = min(CERTAIN_ROWS, (len(order) + 1) // 2)
    return order[:n], order[n:][::-1][:n]


@dataclass(frozen=True)
class ColumnSummary:
    """One column as the model understands it; ``numbers`` or ``common`` say what it holds."""

    name: str
    kind: str  # number, boolean, date, category, or target
    n_missing: int
    n_distinct: int
    numbers: tuple[Any, Any, Any] | None  # smallest, median, largest
    common: tuple[tuple[str, float], ...]  # most frequent values with their shares
    unused: str  # why the model does not use it; empty if it does


def read_columns(model: TableModel, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that the model uses, in their own types: floats, moments, texts or booleans.

    The encoder makes the same features of them as of the cells themselves.
    """
    read = {}
    for column in model.encoder.columns:
        cells = frame[column.name]
        if isinstance(column, NumberColumn):
            cells = column.values(Cells(cells))
        elif isinstance(column, DateColumn):
            cells = to_timestamps(Cells(cells), column.date_format)
        else:
            cells = to_texts(cells)
        read[column.name] = cells
    return pd.DataFrame(read, index=frame.index)


def summarise_columns(model: TableModel, frame: pd.DataFrame) -> list[ColumnSummary]:
    """Every column of a table, the target last."""
    used, kinds = read_columns(model, frame), {column.name: column.kind for column in model.encoder.columns}
    summaries = []
    for name in sorted(frame.columns, key=lambda name: name == model.target):
        kind, unused = kinds.get(name, "text"), ""
        if name in kinds:
            cells = used[name]
        elif name == model.target and model.task == "regression":
            kind, cells = "target", pd.Series(model.read_target(frame[name]))
        elif name == model.target:
            kind, cells = "target", to_texts(frame[name])
        else:
            cells, unused = to_texts(frame[name]), model.encoder.dropped.get(name, "it is not known from the fit")
        given = cells.dropna()
        numbers: tuple[Any, Any, Any] | None = None
        common: tuple[tuple[str, float], ...] = ()
        if not len(given):
            pass
        elif given.dtype != object:
            middle = given.quantile(0.5, interpolation="lower" if kind == "date" else "linear")
            numbers = (given.min(), middle, given.max())
        else:
            common = tuple((str(value), n / len(given)) for value, n in Counter(given).most_common(3))
        n_missing = len(cells) - len(given)
        summaries.append(ColumnSummary(str(name), kind, n_missing, given.nunique(), numbers, common, unused))
    return summaries


# -- networks and their training ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkSummary:
    """Networks, their hidden layers and what stands behind a prediction."""

    hidden: tuple[int, ...]
    activations: tuple[str, ...]
    n_members: int
    n_draws: int | None  # of the posterior behind a prediction; None where it has a closed form


def network_summary(estimator: TableEstimator) -> NetworkSummary:
    """Read the networks off a fitted estimator, whatever its parameters have been set to since."""
    features = estimator.ensemble_.members.features
    draws = estimator.get_params().get("n_draws")
    n_draws = None if draws is None else draws * features.n_members
    return NetworkSummary(features.hidden, features.activations, features.n_members, n_draws)


@dataclass(frozen=True)
class TrainingCurve:
    """The log posterior of hidden weights over optimiser steps, per row: fit − complexity.

    The complexity is what it cost to leave their draws of the prior.
    """

    step: Positions
    objective: Array
    fit: Array
    complexity: Array
    stopped: str

    @property
    def late_gain(self) -> float:
        """Gain of the objective over the last fifth of training."""
        start = np.searchsorted(self.step, 0.8 * self.step[-1])
        return float(self.objective[-1] - self.objective[min(start, len(self.objective) - 1)])


def training_curve(estimator: Any) -> TrainingCurve | None:
    """The record of training; None where the model has none."""
    history = getattr(estimator, "history_", None)
    if history is None or not history.records:
        return None
    rows = np.array([(r.step, r.elbo, r.expected_log_likelihood, r.kl) for r in history.records])
    gaps = np.diff(rows[:, 0])
    if len(gaps) > 1 and gaps[-1] < gaps[0] / 2:  # the last report rests on the few steps left over: mostly noise
        rows = rows[:-1]
    step, objective, fit, complexity = rows.T
    return TrainingCurve(step.astype(np.int64), objective, fit, complexity, history.stopped)
