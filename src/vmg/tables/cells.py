"""Cells of a table, read once: each different text of a column is looked at one time, however many rows have it.

The exception for tables that cannot be used, and counts and lists in sentences about them, are here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from difflib import get_close_matches
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

__all__ = [
    *("LONGEST_VALUE", "LONGEST_WORD", "MIN_SHARE", "NUMBER", "CellTable", "Cells", "TableError", "as_frame", "count"),
    *("full_matches", "is_number", "kept", "listing", "naive_timestamps", "require_columns", "row_hashes", "short"),
    "to_texts",
]

T = TypeVar("T")
P = ParamSpec("P")

NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
COLLECTIONS = (list, tuple, dict, set, np.ndarray)
LONGEST_WORD = 1_000  # characters of a text that count: two texts that begin with as many equal ones are the same
LONGEST_VALUE = 64  # characters of a number, a date or a time; a longer text is a word
MIN_SHARE = 0.9  # of the cells that must be numbers, dates, times or in one unit for the rest to count as missing
LISTED = 8  # names that a sentence shows before it says "and 5 more"
LONGEST_NAME = 80  # characters of a name in a sentence


class TableError(ValueError):
    """A table, a column or a choice about them that its owner has to change; the message says which and how."""


def listing(names: Iterable[object]) -> str:
    """'a', 'b' and 3 more; long names are cut."""
    quoted = [name if isinstance(name, str) and name.startswith("'") else f"'{name}'" for name in names]
    text = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}…'" for name in quoted[:LISTED])
    return text if len(quoted) <= LISTED else f"{text} and {len(quoted) - LISTED} more"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """1 row, 2 rows, 1,200 rows."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def short(value: float) -> str:
    """Four digits that matter, and no powers of ten for numbers that people write out."""
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def is_number(text: str) -> bool:
    """Whether a text is a plain number."""
    return len(text) <= LONGEST_VALUE and re.fullmatch(NUMBER, text) is not None


class Cells:
    """The cells of one column, in plain types, as texts, and as whatever was read from them.

    Texts are kept as ``levels``, the different ones, stripped, in order of appearance, and ``codes``, the place of each
    cell among them, -1 where the cell is missing or blank. Readers of numbers and dates work on levels.
    In rows of ``training`` an infinite number counts as missing.
    """

    def __init__(self, column: pd.Series, *, training: bool = False) -> None:
        self.name, self.training = str(column.name), training
        self.column = _plain(column)
        self.results: dict[Hashable, Any] = {}  # of functions that are ``kept``

    def __len__(self) -> int:
        return len(self.column)

    @cached_property
    def is_numeric(self) -> bool:
        """Whether the column is of a type of numbers or booleans."""
        return bool(pd.api.types.is_numeric_dtype(self.column))

    @cached_property
    def is_time(self) -> bool:
        """Whether the column is of a type of timestamps."""
        return bool(pd.api.types.is_datetime64_any_dtype(self.column))

    @property
    def is_category(self) -> bool:
        """Whether the column is of pandas' type of categories: its owner has decided that it is no number."""
        return isinstance(self.column.dtype, pd.CategoricalDtype)

    @cached_property
    def values(self) -> NDArray[np.float64]:
        """The cells of a column of numbers, NaN where missing."""
        extension = pd.api.types.is_extension_array_dtype(self.column.dtype)
        return self.column.to_numpy(dtype=np.float64, **({"na_value": np.nan} if extension else {}))

    @cached_property
    def _coded(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        column = self.column
        if self.is_time:  # 2020-01-31 10:30:00, with a fraction of the second only where there is one
            written = np.datetime_as_string(naive_timestamps(column))
            moments = np.array([text.replace("T", " ").removesuffix(".000000") for text in written], dtype=object)
            moments[column.isna().to_numpy()] = None
            return pd.factorize(moments)
        if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) != "string":
            given = column.notna().to_numpy()  # equal cells may be written differently: 1 and True
            texts = [_text(value) if here else None for value, here in zip(column, given, strict=True)]
            return pd.factorize(np.array(texts, dtype=object))
        places, cells = pd.factorize(column)
        texts_of = np.array([*map(_text, cells.astype(object)), None], dtype=object)  # the last is for missing cells
        joined, levels = pd.factorize(texts_of)  # " a" and "a" are the same text
        return joined[places], levels

    @property
    def codes(self) -> NDArray[np.int64]:
        """The place of each cell among the levels; -1 where it is missing or blank."""
        return self._coded[0]

    @property
    def levels(self) -> NDArray[Any]:
        """The different texts, stripped, in order of appearance."""
        return self._coded[1]

    @cached_property
    def arrow(self) -> pa.Array:
        """The levels for Arrow's functions; texts that are too long for a number or a date are empty.

        Half of a character, which no encoding has, is a question mark.
        """
        known = [text.encode(errors="replace").decode() if len(text) <= LONGEST_VALUE else "" for text in self.levels]
        return pa.array(known, type=pa.string())

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many cells have each level."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.levels))

    @property
    def level_counts(self) -> dict[str, int]:
        """How many cells have each level, by the level."""
        return dict(zip(self.levels, self.counts.tolist(), strict=True))

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """The cells that are missing or blank."""
        return self.column.isna().to_numpy() if self.is_numeric else self.codes < 0

    @property
    def n_given(self) -> int:
        """How many cells are not missing."""
        return len(self) - int(self.missing.sum())

    @cached_property
    def n_distinct(self) -> int:
        """How many different values there are, without the missing one."""
        return int(self.column.nunique()) if self.is_numeric else len(self.levels)

    def share(self, good: NDArray[np.bool_]) -> float:
        """The share of the cells that are given whose level is among the ``good`` ones; 0 where none is given."""
        return float(self.counts[good].sum() / max(self.counts.sum(), 1))

    def spread(self, of_levels: NDArray[Any], missing: Any) -> NDArray[Any]:
        """Something of each level, given to each cell; ``missing`` where there is none."""
        return np.append(of_levels, np.array([missing], dtype=of_levels.dtype))[self.codes]

    @property
    def texts(self) -> NDArray[Any]:
        """The text of each cell, None where missing."""
        return self.spread(self.levels, None)

    def holds_collections(self) -> bool:
        """Whether some cell is a list, a structure or the like, which no feature and no target can be made of."""
        return self.column.dtype == object and any(isinstance(cell, COLLECTIONS) for cell in self.column)


