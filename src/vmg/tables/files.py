"""Tables in files: delimited text (plain or gzipped), Parquet, Excel and databases, told apart by their contents.

A text is read twice, a block at a time: once to find its encoding, its delimiter and the types of its columns, once for
the cells in these types. A table that is read whole and one that is converted block by block have the same cells.
"""

from __future__ import annotations

import atexit
import codecs
import csv
import gzip
import io
import os
import re
import stat
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow.parquet import ParquetFile

from vmg.files import replacing
from vmg.tables.cells import NUMBER, Cells, TableError, count, full_matches, is_number, listing
from vmg.tables.dates import find_date_format
from vmg.tables.numbers import VOTING_TEXTS, CommaVotes, count_comma_votes

__all__ = ["MISSING", "TableFile", "TextRules", "TextTable", "csv_safe", "read_table", "scan_text", "write_table"]

MISSING = frozenset(
    [
        *("", "?", "-", "--", ".", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "None", "null", "NULL"),
        *("NaN", "nan", "-NaN", "-nan", "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN"),
    ]
)
"""Cells of a file that are missing, unless the user says otherwise."""

MAX_BYTES = 2**32  # of a table as text or Parquet, after unpacking; it takes several times as much memory
MAX_UNPACKING = 200  # bytes that one packed byte may become, once they are more than FREE_BYTES; tables have 3 to 50
FREE_BYTES = 2**26
MAX_CELLS = 2**28  # of a Parquet file, which can hold any number of equal cells in a few bytes
FREE_CELLS, CELLS_A_BYTE = 2**23, 8  # cells of any file, and those that a byte of a larger one may stand for
OPEN_FILES = "/proc/self/fd"  # of this process, where a file without a name can be opened again
HEAD = 2**20  # bytes that are looked at before the rest is read
BLOCK = 2**19  # bytes that are read at a time, of which Arrow takes some fifty times as many; more in wide tables
SNIFFED_ROWS = 50
CHECKED_ROWS = 1_000  # that Python's own reader takes at a time
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
ENCODINGS = ("utf-8-sig", "cp1252")  # Excel on Windows still writes the latter
SEPARATOR_LINE = re.compile(r"(?i)\s*\"?sep=([,;|\t])\"?[ \t]*(?=[\r\n])")  # of Excel
FOREIGN = {  # how files start that people take for tables
    b"PK\x03\x04": "a zip archive",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"%PDF": "a PDF document",
    b"SQLite format 3": "a SQLite database",
}
NO_HEADER = "--no-header reads it as a row"
FORMULA_STARTS = (*"=+-@＝＋－＠", "\t", "\r", "\n")  # the wide forms are those of East Asian spreadsheets


class TableFile(NamedTuple):
    """A table that was read, and notes on the reading."""

    frame: pd.DataFrame
    notes: list[str]


class TextRules(NamedTuple):
    """How the cells of a file are read.

    ``texts`` are columns whose cells are left as they are written, so that 01 is not 1; a mapping says which words are
    not missing in them. ``decimal_comma`` None finds out what commas mean. ``na_values`` are words that mean a missing
    cell, as an empty one does; None: NA, ?, - and the like, but no minus in a column of + and - alone. Without
    ``header`` the first line is a row, and columns are called column 1, column 2 and so on.
    """

    texts: Collection[str] | Mapping[str, Collection[str]] = ()
    decimal_comma: bool | None = None
    na_values: Iterable[str] | None = None
    header: bool = True

    def missing_in(self, name: str) -> frozenset[str]:
        """The words that mean a missing cell in a column."""
        words = MISSING if self.na_values is None else frozenset(self.na_values)
        return (words - {*self.texts.get(name, ())} if isinstance(self.texts, Mapping) else words) | {""}


