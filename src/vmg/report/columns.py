"""The columns of the report's table as the model reads them, and a summary of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd

from vmg.tables.cells import to_texts
from vmg.tables.columns import NumberColumn
from vmg.tables.date_columns import DateColumn
from vmg.tables.dates import to_dates
from vmg.tables.model import TableModel

__all__ = ["ColumnSummary", "read_columns", "summarise_columns"]


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
            cells = column.read(cells).values
        elif isinstance(column, DateColumn):
            cells = to_dates(cells, column.date_format)
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
