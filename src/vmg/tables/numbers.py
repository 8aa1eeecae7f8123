"""Cells as people write numbers: thousands, decimals, currency, percent, brackets and one unit a column."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.decimals import bare_numbers, count_comma_votes, to_points
from vmg.tables.values import NUMBER, plain, to_texts

__all__ = ["UNITS", "Numbers", "find_unit", "mixed_units", "to_numbers"]

UNIT = r"(?i)^(.*?[\d.,)])\s*([^\W\d_]{1,12}[²³]?(?:/[^\W\d_]{1,6}[²³]?)?)$"  # 3.5 km, 12 km/h
MIN_UNIT_SHARE = 0.9
UNITS = frozenset(
    [
        *("mm", "cm", "dm", "m", "km", "in", "inch", "ft", "yd", "mi", "mile", "miles"),
        *("mg", "g", "kg", "t", "lb", "lbs", "oz", "ml", "cl", "l"),
        *(
            "ms",
            "s",
            "sec",
            "min",
            "h",
            "hr",
            "hrs",
            "day",
            "days",
            "week",
            "weeks",
            "month",
            "months",
            "year",
            "years",
        ),
        *("k", "mio", "bn"),
    ]
)
"""Words that surely are units, so that cells with several of them are no categories."""


class Numbers(NamedTuple):
    """Cells read as numbers: NaN where missing or not a number; ``infinite`` says whose size no number has."""

    values: NDArray[np.float64]
    decimal_comma: bool
    not_numbers: list[str]
    infinite: NDArray[np.float64]  # 1, -1, or 0 where it is not


def find_unit(column: pd.Series) -> str | None:
    """The word after the numbers of a column, as in 3.5 km, or the percent sign; None where cells do not agree."""
    texts = to_texts(column).dropna().astype(str)
    if texts.empty:
        return None
    if texts.str.contains(r"\d\s*%$", regex=True).mean() >= MIN_UNIT_SHARE:
        return "%"
    [(unit, times)] = _units(texts).most_common(1) or [("", 0)]
    return unit if unit and times >= MIN_UNIT_SHARE * len(texts) else None


def mixed_units(column: pd.Series) -> list[str]:
    """The units of a column that is written in several of them, as 3.5 km and 300 m; empty where it is not."""
    if pd.api.types.is_numeric_dtype(plain(column)):
        return []
    texts = to_texts(column).dropna().astype(str)
    found = _units(texts)
    if len(found) < 2 or sum(found.values()) < MIN_UNIT_SHARE * len(texts):
        return []
    return sorted(found) if all(unit.lower() in UNITS for unit in found) else []


def _units(texts: pd.Series) -> Counter[str]:
    parts = texts.str.extract(UNIT)
    numbers = bare_numbers(parts[0].dropna())
    good = numbers.str.fullmatch(r"[+-]?[\d.,]+")
    return Counter(parts.loc[numbers.index[good], 1])


def to_numbers(column: pd.Series, decimal_comma: bool | None = None, unit: str | None = None) -> Numbers:
    """Cells as numbers, also 1,234.5 and (12) and 12 % and $3; ``decimal_comma`` None asks this column alone.

    Where ``unit`` is given, it may follow the number, as in 3.5 km. Infinity and numbers beyond the range of floating
    point are NaN, and told apart by ``infinite``.
    """
    column = plain(column)
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        extension = pd.api.types.is_extension_array_dtype(column.dtype)
        cells = column.to_numpy(dtype=np.float64, **({"na_value": np.nan} if extension else {}))
        return _numbers(cells, np.where(np.isinf(cells), np.sign(cells), 0.0), bool(decimal_comma), [])
    texts = to_texts(column)
    given = texts.dropna().astype(str)
    if unit and unit != "%":
        parts = given.str.extract(UNIT)
        given_bare = given.mask((parts[1] == unit).to_numpy(), parts[0])
    else:
        given_bare = given
    bare = bare_numbers(given_bare)
    if decimal_comma is None:
        decimal_comma = bool(count_comma_votes({"": given_bare}).decide())
    bare = to_points(bare, decimal_comma)
    good = bare.str.fullmatch(NUMBER)
    here = texts.notna().to_numpy()
    cells = np.full(len(column), np.nan)
    cells[here] = bare.where(good).astype(np.float64)
    infinite = np.where(np.isinf(cells), np.sign(cells), 0.0)
    words = given.str.fullmatch(r"(?i)[+-]?(inf|infinity|∞)").to_numpy(dtype=bool)
    infinite[here] += np.where(words, np.where(given.str.startswith("-"), -1.0, 1.0), 0.0)
    return _numbers(cells, infinite, decimal_comma, sorted(given[~good].unique()))


def _numbers(
    cells: NDArray[np.float64], infinite: NDArray[np.float64], decimal_comma: bool, not_numbers: list[str]
) -> Numbers:
    return Numbers(np.where(np.isfinite(cells), cells, np.nan), decimal_comma, not_numbers, infinite)
