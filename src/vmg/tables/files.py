"""Tables in files: delimited text (plain or gzipped) and Parquet, told apart by their contents."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from vmg.files import replacing
from vmg.tables.cells import is_number
from vmg.tables.numbers import count_comma_votes
from vmg.tables.reading import TableBytes, open_table, spooled_input
from vmg.tables.wording import TableError, count, listing

__all__ = ["TableFile", "csv_safe", "read_table", "write_table"]

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
MISSING = ("?", "-", "--", ".")  # besides what pandas knows: empty, NA, N/A, NaN, null, None, ...
SNIFFED_ROWS = 50
ENCODINGS = ("utf-8-sig", "cp1252")  # Excel on Windows still writes the latter
READ_AT_ONCE = 2**18
MAX_CELLS = 2**28  # of a Parquet file, which can hold any number of equal cells in a few bytes
# before pandas 3.1 the default is off by the last bit; since then it is not, and the option is deprecated
PANDAS = tuple(int(part) for part in pd.__version__.split(".")[:2])
EXACT: dict[str, Any] = {"float_precision": "round_trip"} if PANDAS < (3, 1) else {}
SEPARATOR_LINE = re.compile(r"(?i)\s*\"?sep=([,;|\t])\"?[ \t]*(?=[\r\n])")  # of Excel
HEAD_ROWS = 100_000
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
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


def read_table(
    path: str | os.PathLike[str], *, texts: Iterable[str] = (), decimal_comma: bool | None = None
) -> TableFile:
    """Read a table with a header; delimiter, compression and kind of file are found out.

    Whether a comma is the decimal point is decided for the whole file, and kept in the frame's ``attrs``.

    Args:
        path: the file; "-" reads standard input.
        texts: columns whose cells are left as they are written, so that 01 is not 1.
        decimal_comma: what a comma means; None: found out.
    """
    name = os.fspath(path)
    if name == "-":
        name, path = "standard input", spooled_input()
    asked = CellOptions(frozenset(texts), decimal_comma)
    notes: list[str] = []
    for encoding in ENCODINGS:
        with open_table(path) as stream:
            if not stream.head.strip():
                raise TableError(f"{name} is empty")
            if stream.head.startswith(b"PAR1"):
                frame = _read_parquet(stream, name)
                break
            if encoding == "utf-8-sig" and stream.head.startswith((b"\xff\xfe", b"\xfe\xff")):
                encoding = "utf-16"
            try:
                frame = _read_text(stream, name, encoding, notes, asked)
            except UnicodeDecodeError:
                continue
        if encoding == "cp1252":
            notes.append("The file is not UTF-8; it was read as Windows-1252.")
        break
    else:
        raise TableError(f"{name} is a binary file or text in an unknown encoding; expected CSV in UTF-8, or Parquet")
    return TableFile(_check_columns(frame, name, notes), notes)


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

    Numbers such as -1 stay as they are.
    """

    def guard(cell: Any) -> Any:
        risky = isinstance(cell, str) and cell.startswith(FORMULA_STARTS) and not is_number(cell)
        return f"'{cell}" if risky else cell

    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    safe = frame.assign(**{name: frame[name].map(guard, na_action="ignore") for name in texts})
    return safe.rename(columns=guard)


def _read_parquet(stream: TableBytes, name: str) -> pd.DataFrame:
    data = io.BytesIO(io.BufferedReader(stream).read())
    try:
        from pyarrow.parquet import ParquetFile

        shape = ParquetFile(data).metadata
        if shape.num_rows * max(shape.num_columns, 1) > MAX_CELLS:
            raise TableError(
                f"{name} must have at most {MAX_CELLS:,} cells; got {shape.num_rows:,} rows of {shape.num_columns:,}"
            )
        return pd.read_parquet(data, coerce_int96_timestamp_unit="us")
    except TableError:
        raise
    except Exception as error:  # a damaged file ends in errors of many types
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TableError(f"cannot read {name} as Parquet: {first_line}") from error


def _read_text(stream: TableBytes, name: str, encoding: str, notes: list[str], asked: CellOptions) -> pd.DataFrame:
    for signature, what in FOREIGN.items():
        if stream.head.startswith(signature):
            raise TableError(f"{name} is {what}, not a table; export it as CSV or Parquet")
    stream.is_text = encoding != "utf-16"
    head = _decode_head(stream, name, encoding)
    start = head.lstrip()[:1]
    if start in ("<", "{", "["):
        kind = "HTML or XML" if start == "<" else "JSON"
        raise TableError(f"{name} looks like {kind}, not a table; expected CSV or Parquet")
    said = SEPARATOR_LINE.match(head)
    delimiter = said[1] if said else _sniff(head)
    n_skipped = _check_header(head, delimiter, name, skip=1 if said else 0)
    rows = list(islice(_rows(head, delimiter), n_skipped, n_skipped + HEAD_ROWS))
    cells = decide_cells(rows[0], rows[1:], delimiter, asked)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            frame = pd.read_csv(
                io.TextIOWrapper(io.BufferedReader(stream, READ_AT_ONCE), encoding=encoding, newline=None),
                sep=delimiter,
                skiprows=n_skipped,
                skipinitialspace=True,
                na_values=list(MISSING),
                low_memory=False,
                index_col=False,
                dtype=dict.fromkeys(cells.texts, object),
                **EXACT,
            )
    except pd.errors.ParserWarning as error:
        raise TableError(f"{name} is not a regular table: rows have more cells than the header has names") from error
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError) as error:  # pandas' parser errors are among these
        if stream.failure is not None:
            raise stream.failure from error
        reason = (str(error).strip().splitlines() or [""])[0].removeprefix("Error tokenizing data. C error: ")
        raise TableError(f"{name} is not a regular table: {reason}") from error
    if delimiter != ",":
        notes.append(f"Columns are separated by {DELIMITERS.get(delimiter, repr(delimiter))}.")
    if cells.decimal_comma is not None:
        frame.attrs["decimal_comma"] = cells.decimal_comma
    if cells.contradiction:
        notes.append(cells.contradiction)
    return frame


