"""What a comma between digits means: one convention for a whole table, decided from all of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import pandas as pd

from vmg.tables.values import NUMBER, to_texts

__all__ = [
    "CommaVotes",
    "bare_numbers",
    "count_comma_votes",
    "find_decimal_comma",
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
