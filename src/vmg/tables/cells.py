"""Cells as people write them, in plain types and as texts; tables of other libraries as pandas data frames."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.wording import TableError

__all__ = ["NUMBER", "as_frame", "holds_collections", "is_number", "naive_moments", "no_value", "plain", "to_texts"]

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
COLLECTIONS = (list, tuple, dict, set, np.ndarray)


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
    if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) != "string":
        given = column.notna().to_numpy()  # equal cells may be written differently: 1 and True
        texts = [text(value) if here else None for value, here in zip(column, given, strict=True)]
        return pd.Series(texts, index=column.index, name=column.name, dtype=object)
    places, cells = pd.factorize(column)  # each value is written once; missing ones are at -1, the last place
    texts = np.array([*(text(value) for value in cells.astype(object)), None], dtype=object)[places]
    return pd.Series(texts, index=column.index, name=column.name, dtype=object)


def no_value(column: pd.Series) -> NDArray[np.bool_]:
    """The cells that are missing or blank."""
    cells = plain(column)
    return (cells if pd.api.types.is_numeric_dtype(cells) else to_texts(cells)).isna().to_numpy()


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


def as_frame(table: Any) -> pd.DataFrame:
    """A pandas data frame as it is; a Polars or Arrow table, or any with Arrow's stream interface, as one."""
    if isinstance(table, pd.DataFrame):
        return table
    if hasattr(table, "collect") and hasattr(table, "lazy"):  # a lazy frame of Polars
        table = table.collect()
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        arrow = table if isinstance(table, pa.Table) else pa.table(table)
        return arrow.to_pandas(date_as_object=False)
    if isinstance(table, dict):
        return pd.DataFrame(table)
    raise TableError(f"a table must be a data frame of pandas or Polars, or an Arrow table; got {type(table).__name__}")