def kept(read: Callable[Concatenate[Cells, P], T]) -> Callable[Concatenate[Cells, P], T]:
    """A reader of cells that runs once for each column and each set of other arguments."""

    @wraps(read)
    def once(cells: Cells, /, *args: P.args, **named: P.kwargs) -> T:
        key = (read, args, *named.items())
        if key not in cells.results:
            cells.results[key] = read(cells, *args, **named)
        return cells.results[key]

    return once


class CellTable:
    """The columns of a data frame, each of them read once however often it is asked for.

    Every column has a name of its own, a text. Rows of ``training`` are as in :class:`Cells`.
    """

    def __init__(self, frame: pd.DataFrame, *, training: bool = False) -> None:
        require_columns(frame)
        self.frame = frame
        self._cells: dict[str, Cells] = {}
        self._training = training

    @classmethod
    def of(cls, frame: pd.DataFrame | CellTable, *, training: bool = False) -> CellTable:
        """The columns of a data frame; those that are read already stay as they are."""
        return frame if isinstance(frame, CellTable) else cls(frame, training=training)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, name: str) -> Cells:
        if name not in self._cells:
            self._cells[name] = Cells(self.frame[name], training=self._training)
        return self._cells[name]


def require_columns(frame: pd.DataFrame, names: Sequence[str] = ()) -> None:
    """Raise a TableError unless every column has a name of its own, a text, and those of ``names`` are there."""
    strange = [name for name in frame.columns if not isinstance(name, str)]
    if strange:
        raise TableError(
            f"names of columns must be texts; got {listing(map(repr, strange))} (try frame.rename(columns=str))"
        )
    repeated = frame.columns[frame.columns.duplicated()].unique()
    if len(repeated):
        raise TableError(f"the table has several columns of the same name; rename {listing(repeated)}")
    missing = [name for name in names if name not in frame.columns]
    if missing:
        near = get_close_matches(str(missing[0]), map(str, frame.columns), n=1)
        meant = f" (did you mean '{near[0]}'?)" if near else ""
        raise TableError(f"the table has no column {listing(missing)}{meant}; it has {listing(frame.columns)}")


def full_matches(texts: pa.Array | pa.ChunkedArray, pattern: str) -> NDArray[np.bool_]:
    """Whether each text as a whole is of a pattern, in time that grows with its length alone."""
    return pc.match_substring_regex(texts, f"^(?:{pattern})$").to_numpy(zero_copy_only=False)


def _plain(column: pd.Series) -> pd.Series:
    """The column without layers that cells cannot be read through: dense, in pandas' own types, timestamps in UTC.

    No timestamp with a zone is turned into an object on the way: at years before 1600 pandas ends there in a crash.
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


def to_texts(column: pd.Series) -> pd.Series:
    """Cells as stripped texts, None where missing; 3.0 becomes "3" so that a hole in a column changes nothing."""
    return pd.Series(Cells(column).texts, index=column.index, name=column.name, dtype=object)


def _text(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()[:LONGEST_WORD] or None


def naive_timestamps(column: pd.Series) -> NDArray[np.datetime64]:
    """Timestamps of a datetime column in UTC, without a zone, to the microsecond."""
    try:
        return _plain(column).to_numpy(dtype="datetime64[us]", copy=True)
    except (OverflowError, ValueError) as error:
        raise TableError(f"the column '{column.name}' has dates beyond any calendar: {error}") from error


def as_frame(table: Any) -> pd.DataFrame:
    """A pandas data frame as it is; a Polars or Arrow table, or any with Arrow's stream interface, as one."""
    if isinstance(table, pd.DataFrame):
        return table
    if hasattr(table, "collect") and hasattr(table, "lazy"):  # a lazy frame of Polars
        table = table.collect()
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table).to_pandas(date_as_object=False)
    if isinstance(table, dict):
        return pd.DataFrame(table)
    raise TableError(f"a table must be a data frame of pandas or Polars, or an Arrow table; got {type(table).__name__}")


def row_hashes(frame: pd.DataFrame) -> bytes:
    """A hash of the cells of each row, in the order of rows; how these are cut into frames changes nothing."""
    try:
        hashes = pd.util.hash_pandas_object(frame, index=False)
    except TypeError:  # lists and structures
        written = {name: frame[name].map(repr) for name in frame.select_dtypes("object")}
        hashes = pd.util.hash_pandas_object(frame.assign(**written), index=False)
    return hashes.to_numpy().tobytes()
