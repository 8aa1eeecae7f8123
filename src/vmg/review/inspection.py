"""How a table would be read, column by column, without a fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from vmg.tables.cells import Cells, CellTable
from vmg.tables.choices import TableChoices
from vmg.tables.columns import Column, NumberColumn
from vmg.tables.date_columns import DateColumn
from vmg.tables.encoder import TableEncoder, decide_comma
from vmg.tables.remarks import find_suspicions
from vmg.tables.target import Task, fit_target
from vmg.tables.wording import TableError, listing

__all__ = ["ColumnFacts", "Inspection", "inspect_table"]

SHOWN = 3  # examples of values
LONGEST = 40  # characters of them


class ColumnFacts(NamedTuple):
    """One column: its type, what it would be used for, and some of its values."""

    name: str
    type: str
    role: str
    missing: int
    different: int
    values: str


class Inspection(NamedTuple):
    """All columns, how they are read, and what is suspicious."""

    columns: list[ColumnFacts]
    notes: list[str]
    suspicions: list[str]


def inspect_table(
    frame: pd.DataFrame, target: str | None = None, task: Task | str | None = None, choices: TableChoices | None = None
) -> Inspection:
    """Look at a table as a fit would."""
    whole = CellTable(frame)
    choices = choices or TableChoices()
    unknown = [name for name in [*([target] if target else []), *choices.named] if name not in frame.columns]
    if unknown:
        raise TableError(f"the table has no column {listing(unknown)}; it has {listing(frame.columns)}")
    rows = frame if target is None else frame[~whole[target].missing]
    columns = CellTable(rows.drop(columns=choices.ignored), training=True)
    notes, suspicions = [], []
    comma = decide_comma(columns, choices)
    fitted_target = None if target is None else fit_target(rows[target], task, comma)  # type: ignore[arg-type]
    encoder = TableEncoder.fit(columns, choices, target=target)
    if fitted_target is not None:
        notes.append(fitted_target.reason)
        suspicions += find_suspicions(columns, encoder, str(target), fitted_target.values)
    notes += encoder.describe()[1:]
    read = {column.name: column for column in encoder.columns}
    facts = [
        _facts(whole[name], read.get(str(name)), encoder, choices, target, fitted_target) for name in frame.columns
    ]
    return Inspection(facts, notes, suspicions)


def _facts(
    cells: Cells,
    column: Column | None,
    encoder: TableEncoder,
    choices: TableChoices,
    target: str | None,
    fitted_target: object,
) -> ColumnFacts:
    name = cells.name
    kind, role = (column.kind, "input") if column is not None else ("text", "left out")
    if name == target:
        kind, role = ("number" if getattr(fitted_target, "task", "") == "regression" else "class"), "target"
    elif name in choices.ignored:
        role = "ignored"
    missing = int(column.marks(cells)["missing"].sum()) if column is not None else int(cells.missing.sum())
    return ColumnFacts(name, kind, role, missing, cells.n_distinct, _values(column, cells))


def _values(column: Column | None, cells: Cells) -> str:
    if isinstance(column, NumberColumn):
        return f"{column.low:.6g} to {column.high:.6g}" + (f" {column.unit}" if column.unit else "")
    if isinstance(column, DateColumn):
        ends = pd.to_datetime([column.low, column.high], unit="D", origin="unix", errors="coerce")
        if not ends.isna().any():
            return " to ".join(str(end)[:10] for end in ends)
    shown = ", ".join(cells.levels[np.argsort(-cells.counts, kind="stable")[:SHOWN]])
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
