"""Cells as people write them, read as texts, numbers and dates."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

__all__ = [
    "DATE_FORMATS",
    "Numbers",
    "find_date_format",
    "is_number",
    "looks_like_dates",
    "to_dates",
    "to_numbers",
    "to_texts",
]

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
DECORATION = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567

DATE_FORMATS = (
    "ISO8601",
    *(
        f"{day}{time}"
        for day in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
        for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
    ),
    "%d %b %Y",
    "%b %d, %Y",
)
DATE_LIKE = r".*\d{4}.*\d.*|.*\d.*\d{4}.*"  # a year of four digits and something else


class Numbers(NamedTuple):
    """Cells read as numbers: NaN where missing or not a number."""

    values: pd.Series
    decimal_comma: bool
    not_numbers: list[str]


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    return NUMBER.fullmatch(text) is not None


def to_texts(column: pd.Series) -> pd.Series:
    """Cells as stripped texts, None where missing; 3.0 becomes "3" so that a hole in a column changes nothing."""

    def text(value: Any) -> str | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return str(value).strip() or None

    cells = column.astype(object)
    return cells.where(cells.notna(), None).map(text, na_action="ignore").astype(object)


def to_numbers(column: pd.Series, decimal_comma: bool | None = None) -> Numbers:
    """Cells as numbers, also 1,234.5 and 12 % and $3; ``decimal_comma`` None finds out what a comma means.

    A comma is a decimal point only if some cell rules out that it separates thousands; a dot then separates them
    wherever it can. Infinity counts as missing.
    """
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        values = column.astype("Float64").astype("float64")
        return Numbers(values.where(np.isfinite(values)), bool(decimal_comma), [])
    texts = to_texts(column)
    given = texts.dropna().astype(str)
    plain = given.str.replace(DECORATION, r"\1", regex=True).str.replace(INNER_SPACE, "", regex=True)
    if decimal_comma is None:
        with_comma = plain[plain.str.contains(",", regex=False)]
        thousands, decimal = (with_comma.str.fullmatch(pattern) for pattern in (THOUSANDS, DECIMAL_COMMA))
        decimal_comma = bool((decimal & ~thousands).any() and not (thousands & ~decimal).any())
    if decimal_comma:
        fits = plain.str.fullmatch(DECIMAL_COMMA) | plain.str.fullmatch(DOT_THOUSANDS)
        plain = plain.mask(fits, plain.str.replace(".", "", regex=False).str.replace(",", ".", regex=False))
    else:
        fits = plain.str.fullmatch(THOUSANDS)
        plain = plain.mask(fits, plain.str.replace(",", "", regex=False))
    good = plain.str.fullmatch(NUMBER)
    cells = np.full(len(column), np.nan)
    cells[texts.notna().to_numpy()] = plain.where(good).astype(np.float64)
    values = pd.Series(cells, index=column.index)
    return Numbers(values.where(np.isfinite(values)), decimal_comma, sorted(given[~good].unique()))


def looks_like_dates(column: pd.Series) -> bool:
    """Whether every cell that is not missing has a year and something else."""
    given = to_texts(column).dropna().astype(str)
    return not given.empty and bool(given.str.fullmatch(DATE_LIKE).all())


def find_date_format(column: pd.Series) -> str | None:
    """The format that reads every cell that is not missing as a date; None if there is none."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return DATE_FORMATS[0]
    if not looks_like_dates(column):
        return None
    given = to_texts(column).dropna().astype(str)
    return next((form for form in DATE_FORMATS if to_dates(given, form).notna().all()), None)


def to_dates(column: pd.Series, date_format: str) -> pd.Series:
    """Cells as moments without a time zone; NaT where missing or not in the format."""
    cells = column if pd.api.types.is_datetime64_any_dtype(column) else to_texts(column)
    moments = pd.to_datetime(cells, format=date_format, errors="coerce", utc=True)
    return moments.dt.tz_localize(None)
