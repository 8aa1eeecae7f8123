"""Cells as people write numbers: thousands, decimals, currency, percent, brackets and one unit a column.

What a comma between digits means is one convention for a whole table, decided from all of its columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vmg.tables.cells import NUMBER, Cells, full_matches

__all__ = [
    *("CommaVotes", "count_comma_votes", "find_unit", "has_decimal_commas", "mixed_units", "split_mark", "to_numbers")
]

Array = NDArray[np.float64]

THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
SURELY_THOUSANDS = r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)"  # 1,234,567 and 1,234.5
SURELY_DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}"
DIGITS_AND_MARKS = r"[+-]?[\d.,]+([eE][+-]?\d+)?"
INFINITE = r"(?i)[+-]?(inf|infinity|∞)"
CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
CURRENCY_SIGNS = frozenset("$€£¥")
SIGN = re.compile(r"[$€£¥%]")
BRACKETS = re.compile(r"^\(\s*([^()+-][^()]*)\)$")  # (1,234) is -1,234 in accounts
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567
UNICODE_MINUS = "\u2212"
UNIT = re.compile(r"(.*?[\d.,)])\s*([^\W\d_]{1,12}[²³]?(?:/[^\W\d_]{1,6}[²³]?)?)", re.DOTALL)  # 3.5 km, 12 km/h
MIN_UNIT_SHARE = 0.9
VOTING_SHARE = 0.9  # of a column's texts that must be numbers either way for its commas to be counted
VOTING_TEXTS = 20_000
LENGTHS = ("mm", "cm", "dm", "m", "km", "in", "inch", "ft", "yd", "mi", "mile", "miles")
AMOUNTS = ("mg", "g", "kg", "t", "lb", "lbs", "oz", "ml", "cl", "l", "k", "mio", "bn")
SHORT_TIMES = ("ms", "s", "sec", "min", "h", "hr", "hrs")
LONG_TIMES = ("day", "days", "week", "weeks", "month", "months", "year", "years")
UNITS = frozenset([*LENGTHS, *AMOUNTS, *SHORT_TIMES, *LONG_TIMES])
"""Words that surely are units, so that cells with several of them are no categories."""


class _Written(NamedTuple):
    """The levels of a column without their units and signs, and these; both are empty for words."""

    bare: pa.Array
    marks: NDArray[Any]


def to_numbers(cells: Cells, decimal_comma: bool | None = None, unit: str | None = None) -> Array:
    """Cells as numbers, also 1,234.5 and (12) and 12 % and $3; NaN where missing or not a number.

    ``decimal_comma`` None asks this column alone. Where ``unit`` is given, it may follow the number, as in 3.5 km, and
    a number with another one is none. A number without any is taken to be in the unit, but not beside percents: 0.8
    may be 80 %. Infinite numbers, and those beyond the range of floating point, are missing in training rows.
    """
    return cells.once(("numbers", decimal_comma, unit), lambda: _read_numbers(cells, decimal_comma, unit))


def _read_numbers(cells: Cells, decimal_comma: bool | None, unit: str | None) -> Array:
    if cells.is_numeric:
        values = cells.values
    else:
        of_levels = _level_values(cells, has_decimal_commas(cells) if decimal_comma is None else decimal_comma)
        of_levels = np.where(_in_unit(_written(cells).marks, of_levels, unit), of_levels, np.nan)
        words = full_matches(cells.arrow, INFINITE)
        of_levels[words] = [-np.inf if text.startswith("-") else np.inf for text in cells.levels[words]]
        values = cells.spread(of_levels, np.nan)
    if cells.training and np.isinf(values).any():
        values = np.where(np.isinf(values), np.nan, values)
    return values


def _in_unit(marks: NDArray[Any], values: Array, unit: str | None) -> NDArray[np.bool_]:
    """Whether numbers with these units and signs are in a unit; None takes any sign."""
    currency = np.isin(marks, list(CURRENCY_SIGNS))
    if unit is None:
        return currency | (marks == "%") | (marks == "")
    bare = (marks == "") & (True if unit != "%" else values == 0)
    return np.asarray((marks == unit) | bare | (currency if unit == "" else False), dtype=bool)


def _level_values(cells: Cells, decimal_comma: bool) -> Array:
    """Each level as a number in one of the two conventions, whatever its unit; NaN where it is none."""

    def read() -> Array:
        bare = _written(cells).bare
        grouped = full_matches(bare, f"{DECIMAL_COMMA}|{DOT_THOUSANDS}" if decimal_comma else THOUSANDS)
        if grouped.any():
            points = pc.replace_substring(bare, "." if decimal_comma else ",", "")
            bare = pc.if_else(pa.array(grouped), pc.replace_substring(points, ",", "."), bare)
        good = full_matches(bare, NUMBER)
        values = np.full(len(good), np.nan)
        values[good] = bare.filter(pa.array(good)).cast(pa.float64()).to_numpy()
        return values

    return cells.once(("level values", decimal_comma), read)


def _written(cells: Cells) -> _Written:
    """The levels without their units and signs; only what is no plain number is taken apart, one by one."""

    return cells.once("written", lambda: _take_apart(cells.arrow))


def _take_apart(texts: pa.Array) -> _Written:
    simple = full_matches(texts, DIGITS_AND_MARKS)
    digits = pc.match_substring_regex(texts, r"\pN").to_numpy(zero_copy_only=False)
    marks = np.full(len(texts), "", dtype=object)
    complicated = np.flatnonzero(digits & ~simple)
    bare = pc.if_else(pa.array(simple), texts, "")
    if len(complicated):
        parts = [split_mark(text) for text in texts.take(pa.array(complicated)).to_pylist()]
        marks[complicated] = [mark for _, mark in parts]
        bare = pc.replace_with_mask(bare, pa.array(digits & ~simple), pa.array([number for number, _ in parts]))
    return _Written(bare, marks)


def split_mark(text: str) -> tuple[str, str]:
    """A number without its currency, percent sign, unit, spaces between thousands and brackets; and that mark."""
    mark = ""
    if with_unit := UNIT.fullmatch(text):
        text, mark = with_unit[1], with_unit[2]
    elif sign := SIGN.search(text):
        mark = sign[0]
    text = BRACKETS.sub(r"-\1", text.replace(UNICODE_MINUS, "-"))
    text = INNER_SPACE.sub("", CURRENCY.sub(r"\1", text)).strip()
    if not text.isascii():  # digits of other scripts
        text = re.sub(r"\d", lambda digit: str(int(digit[0])), text).encode(errors="replace").decode()
    return text, mark


# -- units -----------------------------------------------------------------------------------------------------------


def find_unit(cells: Cells) -> str:
    """The word after the numbers of a column, as in 3.5 km, or their sign; empty where cells do not agree."""
    marks, enough = _count_marks(cells), MIN_UNIT_SHARE * cells.n_given
    for mark, n in marks.items():
        if mark and n >= enough:
            return mark
    signs = [mark for mark in marks if mark]
    return signs[0] if len(signs) == 1 and signs[0] in CURRENCY_SIGNS and sum(marks.values()) >= enough else ""


def mixed_units(cells: Cells) -> list[str]:
    """The units of a column that is written in several of them, as 3.5 km and 300 m; empty where it is not."""
    marks, enough = _count_marks(cells), MIN_UNIT_SHARE * cells.n_given
    if sum(marks.values()) < enough or not any(marks):
        return []
    words = [mark for mark in marks if mark and not SIGN.fullmatch(mark)]
    if len(words) > 1 and sum(marks[word] for word in words) >= enough:
        return sorted(words) if all(word.lower() in UNITS for word in words) else []
    signs = [mark for mark in marks if SIGN.fullmatch(mark)]
    if len(signs) > 1 and max(marks.values()) < enough:
        return sorted(signs)
    few = (1 - MIN_UNIT_SHARE) * cells.n_given
    return ["%", "no sign"] if signs == ["%"] and few < marks["%"] < enough else []


def _count_marks(cells: Cells) -> Counter[str]:
    """How many cells that are numbers have each unit or sign, "" for none."""

    def read() -> Counter[str]:
        if cells.is_numeric or cells.is_time:
            return Counter()
        bare, marks = _written(cells)
        counts: Counter[str] = Counter()
        for k in np.flatnonzero(full_matches(bare, DIGITS_AND_MARKS)):
            counts[marks[k]] += int(cells.counts[k])
        return counts

    return cells.once("marks", read)


# -- decimal marks ---------------------------------------------------------------------------------------------------


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


def count_comma_votes(columns: Mapping[str, Cells]) -> CommaVotes:
    """Ask each column of texts whether its commas can only be one thing."""
    votes = CommaVotes([], [], [])
    for name, cells in columns.items():
        bare = _written(cells).bare[:VOTING_TEXTS]
        thousands = full_matches(bare, THOUSANDS)
        decimals = full_matches(bare, DECIMAL_COMMA)
        points = full_matches(bare, NUMBER)
        dotted = full_matches(bare, DOT_THOUSANDS)
        if not len(bare) or (thousands | decimals | points | dotted).mean() < VOTING_SHARE:
            continue
        has_point = pc.match_substring(bare, ".").to_numpy(zero_copy_only=False)
        comma = (decimals & ~thousands) | full_matches(bare, SURELY_DOT_THOUSANDS)
        point = (has_point & points & ~dotted) | full_matches(bare, SURELY_THOUSANDS)
        if comma.any() or point.any():
            (votes.comma if comma.sum() > point.sum() else votes.point).append(name)
        elif thousands.any():
            votes.either.append(name)
    return votes


def has_decimal_commas(cells: Cells) -> bool:
    """Whether a comma is the decimal point, as far as one column alone can tell."""
    return not cells.is_numeric and bool(count_comma_votes({"": cells}).decide())
