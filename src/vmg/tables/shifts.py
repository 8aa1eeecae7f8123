"""Columns whose numbers are unlike those of the training rows, as after a change of unit."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vmg.tables.cells import plain
from vmg.tables.columns import NumberColumn
from vmg.tables.numbers import find_unit

__all__ = ["shift_remarks"]

MIN_ROWS = 10  # with fewer, a median says little
FACTORS = {1e-3: "1/1000", 1e-2: "1/100", 1e-1: "1/10", 1e1: "10", 1e2: "100", 1e3: "1000"}
NEAR = 1.5  # times a factor of ten that a ratio of medians may be off
SHIFTED = 3.0  # widths of the training rows' middle 80 % between the medians


def shift_remarks(column: NumberColumn, cells: pd.Series) -> list[str]:
    """What is unlike the training rows in a column, in short sentences."""
    remarks = []
    values = column.read(cells).values
    values = values[~np.isnan(values)]
    if len(values) and not pd.api.types.is_bool_dtype(plain(cells)):
        unit = "" if pd.api.types.is_numeric_dtype(plain(cells)) else find_unit(cells) or ""
        if unit != column.unit:
            before, now = (f"'{name}'" if name else "no unit" for name in (column.unit, unit))
            remarks.append(f"Column '{column.name}' was written with {before} at the fit and with {now} here.")
    if len(values) < MIN_ROWS or not len(column.quantiles):
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