def read_table(path: str | os.PathLike[str], **reading: Any) -> TableFile:
    """Read a table; delimiter, compression and kind of file are found out.

    Whether a comma is the decimal point is decided for the whole file, and kept in the frame's ``attrs``. "-" reads
    standard input. ``book.xlsx::sheet`` is a sheet of a workbook (else the first), and ``file.db::table`` a table of a
    SQLite or DuckDB database (else the only one). ``reading`` are the fields of :class:`~vmg.tables.files.TextRules`.
    """
    name, rules = os.fspath(path), TextRules(**reading)
    if name == "-":
        name, path = "standard input", _spooled(sys.stdin.buffer, "standard input")
    elif Path(path).is_fifo():
        with open(path, "rb") as pipe:
            path = _spooled(pipe, name)
    file, _, part = (path, "", "") if "::" not in name or os.path.exists(path) else name.rpartition("::")
    with open_table(file, name) as stream:
        if not stream.head.strip():
            raise TableError(f"{name} is empty")
        if stream.head.startswith(b"PAR1"):
            return _typed_table(_read_parquet(io.BufferedReader(stream).read(), name), name)
        if stream.head.startswith(b"PK\x03\x04") and b"xl/" in stream.head:
            return _typed_table(_read_workbook(file, part, name, rules), name)
        is_duck = stream.head[8:12] == b"DUCK"
        if is_duck or stream.head.startswith(b"SQLite format 3"):
            return _typed_table(_read_database(file, part, name, is_duck=is_duck), name)
    text = scan_text(path, rules, name)
    schema = text.schema(empty=pa.float64())
    frame = pa.Table.from_batches(text.batches(schema), schema).to_pandas(self_destruct=True)
    if text.decimal_comma is not None:
        frame.attrs["decimal_comma"] = text.decimal_comma
    return TableFile(frame, text.notes)


def _spooled(source: BinaryIO, name: str) -> str:
    """The path of a temporary file with all of a pipe, since a text is read more than once.

    Where the system can, the file has no name, so that nothing is left of it even where the process is killed.
    """
    unnamed = os.path.isdir(OPEN_FILES)
    file = tempfile.TemporaryFile() if unnamed else tempfile.NamedTemporaryFile(prefix="vmg-")  # noqa: SIM115
    while piece := source.read(HEAD):
        file.write(piece)
        if file.tell() > MAX_BYTES:
            raise TableError(f"{name} must have at most {MAX_BYTES:,} bytes; it has more")
    file.flush()
    atexit.register(file.close)
    return f"{OPEN_FILES}/{file.fileno()}" if unnamed else file.name


# -- cells that have types --------------------------------------------------------------------------------------------


@contextmanager
def _explained(name: str, kind: str) -> Iterator[None]:
    """Raise a TableError for whatever a damaged file or a missing package raises."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:  # a damaged file ends in errors of many types
        raise TableError(f"cannot read {name} as {kind}: {(str(error) or repr(error)).splitlines()[0]}") from error


def _read_parquet(packed: bytes, name: str) -> pd.DataFrame:
    """A Parquet table, also of pandas."""
    data, limit = io.BytesIO(packed), min(MAX_CELLS, max(FREE_CELLS, CELLS_A_BYTE * len(packed)))
    with _explained(name, "Parquet"):
        shape = ParquetFile(data).metadata
        if shape.num_rows * max(shape.num_columns, 1) > limit:
            got = f"{shape.num_rows:,} rows of {shape.num_columns:,}"
            raise TableError(f"{name} must have at most {limit:,} cells in {len(packed):,} bytes; got {got}")
        frame = pd.read_parquet(data, coerce_int96_timestamp_unit="us")
    return frame.reset_index() if any(frame.index.names) else frame  # columns that pandas had made an index


def _read_workbook(path: str | os.PathLike[str], sheet: str, name: str, rules: TextRules) -> pd.DataFrame:
    """A sheet of an Excel workbook, the first one for ""; columns of texts keep cells as they are written."""
    with _explained(name, "a workbook"):
        unpacked = sum(part.file_size for part in ZipFile(path).infolist())
        if unpacked > (most := max(FREE_BYTES, MAX_UNPACKING * os.path.getsize(path))):
            raise TableError(f"{name} must have at most {most:,} bytes unpacked; it has {unpacked:,}")
        reading: dict[str, Any] = {"keep_default_na": False, "na_values": list(rules.missing_in(""))}
        reading |= {"dtype": dict.fromkeys(rules.texts, str), "header": 0 if rules.header else None}
        frame = pd.read_excel(path, sheet_name=sheet or 0, **reading)
    return frame if rules.header else frame.set_axis([f"column {k + 1}" for k in range(frame.shape[1])], axis=1)


def _read_database(path: str | os.PathLike[str], table: str, name: str, *, is_duck: bool) -> pd.DataFrame:
    """A table or view of a database, which is opened for reading alone."""
    with _explained(name, "a database"):
        if is_duck:
            names = "SELECT table_name FROM information_schema.tables"
            connection: Any = import_module("duckdb").connect(os.fspath(path), read_only=True)
        else:
            names = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            connection = import_module("sqlite3").connect(Path(path).absolute().as_uri() + "?mode=ro", uri=True)
        with closing(connection):
            known = sorted(row[0] for row in connection.execute(names).fetchall())
            asked = table or known[0] if table or len(known) == 1 else ""
            if asked not in known:
                raise TableError(f"{name} must name one of the tables {listing(known)}, as in file.db::table")
            cursor = connection.execute('SELECT * FROM "{}"'.format(asked.replace('"', '""')))
            return pd.DataFrame(cursor.fetchall(), columns=[column[0] for column in cursor.description])


def _typed_table(frame: pd.DataFrame, name: str) -> TableFile:
    """A table whose cells have types, with names of its columns that are texts."""
    frame.columns = [" ".join(map(str, one if isinstance(one, tuple) else [one])).strip() for one in frame.columns]
    places, notes = _named_columns(list(frame.columns), name)
    if not len(frame):
        raise TableError(f"{name} has no rows, only a header")
    return TableFile(frame.iloc[:, places], notes)


def _named_columns(names: Sequence[str], file: str) -> tuple[list[int], list[str]]:
    """Places of the columns that have a name, and a note on the others; no two names are the same."""
    repeated = [name for name, times in Counter(names).items() if times > 1 and name]
    if repeated:
        raise TableError(f"{file} has several columns of the same name; rename {listing(repeated)}")
    places = [k for k, name in enumerate(names) if name and not name.startswith("Unnamed: ")]
    if not places:
        raise TableError(f"{file} has no columns with a name")
    nameless = count(len(names) - len(places), "column")
    return places, [f"{nameless} without a name left out (often row numbers)."] if len(places) < len(names) else []


def write_table(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write Parquet or safe CSV, by the ending of ``path``; an old file is replaced only by a complete new one."""
    try:
        with replacing(path) as temporary:
            if Path(path).suffix.lower() in (".parquet", ".pq"):
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


