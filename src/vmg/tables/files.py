"""Tables in files: delimited text (plain or gzipped) and Parquet, told apart by their contents."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.parquet import ParquetFile

from vmg.files import replacing
from vmg.tables.cells import is_number
from vmg.tables.reading import TableBytes, open_table, spooled
from vmg.tables.text_files import MISSING, TextRules, read_text
from vmg.tables.wording import TableError, count, listing

__all__ = ["TableFile", "csv_safe", "read_table", "text_rules", "write_table"]

MAX_CELLS = 2**28  # of a Parquet file, which can hold any number of equal cells in a few bytes
FREE_CELLS, CELLS_A_BYTE = 2**23, 8  # cells of any file, and those that a byte of a larger one may stand for
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
PARQUET_ENDINGS = (".parquet", ".pq")


class TableFile(NamedTuple):
    """A table that was read, and notes on the reading."""

    frame: pd.DataFrame
    notes: list[str]


def read_table(
    path: str | os.PathLike[str],
    *,
    texts: Iterable[str] | Mapping[str, Collection[str]] = (),
    decimal_comma: bool | None = None,
    na_values: Iterable[str] | None = None,
    header: bool = True,
) -> TableFile:
    """Read a table; delimiter, compression and kind of file are found out.

    Whether a comma is the decimal point is decided for the whole file, and kept in the frame's ``attrs``.

    Args:
        path: the file; "-" reads standard input.
        texts: columns whose cells are left as they are written, so that 01 is not 1; a mapping says which words are not
            missing in them.
        decimal_comma: what a comma means; None: found out.
        na_values: words that mean a missing cell, as does an empty one; None: NA, ?, - and the like. A column of + and
            - alone has no missing cells of that kind.
        header: whether the first line names the columns; else they are called column 1, column 2 and so on.
    """
    name = os.fspath(path)
    if name == "-":
        name, path = "standard input", spooled(sys.stdin.buffer, "standard input")
    elif _is_pipe(path):
        with open(path, "rb") as pipe:
            path = spooled(pipe, name)
    notes: list[str] = []
    with open_table(path) as stream:
        if not stream.head.strip():
            raise TableError(f"{name} is empty")
        parquet = _read_parquet(stream, name) if stream.head.startswith(b"PAR1") else None
    if parquet is not None:
        frame = _check_columns(parquet, name, notes)
    else:
        frame = _read_whole(path, name, text_rules(texts, decimal_comma, na_values, header), notes)
    return TableFile(frame, notes)


def text_rules(
    texts: Iterable[str] | Mapping[str, Collection[str]] = (),
    decimal_comma: bool | None = None,
    na_values: Iterable[str] | None = None,
    header: bool = True,
) -> TextRules:
    """The rules of a text, from what :func:`read_table` is told."""
    words = texts if isinstance(texts, Mapping) else dict.fromkeys(texts, ())
    return TextRules(words, decimal_comma, MISSING if na_values is None else frozenset(na_values), header)


def _is_pipe(path: str | os.PathLike[str]) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read_whole(path: str | os.PathLike[str], name: str, rules: TextRules, notes: list[str]) -> pd.DataFrame:
    blocks: list[list[pa.Array]] = []  # of each column

    def begin(names: list[str]) -> Callable[[list[pa.Array]], None]:
        blocks[:] = [[] for _ in names]
        return take

    def take(texts: list[pa.Array]) -> None:
        for own, cells in zip(blocks, texts, strict=True):
            own.append(cells)

    table = read_text(path, name, rules, begin)
    notes += table.notes
    columns = {}
    for k, (column, kind) in enumerate(zip(table.columns, table.types, strict=True)):
        columns[column.name] = _to_pandas([column.convert(texts, kind) for texts in blocks[k]], kind)
        blocks[k] = []
    frame = pd.DataFrame(columns, copy=False)
    if table.decimal_comma is not None:
        frame.attrs["decimal_comma"] = table.decimal_comma
    return frame


def _to_pandas(blocks: list[pa.Array], kind: pa.DataType) -> NDArray[Any]:
    """One column as pandas reads it: whole numbers with holes are floats, booleans with holes are objects."""
    if pa.types.is_string(kind):
        return np.concatenate([_objects(block.dictionary_encode()) for block in blocks])
    whole = pa.chunked_array(blocks, kind)
    if pa.types.is_null(kind):
        return np.full(len(whole), np.nan)
    if pa.types.is_boolean(kind) and whole.null_count:
        return np.array(whole.to_pylist(), dtype=object)
    return whole.to_numpy()


def _objects(block: pa.DictionaryArray) -> NDArray[Any]:
    """Texts, each different one once in memory; None where missing."""
    words = np.array([*block.dictionary.to_pylist(), None], dtype=object)
    return words[block.indices.fill_null(len(words) - 1).to_numpy()]


def write_table(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write Parquet or CSV, by the ending of ``path``; an old file is replaced only by a complete new one.

    Texts in CSV are those of :func:`csv_safe`.
    """
    try:
        with replacing(path) as temporary:
            if Path(path).suffix.lower() in PARQUET_ENDINGS:
                frame.to_parquet(temporary, index=False)
            else:
                csv_safe(frame).to_csv(temporary, index=False)
    except OSError as error:
        raise TableError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def csv_safe(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an apostrophe before every text that a spreadsheet would take for a formula and run.

    Numbers such as -1 and a sign alone stay as they are. A carriage return, at which some readers begin a new row,
    becomes a line feed.
    """

    def guard(cell: Any) -> Any:
        if not isinstance(cell, str):
            return cell
        risky = cell.startswith(FORMULA_STARTS) and len(cell) > 1 and not is_number(cell)
        cell = cell.replace("\r\n", "\n").replace("\r", "\n")
        return f"'{cell}" if risky else cell

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    safe = frame.assign(**{name: frame[name].map(guard, na_action="ignore") for name in texts})
    return safe.rename(columns=guard)


def _read_parquet(stream: TableBytes, name: str) -> pd.DataFrame:
    data = io.BytesIO(io.BufferedReader(stream).read())
    try:
        shape = ParquetFile(data).metadata
        limit = min(MAX_CELLS, max(FREE_CELLS, CELLS_A_BYTE * data.getbuffer().nbytes))
        if shape.num_rows * max(shape.num_columns, 1) > limit:
            raise TableError(
                f"{name} must have at most {limit:,} cells in {data.getbuffer().nbytes:,} bytes; got "
                f"{shape.num_rows:,} rows of {shape.num_columns:,}"
            )
        return pd.read_parquet(data, coerce_int96_timestamp_unit="us")
    except TableError:
        raise
    except Exception as error:  # a damaged file ends in errors of many types
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableError(f"cannot read {name} as Parquet: {first_line}") from error


def _check_columns(frame: pd.DataFrame, name: str, notes: list[str]) -> pd.DataFrame:
    frame = frame.rename(columns=lambda column: str(column).strip())
    if frame.columns.has_duplicates:
        repeated = frame.columns[frame.columns.duplicated()].unique()
        raise TableError(f"{name} has several columns of the same name; rename {listing(repeated)}")
    nameless = [column for column in frame.columns if not column or column.startswith("Unnamed: ")]
    if nameless:
        notes.append(f"{count(len(nameless), 'column')} without a name left out (often row numbers).")
        frame = frame.drop(columns=nameless)
    if frame.empty:
        raise TableError(f"{name} has no {'rows, only a header' if len(frame.columns) else 'columns with a name'}")
    return frame
