"""Cells as people write them, read as texts and numbers."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.errors import TableError

__all__ = ["Numbers", "holds_collections", "is_number", "naive_moments", "plain", "to_numbers", "to_texts"]

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
DECORATION = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
COLLECTIONS = (list, tuple, dict, set, np.ndarray)
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567


class Numbers(NamedTuple):
    """Cells read as numbers: NaN where missing or not a number."""

    values: pd.Series
    decimal_comma: bool
    not_numbers: list[str]


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    return NUMBER.fullmatch(text) is not None


def plain(column: pd.Series) -> pd.Series:
    """The column without layers that cells cannot be read through: dense, in pandas' own types, moments in UTC.

    No moment with a zone is turned into an object on the way: at years before 1600 pandas ends there in a crash.
    """
    if isinstance(column.dtype, pd.SparseDtype):
        column = column.sparse.to_dense()
    elif isinstance(column.dtype, pd.ArrowDtype):
        arrow = column.array.__arrow_array__()
        column = pd.Series(arrow.to_pandas().array, index=column.index, name=column.name)
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_convert(None)
    elif pd.api.types.is_complex_dtype(column):
        raise TableError(f"the column '{column.name}' must hold real numbers, texts or dates; got {column.dtype}")
    return column


def holds_collections(column: pd.Series) -> bool:
    """Whether some cell is a list, a structure or the like, which no feature and no target can be made of."""
    cells = plain(column)
    return cells.dtype == object and bool(cells.map(lambda cell: isinstance(cell, COLLECTIONS)).any())


def to_texts(column: pd.Series) -> pd.Series:
    """Cells as stripped texts, None where missing; 3.0 becomes "3" so that a hole in a column changes nothing."""
    column = plain(column)

    def text(value: Any) -> str | None:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return str(value).strip() or None

    if pd.api.types.is_datetime64_any_dtype(column):
        return _moment_texts(column)
    given = column.notna().to_numpy()
    texts = [text(value) if here else None for value, here in zip(column.astype(object), given, strict=True)]
    return pd.Series(texts, index=column.index, name=column.name, dtype=object)


def naive_moments(column: pd.Series) -> NDArray[np.datetime64]:
    """Moments of a datetime column in UTC, without a zone, to the microsecond."""
    try:
        return plain(column).to_numpy(dtype="datetime64[us]", copy=True)
    except (OverflowError, ValueError) as error:
        raise TableError(f"the column '{column.name}' has dates beyond any calendar: {error}") from error


def _moment_texts(column: pd.Series) -> pd.Series:
    """2020-01-31 10:30:00, with a fraction of the second only where there is one."""
    moments = naive_moments(column)
    texts = [
        None if missing else text.replace("T", " ").removesuffix(".000000")
        for text, missing in zip(np.datetime_as_string(moments), np.isnat(moments), strict=True)
    ]
    return pd.Series(texts, index=column.index, name=column.name, dtype=object)


def to_numbers(column: pd.Series, decimal_comma: bool | None = None) -> Numbers:
    """Cells as numbers, also 1,234.5 and 12 % and $3; ``decimal_comma`` None finds out what a comma means.

    A comma is a decimal point only if some cell rules out that it separates thousands; a dot then separates them
    wherever it can. Infinity counts as missing.
    """
    column = plain(column)
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        values = column.astype("Float64").astype("float64")
        return Numbers(values.where(np.isfinite(values)), bool(decimal_comma), [])
    texts = to_texts(column)
    given = texts.dropna().astype(str)
    bare = given.str.replace(DECORATION, r"\1", regex=True).str.replace(INNER_SPACE, "", regex=True)
    if decimal_comma is None:
        with_comma = bare[bare.str.contains(",", regex=False)]
        thousands, decimal = (with_comma.str.fullmatch(pattern) for pattern in (THOUSANDS, DECIMAL_COMMA))
        decimal_comma = bool((decimal & ~thousands).any() and not (thousands & ~decimal).any())
    if decimal_comma:
        fits = bare.str.fullmatch(DECIMAL_COMMA) | bare.str.fullmatch(DOT_THOUSANDS)
        bare = bare.mask(fits, bare.str.replace(".", "", regex=False).str.replace(",", ".", regex=False))
    else:
        fits = bare.str.fullmatch(THOUSANDS)
        bare = bare.mask(fits, bare.str.replace(",", "", regex=False))
    good = bare.str.fullmatch(NUMBER)
    cells = np.full(len(column), np.nan)
    cells[texts.notna().to_numpy()] = bare.where(good).astype(np.float64)
    values = pd.Series(cells, index=column.index)
    return Numbers(values.where(np.isfinite(values)), decimal_comma, sorted(given[~good].unique()))
