"""Cells as people write numbers: thousands, decimals, currency, percent, brackets and one unit a column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import NUMBER, plain, to_texts

__all__ = [
    "UNITS",
    "CommaVotes",
    "Numbers",
    "bare_numbers",
    "count_comma_votes",
    "find_decimal_comma",
    "find_unit",
    "mixed_units",
    "to_numbers",
    "to_points",
]

THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")  # 1.234.567,8
SURELY_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)")  # 1,234,567 and 1,234.5
SURELY_DOT_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}")
CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
BRACKETS = re.compile(r"^\(\s*([^()+-][^()]*)\)$")  # (1,234) is -1,234 in accounts
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567
UNICODE_MINUS = "\u2212"
UNIT_WORD = re.compile(r"\s*[^\W\d_]+$")  # km
VOTING_SHARE = 0.9  # of a column's cells that must be numbers either way for its commas to be counted
VOTING_CELLS = 20_000


class CommaVotes(NamedTuple):
    """Columns whose cells are numbers only with decimal commas, only with decimal points, or with either."""

    comma: list[str]
    point: list[str]
    either: list[str]

    def decide(self, separator: str | None = None) -> bool | None:
        """Whether a comma is the decimal point; None where no cell has one.

        The larger number of columns wins. Where cells leave both open, as in 3,707, a file whose cells are separated
        by semicolons has decimal commas: they are why it has semicolons.
        """
        if len(self.comma) != len(self.point):
            return len(self.comma) > len(self.point)
        return separator == ";" if self.comma or self.either else None


def bare_number(text: str) -> str:
    """A text without currency, percent signs, spaces between thousands and brackets of negative amounts."""
    text = BRACKETS.sub(r"-\1", text.replace(UNICODE_MINUS, "-"))
    return INNER_SPACE.sub("", CURRENCY.sub(r"\1", text)).strip()


def bare_numbers(texts: pd.Series) -> pd.Series:
    """:func:`bare_number` of each text."""
    return texts.map(bare_number)


def to_points(bare: pd.Series, decimal_comma: bool) -> pd.Series:
    """Numbers of a convention in the one that Python has: no thousands, a decimal point."""
    if decimal_comma:
        fits = bare.str.fullmatch(DECIMAL_COMMA) | bare.str.fullmatch(DOT_THOUSANDS)
        return bare.mask(fits, bare.str.replace(".", "", regex=False).str.replace(",", ".", regex=False))
    return bare.mask(bare.str.fullmatch(THOUSANDS), bare.str.replace(",", "", regex=False))


def count_comma_votes(columns: Mapping[str, Iterable[str]]) -> CommaVotes:
    """Ask each column of texts whether its commas can only be one thing."""
    votes = CommaVotes([], [], [])
    for name, texts in columns.items():
        cells = [UNIT_WORD.sub("", bare_number(text)) for text in dict.fromkeys(islice(texts, VOTING_CELLS))]
        numbers = [cell for cell in cells if _is_number_in_some_way(cell)]
        if not cells or len(numbers) < VOTING_SHARE * len(cells):
            continue
        marked = [cell for cell in numbers if "," in cell or "." in cell]
        comma, point = sum(map(_needs_comma, marked)), sum(map(_needs_point, marked))
        if comma or point:
            (votes.comma if comma > point else votes.point).append(name)
        elif any(THOUSANDS.fullmatch(cell) for cell in marked):
            votes.either.append(name)
    return votes


def _is_number_in_some_way(cell: str) -> bool:
    return any(pattern.fullmatch(cell) for pattern in (NUMBER, THOUSANDS, DECIMAL_COMMA, DOT_THOUSANDS))


def _needs_comma(cell: str) -> bool:
    """Whether a cell is a number only where a comma is the decimal point."""
    decimal = DECIMAL_COMMA.fullmatch(cell) and not THOUSANDS.fullmatch(cell)
    return bool(decimal or SURELY_DOT_THOUSANDS.fullmatch(cell))


def _needs_point(cell: str) -> bool:
    """Whether a cell is a number only where a point is."""
    has_point = "." in cell and NUMBER.fullmatch(cell) and not DOT_THOUSANDS.fullmatch(cell)
    return bool(has_point or SURELY_THOUSANDS.fullmatch(cell))


def find_decimal_comma(frame: pd.DataFrame, separator: str | None = None) -> bool:
    """Whether a comma is the decimal point in the columns of texts of a table."""
    columns = {str(name): frame[name] for name in frame.columns}
    texts = {name: to_texts(c).dropna() for name, c in columns.items() if c.dtype == object or _is_text(c)}
    return bool(count_comma_votes(texts).decide(separator))


def _is_text(column: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(column) and not pd.api.types.is_numeric_dtype(column)


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
