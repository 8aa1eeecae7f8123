"""Numbers as people write them: with thousands, decimals, currency, percent, brackets and one unit a column.

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

from vmg.tables.cells import MIN_SHARE, NUMBER, Cells, full_matches, kept

__all__ = ["CommaVotes", "count_comma_votes", "find_units", "has_decimal_commas", "to_numbers"]

Array = NDArray[np.float64]

THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
SURELY_THOUSANDS = r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)"  # 1,234,567 and 1,234.5
SURELY_DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}"
DIGITS_AND_MARKS = r"[+-]?[\d.,]+([eE][+-]?\d+)?"
INFINITE = r"(?i)[+-]?(inf|infinity|∞)"
CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
CURRENCY_SIGNS = [*"$€£¥"]
SIGN = re.compile(r"[$€£¥%]")
BRACKETS = re.compile(r"^\(\s*([^()+-][^()]*)\)$")  # (1,234) is -1,234 in accounts
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567
UNICODE_MINUS = "\u2212"
UNIT = re.compile(r"(.*?[\d.,)])\s*([^\W\d_]{1,12}[²³]?(?:/[^\W\d_]{1,6}[²³]?)?)", re.DOTALL)  # 3.5 km, 12 km/h
VOTING_TEXTS = 20_000
UNITS = re.compile(
    "[mcdk]?m|in|inch|ft|yd|mi|miles?|m?g|kg|t|lbs?|oz|[mc]?l|k|mio|bn|m?s|sec|min|h|hrs?|(day|week|month|year)s?"
)
"""Words that surely are units, so that cells with several of them are no categories."""


@kept
def to_numbers(cells: Cells, decimal_comma: bool | None = None, unit: str | None = None) -> Array:
    """Cells as numbers, also 1,234.5 and (12) and 12 % and $3; NaN where missing or not a number.

    ``decimal_comma`` None asks this column alone. Where ``unit`` is given, it may follow the number, as in 3.5 km, and
    a number with another one is none. A number without any is taken to be in the unit, but not beside percents: 0.8
    may be 80 %. Infinite numbers, and those beyond the range of floating point, are missing in training rows.
    """
    if cells.is_numeric:
        values = cells.values
    else:
        comma = has_decimal_commas(cells) if decimal_comma is None else decimal_comma
        of_levels, marks = _level_values(cells, comma), _written(cells)[1]
        bare, currency = marks == "", np.isin(marks, CURRENCY_SIGNS)
        if unit is None:
            good = bare | currency | (marks == "%")
        else:
            good = (marks == unit) | (bare & ((unit != "%") | (of_levels == 0))) | (currency & (unit == ""))
        of_levels = np.where(good, of_levels, np.nan)
        words = full_matches(cells.arrow, INFINITE)
        of_levels[words] = [-np.inf if text.startswith("-") else np.inf for text in cells.levels[words]]
        values = cells.spread(of_levels, np.nan)
    if cells.training and np.isinf(values).any():
        values = np.where(np.isinf(values), np.nan, values)
    return values


@kept
def _level_values(cells: Cells, decimal_comma: bool) -> Array:
    """Each level as a number in one of the two conventions, whatever its unit; NaN where it is none."""
    bare, _ = _written(cells)
    grouped = full_matches(bare, f"{DECIMAL_COMMA}|{DOT_THOUSANDS}" if decimal_comma else THOUSANDS)
    if grouped.any():
        points = pc.replace_substring(bare, "." if decimal_comma else ",", "")
        bare = pc.if_else(pa.array(grouped), pc.replace_substring(points, ",", "."), bare)
    good = full_matches(bare, NUMBER)
    values = np.full(len(good), np.nan)
    values[good] = bare.filter(pa.array(good)).cast(pa.float64()).to_numpy()
    return values


@kept
def _written(cells: Cells) -> tuple[pa.Array, NDArray[Any]]:
    """The levels without their units and signs, and these; both are empty for words.

    Only what is no plain number is taken apart, one by one.
    """
    texts = cells.arrow
    simple = full_matches(texts, DIGITS_AND_MARKS)
    complicated = pc.match_substring_regex(texts, r"\pN").to_numpy(zero_copy_only=False) & ~simple
    parts = [_split_mark(text) for text in texts.filter(pa.array(complicated)).to_pylist()]
    marks = np.full(len(texts), "", dtype=object)
    marks[complicated] = [mark for _, mark in parts]
    numbers = pa.array([number for number, _ in parts], pa.string())
    return pc.replace_with_mask(pc.if_else(pa.array(simple), texts, ""), pa.array(complicated), numbers), marks


def _split_mark(text: str) -> tuple[str, str]:
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


@kept
def find_units(cells: Cells) -> tuple[str, list[str]]:
    """The word after the numbers of a column, as in 3.5 km, or their sign; and the units of one in several of them.

    The first is empty, and so is the second, where cells do not agree or have none.
    """
    counts: Counter[str] = Counter()
    if not (cells.is_numeric or cells.is_time):
        bare, marks = _written(cells)
        for k in np.flatnonzero(full_matches(bare, DIGITS_AND_MARKS)):
            counts[marks[k]] += int(cells.counts[k])
    enough, units = MIN_SHARE * cells.n_given, sorted(filter(None, counts))
    for unit in units:
        if counts[unit] >= enough:
            return unit, []
    if sum(counts.values()) < enough:
        return "", []
    signs = [unit for unit in units if SIGN.fullmatch(unit)]
    words = [unit for unit in units if unit not in signs]
    if len(words) > 1 and sum(counts[word] for word in words) >= enough:
        return "", words if all(UNITS.fullmatch(word.lower()) for word in words) else []
    if len(signs) > 1 and counts[""] < enough:
        return "", signs
    if signs == ["%"] and counts["%"] > (1 - MIN_SHARE) * cells.n_given:
        return "", ["%", "no sign"]
    return units[0] if len(units) == 1 and units[0] in CURRENCY_SIGNS else "", []


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
    kinds = THOUSANDS, DECIMAL_COMMA, NUMBER, DOT_THOUSANDS
    texts = {name: c for name, c in columns.items() if not (c.is_numeric or c.is_time or c.is_category)}
    for name, cells in texts.items():
        bare = _written(cells)[0][:VOTING_TEXTS]
        thousands, decimals, points, dotted = (full_matches(bare, kind) for kind in kinds)
        if not len(bare) or (thousands | decimals | points | dotted).mean() < MIN_SHARE:
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
    return bool(count_comma_votes({"": cells}).decide())
