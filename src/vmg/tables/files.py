"""Tables in files: delimited text (plain or gzipped) and Parquet, told apart by their contents."""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from vmg.persistence import replacing
from vmg.tables.errors import TableError
from vmg.tables.phrases import count, listing
from vmg.tables.values import is_number

__all__ = ["TableFile", "read_table", "write_table"]

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
MISSING = ("?", "-", "--", ".")  # besides what pandas knows: empty, NA, N/A, NaN, null, None, ...
SNIFFED_ROWS = 50
# before pandas 3.1 the default is off by the last bit; since then it is not, and the option is deprecated
PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if PANDAS < (3, 1) else {}
PARQUET_ENDINGS = (".parquet", ".pq")
FOREIGN = {  # how files start that people take for tables
    b"PK\x03\x04": "a zip archive or Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"%PDF": "a PDF document",
    b"SQLite format 3": "a SQLite database",
}


class TableFile(NamedTuple):
    """A table that was read, and what is worth saying about the reading."""

    frame: pd.DataFrame
    notes: list[str]


def read_table(path: str | os.PathLike[str]) -> TableFile:
    """Read a table with a header; delimiter, compression and kind of file are found out."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise TableError(f"there is no file {name}") from error
    except OSError as error:
        raise TableError(f"cannot read {name}: {error.strerror or error}") from error
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(f"cannot unpack {name}: {error}") from error
    if not data.strip():
        raise TableError(f"{name} is empty")
    notes: list[str] = []
    if data.startswith(b"PAR1"):
        frame = _read_parquet(data, name)
    else:
        frame = _read_text(_decode(data, name, notes), name, notes)
    return TableFile(_check_columns(frame, name, notes), notes)


def write_table(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write Parquet or CSV, by the ending of ``path``; an old file is replaced only by a complete new one."""
    try:
        with replacing(path) as temporary:
            if Path(path).suffix.lower() in PARQUET_ENDINGS:
                frame.to_parquet(temporary, index=False)
            else:
                frame.to_csv(temporary, index=False)
    except OSError as error:
        raise TableError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def _read_parquet(data: bytes, name: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(data))
    except (OSError, ValueError) as error:  # pyarrow's errors are among these
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableError(f"cannot read {name} as Parquet: {first_line}") from error


def _decode(data: bytes, name: str, notes: list[str]) -> str:
    for start, what in FOREIGN.items():
        if data.startswith(start):
            raise TableError(f"{name} is {what}, not a table; export it as CSV or Parquet")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encodings = ["utf-16"]
    elif b"\0" in data:
        raise TableError(f"{name} is a binary file; expected CSV or Parquet")
    else:
        encodings = ["utf-8-sig", "cp1252"]  # Excel on Windows still writes the latter
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if encoding == "cp1252":
            _require_printable(text, name)
            notes.append("The file is not UTF-8; it was read as Windows-1252.")
        return text
    raise TableError(f"{name} is a binary file or text in an unknown encoding; expected CSV in UTF-8, or Parquet")


def _require_printable(text: str, name: str) -> None:
    if any(ord(character) < 32 and character not in "\t\n\r\f" for character in text):
        raise TableError(f"{name} is a binary file; expected CSV or Parquet")


def _read_text(text: str, name: str, notes: list[str]) -> pd.DataFrame:
    start = text.lstrip()[:1]
    if start in ("<", "{", "["):
        kind = "HTML or XML" if start == "<" else "JSON"
        raise TableError(f"{name} looks like {kind}, not a table; expected CSV or Parquet")
    delimiter = _sniff(text)
    header = _first_line(text, delimiter)
    while not any(cell.strip() for cell in header):  # blank lines before the header
        text = text.partition("\n")[2]
        if not text:
            raise TableError(f"{name} has no columns with a name")
        header = _first_line(text, delimiter)
    _check_header([cell.strip() for cell in header], name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            frame = pd.read_csv(
                io.StringIO(text),
                sep=delimiter,
                skipinitialspace=True,
                na_values=list(MISSING),
                low_memory=False,
                index_col=False,
                **EXACT,
            )
    except pd.errors.ParserWarning as error:
        raise TableError(f"{name} is not a regular table: rows have more cells than the header has names") from error
    except ValueError as error:  # pandas' parser errors are among these
        reason = str(error).strip().splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise TableError(f"{name} is not a regular table: {reason}") from error
    if delimiter != ",":
        notes.append(f"Columns are separated by {DELIMITERS[delimiter]}.")
    return frame


def _first_line(text: str, delimiter: str) -> list[str]:
    return next(csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True))


def _sniff(text: str) -> str:
    """The delimiter that cuts the first rows into the most columns, as many in each row."""
    head = "\n".join(text.splitlines()[: SNIFFED_ROWS + 1])

    def quality(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(io.StringIO(head), delimiter=delimiter) if row]
        usual, times = Counter(widths).most_common(1)[0] if widths else (1, 0)
        return (times / len(widths), usual) if usual > 1 else (0.0, 1)

    return max(DELIMITERS, key=quality)


def _check_header(header: list[str], name: str) -> None:
    if all(is_number(cell) for cell in header):
        raise TableError(f"the first line of {name} must name the columns; got the numbers {', '.join(header[:4])}")
    repeated = [cell for cell, times in Counter(header).items() if times > 1 and cell]
    if repeated:
        raise TableError(f"{name} has several columns of the same name; rename {listing(repeated)}")


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