# -- delimited text ---------------------------------------------------------------------------------------------------


class _Irregular(Exception):
    """Rows that Arrow's reader does not take, or takes for what they are not."""


def scan_text(
    path: str | os.PathLike[str], rules: TextRules, name: str = "", max_bytes: float | None = None
) -> TextTable:
    """Read a text from beginning to end, and say how its cells are read; ``name`` is that of the file in errors."""
    name = name or os.fspath(path)
    for encoding in ENCODINGS:
        for is_checked in (False, True):
            try:
                table = TextTable(path, name, rules, encoding, is_checked, max_bytes)
                table.scan()
                return table
            except UnicodeDecodeError:
                break
            except (_Irregular, pa.ArrowInvalid) as error:
                if is_checked:
                    raise TableError(f"{name} is not a regular table: {str(error).splitlines()[0]}") from error
    raise TableError(f"{name} is a binary file or text in an unknown encoding; expected CSV in UTF-8, or Parquet")


@dataclass
class TextTable:
    """A delimited text: how it is cut into cells, the types of its columns, and the meaning of commas."""

    path: str | os.PathLike[str]
    name: str
    rules: TextRules
    encoding: str
    is_checked: bool  # Python's own reader goes over every row, and short ones are filled
    max_bytes: float | None = None
    delimiter: str = ","
    n_lines: int = 0  # before the first row of values
    width: int = 0
    columns: list[_TextColumn] = field(default_factory=list)  # those that have a name
    n_rows: int = 0
    decimal_comma: bool | None = None  # None: no cell has a comma
    notes: list[str] = field(default_factory=list)

    def schema(self, empty: pa.DataType) -> pa.Schema:
        """Names and types of the columns; ``empty`` is that of columns without values."""
        return pa.schema([(column.name, column.type(self.decimal_comma) or empty) for column in self.columns])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The cells of each column in its type, null where missing, block by block."""
        n_rows = 0
        try:
            for texts in self._texts():
                n_rows += len(texts[0])
                cells = [c.convert(own, kind) for c, own, kind in zip(self.columns, texts, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(cells, schema=schema)
            if n_rows != self.n_rows:
                raise _Irregular(f"{n_rows:,} rows and not {self.n_rows:,}")
        except (_Irregular, UnicodeDecodeError, pa.ArrowInvalid) as error:
            raise TableError(f"{self.name} has changed while it was read: {error}") from error

    def scan(self) -> None:
        """Look at every cell."""
        votes: CommaVotes | None = None
        for texts in self._texts():
            self.n_rows += len(texts[0])
            for column, cells in zip(self.columns, texts, strict=True):
                column.add(cells)
            if votes is None:
                first = {c.name: c.given(cells)[:VOTING_TEXTS] for c, cells in zip(self.columns, texts, strict=True)}
                read = {name: Cells(pd.Series(cells.to_pylist(), dtype=object)) for name, cells in first.items()}
                votes = count_comma_votes(read)
                if self.rules.header:
                    self._check_names(read)
        if votes is None:
            raise TableError(f"{self.name} has no rows, only a header")
        asked = self.rules.decimal_comma
        self.decimal_comma = votes.decide(self.delimiter) if asked is None else asked
        self.notes += ["The file is not UTF-8; it was read as Windows-1252."] if self.encoding == "cp1252" else []
        self.notes += [f"Columns are separated by {DELIMITERS[self.delimiter]}."] if self.delimiter != "," else []
        against = votes.comma if self.decimal_comma is False else votes.point
        if self.decimal_comma is not None and against:
            mark, other, sign = ("commas", "points", ".") if self.decimal_comma else ("points", "commas", ",")
            why = "as most columns have" if asked is None else "as asked or as at the fit"
            self.notes.append(
                f"Numbers are read with decimal {mark}, {why}, but {listing(against)} can only have decimal {other}; "
                f"--decimal {sign} reads them so."
            )

    def _texts(self) -> Iterator[list[pa.Array]]:
        """The stripped texts of each column that has a name, block by block."""
        with open_table(self.path, self.name, self.max_bytes) as stream:
            head = self._open(stream)
            if not self.columns:
                self._find_columns(head)
            if self.is_checked:
                rows = self._checked_rows(io.BufferedReader(stream))
            elif re.search(rf"(?m)(?:^|[{self.delimiter}]) +\"", head):  # Arrow takes such quotes for text
                raise _Irregular("spaces before a quoted cell")
            else:
                rows = self._arrow_rows(stream)
            for block in rows:
                yield [pc.utf8_trim_whitespace(block[column.place]) for column in self.columns]
        if stream.quotes % 2 and not self.is_checked:  # one that is never closed may hide the rest of the file
            raise _Irregular("a quoted cell that does not end")

    def _open(self, stream: TableBytes) -> str:
        """The first megabyte as text; a TableError where it is none."""
        for signature, what in FOREIGN.items():
            if stream.head.startswith(signature):
                raise TableError(f"{self.name} is {what}, not a table; export it as CSV or Parquet")
        if self.encoding == ENCODINGS[0] and stream.head.startswith((b"\xff\xfe", b"\xfe\xff")):
            self.encoding = "utf-16"
        stream.is_text = self.encoding != "utf-16"
        text = codecs.getincrementaldecoder(self.encoding)().decode(stream.head)
        strange = {chr(code) for code in range(32)} - set("\t\n\r\f") if self.encoding == "cp1252" else {"\0"}
        if not strange.isdisjoint(text):
            raise TableError(f"{self.name} is a binary file; expected CSV or Parquet")
        start = text.lstrip()[:1]
        if start in ("<", "{", "["):
            kind = "HTML or XML" if start == "<" else "JSON"
            raise TableError(f"{self.name} looks like {kind}, not a table; expected CSV or Parquet")
        return text

    def _find_columns(self, head: str) -> None:
        """The delimiter, the names of the columns, and the number of lines before the first row of values."""
        separator = SEPARATOR_LINE.match(head)
        self.delimiter = separator[1] if separator else _sniff(head)
        names, n_lines = [""], 0
        for place, (n_lines, row) in enumerate(_rows(head, self.delimiter)):
            names = [cell.strip() for cell in row]
            if any(names) and not (place == 0 and separator):
                break
            self.n_lines = n_lines
        if not self.rules.header:
            names = [f"column {k + 1}" for k in range(len(names))]
        elif all(is_number(cell) for cell in names):
            got = f"the numbers {', '.join(names[:4])} ({NO_HEADER})"
            raise TableError(f"the first line of {self.name} must name the columns; got {got}")
        else:
            self.n_lines = n_lines
        self.width = len(names)
        places, self.notes = _named_columns(names, self.name)
        missing_in, texts = self.rules.missing_in, self.rules.texts
        self.columns = [_TextColumn(names[k], k, missing_in(names[k]), names[k] in texts) for k in places]

    def _arrow_rows(self, stream: TableBytes) -> Iterator[list[pa.Array]]:
        names = [f"{k}" for k in range(self.width)]
        block = BLOCK * min(1 + self.width // 64, 8)
        lines = {"skip_rows": self.n_lines, "column_names": names, "encoding": self.encoding}
        reading = arrow_csv.ReadOptions(block_size=block, use_threads=False, **lines)
        parsing = arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        types = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        try:
            with arrow_csv.open_csv(io.BufferedReader(stream, 2**18), reading, parsing, types) as reader:
                yield from (batch.columns for batch in reader if batch.num_rows)
        except pa.ArrowInvalid as error:
            if "Empty CSV file" not in str(error):
                raise

    def _checked_rows(self, source: BinaryIO) -> Iterator[list[pa.Array]]:
        """Rows as Python's own reader cuts them, short ones filled with empty cells."""
        lines = io.TextIOWrapper(source, encoding=self.encoding, newline="")
        skipped = sum(1 for _ in islice(lines, self.n_lines))
        reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)

        def rows() -> Iterator[list[str]]:
            try:
                for row in reader:
                    if len(row) > self.width:
                        line = skipped + reader.line_num
                        raise _Irregular(f"Expected {self.width} fields in line {line}, saw {len(row)}")
                    if row:
                        yield row + [""] * (self.width - len(row))
            except csv.Error as error:
                raise _Irregular(str(error)) from error

        whole = rows()
        while block := list(islice(whole, CHECKED_ROWS)):
            yield [pa.array(cells, pa.string()) for cells in zip(*block, strict=True)]

    def _check_names(self, cells: Mapping[str, Cells]) -> None:
        """Say so where the first line is more like a row of values than like names."""
        values = []
        for column in self.columns:
            name, sample = column.name, Cells(cells[column.name].column[:SNIFFED_ROWS])
            if "number" in column.kinds and not column.is_empty:
                is_value = is_number(name)
            elif any(sign.isdigit() for sign in name) and find_date_format(sample) is not None:
                is_value = find_date_format(Cells(pd.Series([name]))) is not None
            else:
                continue
            if not is_value:
                return
            values.append(name)
        are_years = all(map(str.isdecimal, values)) and all(int(a) < int(b) for a, b in pairwise(values))
        if not values or are_years:
            return
        if len(values) == len(self.columns):
            got = f"the values {listing(values)} ({NO_HEADER})"
            raise TableError(f"the first line of {self.name} must name the columns; got {got}")
        self.notes.append(f"The first line is more like a row than like names: {listing(values)}; {NO_HEADER}.")