def _decode_head(stream: TableBytes, name: str, encoding: str) -> str:
    """The first lines as text; cut inside a character, they lack its beginning."""
    if stream.is_text and b"\0" in stream.head:
        raise TableError(f"{name} is a binary file; expected CSV or Parquet")
    text = codecs.getincrementaldecoder(encoding)().decode(stream.head)
    if encoding == "cp1252" and any(ord(character) < 32 and character not in "\t\n\r\f" for character in text):
        raise TableError(f"{name} is a binary file; expected CSV or Parquet")
    return text


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    """The first rows of a text, with any kind of line ending; none from where it cannot be cut into cells."""
    try:
        yield from csv.reader(io.StringIO(text, newline=None), delimiter=delimiter, skipinitialspace=True)
    except csv.Error:  # such as a cell of more than 131,072 characters, if this is the delimiter
        return


def _sniff(text: str) -> str:
    """The delimiter that cuts the first rows into the most columns, as many in each row."""

    def quality(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in islice(_rows(text, delimiter), SNIFFED_ROWS + 1) if row]
        usual, times = Counter(widths).most_common(1)[0] if widths else (1, 0)
        return (times / len(widths), usual) if usual > 1 else (0.0, 1)

    return max(DELIMITERS, key=quality)


def _check_header(text: str, delimiter: str, name: str, *, skip: int = 0) -> int:
    """The number of lines before the header, none of which has a name; a TableError where it names no columns."""
    for n_skipped, row in enumerate(_rows(text, delimiter)):
        if n_skipped < skip:
            continue
        header = [cell.strip() for cell in row]
        if not any(header):
            continue
        if all(is_number(cell) for cell in header):
            numbers = ", ".join(header[:4])
            raise TableError(f"the first line of {name} must name the columns; got the numbers {numbers}")
        repeated = [cell for cell, times in Counter(header).items() if times > 1 and cell]
        if repeated:
            raise TableError(f"{name} has several columns of the same name; rename {listing(repeated)}")
        return n_skipped
    raise TableError(f"{name} has no columns with a name")


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


BLANK = frozenset(["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-", "--", "."])  # missing cells
CODE = re.compile(r"0\d+")  # 007 is no number


class CellOptions(NamedTuple):
    """What a caller asks for: columns to leave as they are written, and what a comma means (None: found out)."""

    texts: frozenset[str] = frozenset()
    decimal_comma: bool | None = None


class CellReading(NamedTuple):
    """What was decided; None where no cell has a comma. ``contradiction`` says which cells speak against it."""

    texts: list[str]
    decimal_comma: bool | None
    contradiction: str


def decide_cells(
    header: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str, asked: CellOptions
) -> CellReading:
    """Look at the first megabyte of a file before pandas takes its numbers for what they may not be.

    With decimal commas 1.234 is a thousand, and a column in which some whole numbers begin with a zero holds codes.
    """
    columns: dict[str, list[str]] = {name: [] for name in header}
    for row in rows:
        for name, cell in zip(header, row, strict=False):
            if cell.strip() not in BLANK:
                columns[name].append(cell.strip())
    votes = count_comma_votes(columns)
    found = votes.decide(delimiter)
    comma = found if asked.decimal_comma is None else asked.decimal_comma
    texts = []
    for name, cells in columns.items():
        code = any(CODE.fullmatch(cell) for cell in cells) and all(map(str.isdigit, cells))
        dotted = bool(comma) and any("." in cell for cell in cells)
        if name.strip() in asked.texts or code or dotted:
            texts.append(name)
    return CellReading(texts, comma, _contradiction(votes.comma if comma is False else votes.point, comma, asked))


def _contradiction(against: list[str], comma: bool | None, asked: CellOptions) -> str:
    """What is worth saying where cells are numbers only in the other convention."""
    if comma is None or not against:
        return ""
    mark, other = ("commas", "points") if comma else ("points", "commas")
    why = "as asked or as at the fit" if asked.decimal_comma is not None else "as most columns have"
    return (
        f"Numbers are read with decimal {mark}, {why}, but {listing(against)} can only have decimal {other}; "
        f"--decimal {'.' if comma else ','} reads them so."
    )
