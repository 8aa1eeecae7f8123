"""Remarks on tables: how a table would be read, column by column, and how rows to predict differ from the fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from vmg.tables.cells import Cells, CellTable, listing, require_columns
from vmg.tables.columns import Column, DateColumn, NumberColumn, TableChoices
from vmg.tables.dates import to_timestamps
from vmg.tables.encoder import TableEncoder, decide_comma, find_suspicions
from vmg.tables.inputs import Task, fit_target
from vmg.tables.numbers import find_units

__all__ = ["ColumnFacts", "Inspection", "column_facts", "inspect_table", "table_remarks"]

SHOWN = 3  # examples of values
LONGEST = 40  # characters of them
MEDIAN_ROWS = 10  # with fewer, a median says little
FACTORS = {1e-3: "1/1000", 1e-2: "1/100", 1e-1: "1/10", 1e1: "10", 1e2: "100", 1e3: "1000"}
NEAR = 1.5  # times a factor of ten that a ratio of medians may be off
SHIFTED = 3.0  # widths of the training rows' middle 80 % between the medians


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
    require_columns(frame, [*([target] if target else []), *choices.named])
    rows = frame if target is None else frame[~whole[target].missing]
    columns = CellTable(rows.drop(columns=choices.ignored), training=True)
    notes, suspicions = [], []
    comma = decide_comma(columns, choices)
    fitted_target = None if target is None else fit_target(columns[target], task, comma)  # type: ignore[arg-type]
    encoder = TableEncoder.fit(columns, choices, target=target)
    if fitted_target is not None:
        notes.append(fitted_target.reason)
        suspicions += find_suspicions(columns, encoder, str(target), fitted_target.values)
    notes += encoder.describe()[1:]
    task_found = "" if fitted_target is None else fitted_target.task
    return Inspection(column_facts(encoder, whole, target, task_found, choices.ignored), notes, suspicions)


def column_facts(
    encoder: TableEncoder,
    table: pd.DataFrame | CellTable,
    target: str | None = None,
    task: str = "",
    ignored: Sequence[str] = (),
) -> list[ColumnFacts]:
    """Every column of a table, as an encoder reads it."""
    table, read, facts = CellTable.of(table), {column.name: column for column in encoder.columns}, []
    for name in map(str, table.frame):
        cells, column = table[name], read.get(name)
        kind, role = ("text", "left out") if column is None else (column.kind, "input")
        if name == target:
            kind, role = "number" if task == "regression" else "class", "target"
        elif name in ignored:
            role = "ignored"
        missing = cells.missing if column is None else column.marks(cells)["missing"]
        facts.append(ColumnFacts(name, kind, role, int(missing.sum()), cells.n_distinct, _values(column, cells)))
    return facts


def _values(column: Column | None, cells: Cells) -> str:
    if isinstance(column, NumberColumn) or (column is None and cells.is_numeric):
        values = cells.values if column is None else column.values(cells)
        values = values[np.isfinite(values)]
        unit = f" {column.unit}" if isinstance(column, NumberColumn) and column.unit else ""
        return f"{values.min():.6g} to {values.max():.6g}{unit}" if len(values) else ""
    if isinstance(column, DateColumn):
        times = to_timestamps(cells, column.date_format)
        times = times[~np.isnat(times)]
        return f"{str(times.min())[:10]} to {str(times.max())[:10]}" if len(times) else ""
    shown = ", ".join(cells.levels[np.argsort(-cells.counts, kind="stable")[:SHOWN]])
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


# -- rows to predict --------------------------------------------------------------------------------------------------


def table_remarks(
    encoder: TableEncoder, frame: pd.DataFrame | CellTable, target: str | None = None, ignored: Sequence[str] = ()
) -> list[str]:
    """Sentences about values in ``frame`` that the model cannot use, or that are unlike its training rows."""
    table = CellTable.of(frame)
    extra = [n for n in table.frame if n not in {*encoder.column_names, *encoder.dropped, *ignored, target}]
    sentences = [f"Not used by the model: {listing(extra)}."] if extra else []
    here = [column for column in encoder.columns if column.name in table.frame.columns]
    for column in here:
        if unseen := column.unseen(table[column.name]):
            sentences.append(f"Column '{column.name}' has values unknown from the fit: {listing(unseen)}.")
    holes = {c.name: int(table[c.name].missing.sum()) for c in here}
    new = [f"'{c.name}' ({holes[c.name]:,})" for c in here if not c.n_missing and holes[c.name]]
    if new:
        sentences.append(f"Missing here and never in the fit, so any of its values may be meant: {listing(new)}.")
    numbers = [column for column in here if isinstance(column, NumberColumn)]
    return sentences + [remark for column in numbers for remark in _shift_remarks(column, table[column.name])]


def _shift_remarks(column: NumberColumn, cells: Cells) -> list[str]:
    """Sentences about numbers of a column that are unlike the training rows, as after a change of unit."""
    remarks = []
    values = column.values(cells)
    values = values[~np.isnan(values)]
    if len(values) and not pd.api.types.is_bool_dtype(cells.column):
        unit, _ = find_units(cells)
        if unit != column.unit:
            before, now = (f"'{name}'" if name else "no unit" for name in (column.unit, unit))
            remarks.append(f"Column '{column.name}' was written with {before} at the fit and with {now} here.")
    if len(values) < MEDIAN_ROWS or not len(column.quantiles):
        return remarks
    here = float(np.median(values))
    low, there, high = (column.quantiles[k] for k in (0, len(column.quantiles) // 2, -1))
    outside = float(np.mean((values < column.low) | (values > column.high)))
    ratio = here / there if here * there > 0 else 0.0
    factor = next((word for power, word in FACTORS.items() if 1 / NEAR <= ratio / power <= NEAR), "")
    far = abs(here - there) > SHIFTED * max(high - low, np.finfo(np.float64).tiny)
    if outside > 0.5 or far or (factor and not low <= here <= high):
        hint = f", about {factor} of it; was its unit changed?" if factor else "; is it the same quantity?"
        remarks.append(
            f"Column '{column.name}' is unlike the training rows: its median is {here:.4g}, there {there:.4g}{hint}"
        )
    return remarks
