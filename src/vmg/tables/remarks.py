"""Remarks on a table in plain sentences: leaks and slips in training rows, changes in rows to predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import Cells, CellTable
from vmg.tables.columns import CategoryColumn, Column, NumberColumn
from vmg.tables.date_columns import DateColumn
from vmg.tables.encoder import TableEncoder
from vmg.tables.numbers import find_unit
from vmg.tables.wording import count, listing

__all__ = ["find_suspicions", "table_remarks"]

Array = NDArray[np.float64]

# -- training rows ----------------------------------------------------------------------------------------------------

MIN_ROWS = 20  # with fewer, anything may be chance
LEAK = 0.9995  # correlation with the target, of values or of their ranks
SAME = 1 - 1e-9  # correlation of two columns that differ by their unit alone
FAR = 10.0  # widths of all other values that lie between them and the few that are far
FEW = 0.005  # share of the values that may be far
MOST_COLUMNS = 500  # that are compared with each other


def find_suspicions(table: CellTable, encoder: TableEncoder, target: str, values: NDArray[Any]) -> list[str]:
    """Short sentences about the training rows ``table`` and their targets ``values``, numbers or classes."""
    if len(table) < MIN_ROWS:
        return []
    numbers = {column.name: _numbers(column, table[column.name]) for column in encoder.columns}
    said = _far_values(f"The target '{target}'", values) if values.dtype.kind == "f" else []
    for name, column in numbers.items():
        if column is not None:
            said += _far_values(f"Column '{name}'", column)
    leaks = [c.name for c in encoder.columns if _tells(c, numbers[c.name], table[c.name], values)]
    if leaks:
        said.append(
            f"{listing(leaks)} alone {'tells' if len(leaks) == 1 else 'tell'} the target '{target}' almost exactly. If "
            "not known before the target is, this is a leak: leave it out with --ignore."
        )
    plain = {c.name: numbers[c.name] for c in encoder.columns if isinstance(c, NumberColumn)}
    return said + _same_columns(table, encoder, numbers) + _row_numbers(plain)


def _numbers(column: Column, cells: Cells) -> Array | None:
    if isinstance(column, NumberColumn):
        return column.read(cells).values
    if isinstance(column, DateColumn):
        return column.days(cells)
    return None


def _far_values(what: str, values: Array) -> list[str]:
    """Whether a few values are many widths of all others away from them."""
    given = np.sort(values[np.isfinite(values)])
    few = max(1, int(FEW * len(given)))
    if len(given) < MIN_ROWS:
        return []
    scale = np.abs(given).max() or 1.0
    ordered = given / scale
    rest = ordered[few:-few]
    width = rest[-1] - rest[0]
    far = given[(ordered > rest[-1] + FAR * width) | (ordered < rest[0] - FAR * width)] if width > 0 else given[:0]
    if not len(far):
        return []
    question = "is it a slip?" if len(far) == 1 else "are they slips?"
    shown = ", ".join(f"{value:.6g}" for value in far[:3])
    return [f"{what} has {count(len(far), 'value')} far from all others ({shown}); {question}"]


def _tells(column: Column, numbers: Array | None, cells: Cells, values: NDArray[Any]) -> bool:
    """Whether a column alone gives the target away."""
    if values.dtype.kind == "f":
        return numbers is not None and _same_order(numbers, values)
    labels = np.unique(values, return_inverse=True)[1]
    if numbers is not None:
        given = np.isfinite(numbers)
        order = np.lexsort((labels[given], numbers[given]))
        ordered, at = labels[given][order], numbers[given][order]
        runs = 1 + int((np.diff(ordered) != 0).sum())
        mixed = bool(((np.diff(ordered) != 0) & (np.diff(at) == 0)).any())
        return given.mean() > 0.9 and runs == len(np.unique(labels)) and not mixed
    if isinstance(column, CategoryColumn):
        pairs = pd.DataFrame({"level": cells.texts, "label": labels}).dropna()
        n_levels = pairs["level"].nunique()
        pure = len(pairs) >= MIN_ROWS and pairs.groupby("level")["label"].nunique().max() == 1
        return bool(pure and 1 < n_levels <= len(pairs) / 4)
    return False


def _same_order(numbers: Array, values: Array) -> bool:
    given = np.isfinite(numbers)
    if given.sum() < MIN_ROWS or len(np.unique(numbers[given])) < MIN_ROWS / 2:
        return False
    pairs = pd.DataFrame(
        {"a": numbers[given] / (np.abs(numbers[given]).max() or 1.0), "b": values[given] / np.abs(values).max()}
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations = [abs(way.corr().iloc[0, 1]) for way in (pairs, pairs.rank())]
    return any(value > LEAK for value in correlations)


def _same_columns(table: CellTable, encoder: TableEncoder, numbers: dict[str, Array | None]) -> list[str]:
    """Pairs of columns that hold the same, or the same in another unit."""
    pairs: list[tuple[str, str]] = []
    seen: dict[int, str] = {}
    for column in encoder.columns:
        cells = numbers[column.name]
        key = tuple(table[column.name].texts) if cells is None else np.nan_to_num(cells, nan=np.inf).tobytes()
        if hash(key) in seen:
            pairs.append((seen[hash(key)], column.name))
        seen.setdefault(hash(key), column.name)
    same = {name for _, name in pairs}
    whole = {n: c for n, c in numbers.items() if c is not None and np.isfinite(c).all() and n not in same}
    if 1 < len(whole) <= MOST_COLUMNS:
        rows = np.stack([cells / (np.abs(cells).max() or 1.0) for cells in whole.values()])
        rows = rows - rows.mean(1, keepdims=True)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        alike = np.argwhere(np.triu(np.abs(rows @ rows.T), 1) > SAME)
        names = list(whole)
        pairs += [(names[a], names[b]) for a, b in alike]
    return [f"Columns '{a}' and '{b}' say the same; one of them is enough." for a, b in pairs]


def _row_numbers(numbers: dict[str, Array | None]) -> list[str]:
    counters = [
        name for name, cells in numbers.items() if cells is not None and len(cells) > 1 and (np.diff(cells) == 1).all()
    ]
    return [f"{listing(counters)} counts the rows; if that means nothing, use --ignore."] if counters else []


# -- rows to predict --------------------------------------------------------------------------------------------------

MEDIAN_ROWS = 10  # with fewer, a median says little
FACTORS = {1e-3: "1/1000", 1e-2: "1/100", 1e-1: "1/10", 1e1: "10", 1e2: "100", 1e3: "1000"}
NEAR = 1.5  # times a factor of ten that a ratio of medians may be off
SHIFTED = 3.0  # widths of the training rows' middle 80 % between the medians


def table_remarks(
    encoder: TableEncoder, frame: pd.DataFrame | CellTable, target: str | None = None, ignored: Sequence[str] = ()
) -> list[str]:
    """Sentences about values in ``frame`` that the model cannot use, or that are unlike its training rows."""
    table = CellTable.of(frame)
    extra = [n for n in table.names if n not in {*encoder.column_names, *encoder.dropped, *ignored, target}]
    sentences = [f"Ignored, as not known from the fit: {listing(extra)}."] if extra else []
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
    values = column.read(cells).values
    values = values[~np.isnan(values)]
    if len(values) and not pd.api.types.is_bool_dtype(cells.column):
        unit = find_unit(cells) or ""
        if unit != column.unit:
            before, now = (f"'{name}'" if name else "no unit" for name in (column.unit, unit))
            remarks.append(f"Column '{column.name}' was written with {before} at the fit and with {now} here.")
    if len(values) < MEDIAN_ROWS or not len(column.quantiles):
        return remarks
    here = float(np.median(values))
    low, there, high = (column.quantiles[k] for k in (0, len(column.quantiles) // 2, -1))
    outside = float(np.mean((values < column.low) | (values > column.high)))
    factor = _factor(here, there)
    far = abs(here - there) > SHIFTED * max(high - low, np.finfo(np.float64).tiny)
    if outside > 0.5 or far or (factor and not low <= here <= high):
        hint = f", about {factor} of it; was its unit changed?" if factor else "; is it the same quantity?"
        remarks.append(
            f"Column '{column.name}' is unlike the training rows: its median is {here:.4g}, there {there:.4g}{hint}"
        )
    return remarks


def _factor(here: float, there: float) -> str:
    """The power of ten that lies between two medians; empty where none does."""
    if here * there <= 0:
        return ""
    ratio = here / there
    return next((word for factor, word in FACTORS.items() if 1 / NEAR <= ratio / factor <= NEAR), "")
