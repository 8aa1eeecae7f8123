"""Suspicions about training rows in plain sentences: leaks, slips, columns that say the same, row numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import Cells, CellTable, count, listing
from vmg.tables.columns import CategoryColumn, Column, DateColumn, NumberColumn
from vmg.tables.encoder import TableEncoder

__all__ = ["find_suspicions"]

Array = NDArray[np.float64]

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
    numbers = {
        column.name: column.values(table[column.name]) if isinstance(column, NumberColumn | DateColumn) else None
        for column in encoder.columns
    }
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
