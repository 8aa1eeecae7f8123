"""What a comma between digits means: one convention for a whole table, decided from all of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
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

THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
SURELY_THOUSANDS = r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)"  # 1,234,567 and 1,234.5
SURELY_DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}"
CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
BRACKETS = re.compile(r"^\(\s*([^()+-][^()]*)\)$")  # (1,234) is -1,234 in accounts
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567
UNICODE_MINUS = "\u2212"
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


def bare_numbers(texts: pd.Series) -> pd.Series:
    """Texts without currency, percent signs, spaces between thousands and brackets of negative amounts."""
    texts = texts.str.replace(UNICODE_MINUS, "-", regex=False)
    inner = texts.str.replace(BRACKETS, r"-\1", regex=True)
    bare = inner.str.replace(CURRENCY, r"\1", regex=True).str.replace(INNER_SPACE, "", regex=True)
    return bare.str.strip()


def to_points(bare: pd.Series, decimal_comma: bool) -> pd.Series:
    """Numbers of a convention in the one that Python has: no thousands, a decimal point."""
    if decimal_comma:
        fits = bare.str.fullmatch(DECIMAL_COMMA) | bare.str.fullmatch(DOT_THOUSANDS)
        return bare.mask(fits, bare.str.replace(".", "", regex=False).str.replace(",", ".", regex=False))
    return bare.mask(bare.str.fullmatch(THOUSANDS), bare.str.replace(",", "", regex=False))


def count_comma_votes(columns: Iterable[pd.Series]) -> CommaVotes:
    """Ask each column of texts whether its commas can only be one thing."""
    votes = CommaVotes([], [], [])
    for column in columns:
        bare = bare_numbers(to_texts(column).dropna().astype(str).iloc[:VOTING_CELLS].drop_duplicates())
        bare = bare.str.replace(r"\s*[^\W\d_]+$", "", regex=True)  # a unit such as km
        ways = [bare.str.fullmatch(pattern) for pattern in (THOUSANDS, DECIMAL_COMMA, DOT_THOUSANDS, NUMBER)]
        thousands, decimal, dots, plain = ways
        if not len(bare) or (thousands | decimal | dots | plain).mean() < VOTING_SHARE:
            continue
        comma = int(((decimal & ~thousands) | bare.str.fullmatch(SURELY_DOT_THOUSANDS)).sum())
        has_point = plain & ~dots & bare.str.contains(".", regex=False)
        point = int((has_point | bare.str.fullmatch(SURELY_THOUSANDS)).sum())
        if comma or point:
            (votes.comma if comma > point else votes.point).append(str(column.name))
        elif thousands.any():
            votes.either.append(str(column.name))
    return votes


def find_decimal_comma(frame: pd.DataFrame, separator: str | None = None) -> bool:
    """Whether a comma is the decimal point in the columns of texts of a table."""
    texts = [frame[name] for name in frame.columns if frame[name].dtype == object or _is_text(frame[name])]
    return bool(count_comma_votes(texts).decide(separator))


def _is_text(column: pd.Series) -> bool:
    return pd.api.types.is_string_dtype(column) and not pd.api.types.is_numeric_dtype(column)