PATTERNS = {
    "boolean": r"True|TRUE|true|False|FALSE|false",
    "number": rf"(?:{NUMBER})|(?i:[+-]?inf(?:inity)?)",
    "whole": r"-?\d{1,18}",
    "digits": r"\d+",
    "counted": r"0|[1-9]\d*",  # digits of a number: 007 is a code
    "pointless": r"[^.]*",
    "plus": r"\+",
}
"""Patterns that every cell of a column may be of."""


@dataclass
class _TextColumn:
    """A column of texts: what all cells seen so far are, and how they become typed ones."""

    name: str
    place: int  # among all columns of the file
    missing: frozenset[str]
    is_text: bool  # its cells stay as they are written
    kinds: set[str] = field(default_factory=lambda: set(PATTERNS))  # patterns that every cell is of
    is_empty: bool = True

    def given(self, texts: pa.Array) -> pa.Array:
        """The different texts that are not missing."""
        distinct = pc.unique(texts)
        return distinct.filter(pc.invert(pc.is_in(distinct, pa.array(sorted(self.missing), pa.string()))))

    def add(self, texts: pa.Array) -> None:
        """Look at more cells, which are stripped."""
        given = self.given(texts)
        if len(given):
            self.is_empty = False
            self.kinds = {kind for kind in self.kinds if full_matches(given, PATTERNS[kind]).all()}

    def type(self, decimal_comma: bool | None) -> pa.DataType | None:
        """The type of all cells; None where there are none.

        Texts are columns of codes, in which some whole numbers begin with a zero, and with decimal commas columns with
        points: 1.234 is a thousand there.
        """
        if self.is_empty and not self.is_text:
            return None
        if "boolean" in self.kinds and not self.is_text:
            return pa.bool_()
        are_codes = "digits" in self.kinds and "counted" not in self.kinds
        are_thousands = decimal_comma and "pointless" not in self.kinds
        if self.is_text or "number" not in self.kinds or are_codes or are_thousands:
            return pa.string()
        return pa.int64() if "whole" in self.kinds else pa.float64()

    def convert(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Stripped cells in the type of the column, null where they are missing."""
        words = self.missing - {"-"} if "plus" in self.kinds and not self.is_empty else self.missing
        blank = pc.is_in(texts, pa.array(sorted(words), pa.string()))
        given = pc.if_else(blank, pa.scalar(None, pa.string()), texts)
        return pc.equal(pc.utf8_lower(given), "true") if pa.types.is_boolean(kind) else given.cast(kind)


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The first rows of a text with the number of lines up to each; none from where it cannot be cut into cells."""
    rows = csv.reader(io.StringIO(text, newline=None), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error:  # such as a cell of more than 131,072 characters, if this is the delimiter
        return


def _sniff(text: str) -> str:
    """The delimiter that cuts the first rows into the most columns, as many in each row."""

    def quality(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for _, row in islice(_rows(text, delimiter), SNIFFED_ROWS + 1) if row]
        usual, times = Counter(widths).most_common(1)[0] if widths else (1, 0)
        return (times / len(widths), usual) if usual > 1 else (0.0, 1)

    return max(DELIMITERS, key=quality)


# -- bytes ------------------------------------------------------------------------------------------------------------


class TableBytes(io.RawIOBase):
    """A readable stream that starts with ``head``, counts quotation marks, and ends where it holds too much.

    With ``is_text`` it also ends at a zero byte, which no text has.
    """

    def __init__(self, name: str, source: BinaryIO | gzip.GzipFile, packed_size: int | None, max_bytes: float) -> None:
        self._name, self._source, self._size, self._packed_size = name, source, 0, packed_size
        most_unpacked = max(FREE_BYTES, MAX_UNPACKING * packed_size) if packed_size is not None else max_bytes
        self._limit, self.quotes, self.is_text = min(max_bytes, most_unpacked), 0, False
        self.head = self._take(HEAD)
        self._ahead = memoryview(self.head)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._ahead or memoryview(self._take(max(len(buffer), HEAD)))
        n = min(len(data), len(buffer))
        buffer[:n], self._ahead = data[:n], data[n:]
        return n

    def _take(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except (OSError, EOFError, zlib.error) as error:
            verb = "read" if self._packed_size is None else "unpack"
            raise TableError(f"cannot {verb} {self._name}: {getattr(error, 'strerror', None) or error}") from error
        self._size += len(data)
        self.quotes += data.count(b'"')
        if self.is_text and b"\0" in data:
            raise TableError(f"{self._name} is a binary file; expected CSV or Parquet")
        if self._size > self._limit:
            unpacked = "" if self._packed_size is None else f" unpacked from {self._packed_size:,}"
            raise TableError(f"{self._name} must have at most {self._limit:,} bytes{unpacked}; it has more")
        return data


@contextmanager
def open_table(path: str | os.PathLike[str], name: str, max_bytes: float | None = None) -> Iterator[TableBytes]:
    """The bytes of a file, unpacked where they are packed with gzip; ``max_bytes`` None: as many as fit in memory."""
    limit = MAX_BYTES if max_bytes is None else max_bytes
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is a folder or a device, not a file")
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError as error:
        raise TableError(f"there is no file {name}") from error
    except (OSError, ValueError) as error:
        raise TableError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    is_packed = file.peek(2)[:2] == b"\x1f\x8b"  # of gzip
    with file, gzip.GzipFile(fileobj=file) if is_packed else file as source:
        yield TableBytes(name, source, status.st_size if is_packed else None, limit)
