"""Delimited text: its encoding, delimiter and header, its cells as texts a block at a time, and the types of columns.

The same rules hold for a table that is read whole and for one that is converted a block at a time.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from vmg.tables.cells import NUMBER, full_matches, is_number
from vmg.tables.dates import find_date_format
from vmg.tables.numbers import CommaVotes, count_comma_votes
from vmg.tables.reading import TableBytes, open_table
from vmg.tables.wording import TableError, count, listing

__all__ = ["MISSING", "TextColumn", "TextRules", "TextTable", "read_text"]

MISSING = frozenset(
    [
        *("", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "None"),
        *("null", "NULL", "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN", "?", "-", "--", "."),
    ]
)
"""Cells of a file that are missing, unless the user says otherwise."""

SIGNS = ("+", "-")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
ENCODINGS = ("utf-8-sig", "cp1252")  # Excel on Windows still writes the latter
SNIFFED_ROWS = 50
DECIDING_ROWS = 100_000  # of the first block, in which cells say what a comma means
BLOCK = 2**21  # bytes that are read at a time; a row must be shorter
SEPARATOR_LINE = re.compile(r"(?i)\s*\"?sep=([,;|\t])\"?[ \t]*(?=[\r\n])")  # of Excel
FLOAT = rf"(?:{NUMBER})|(?i:[+-]?inf(?:inity)?)"
WHOLE = r"-?\d{1,18}"
CODE = r"0\d+"  # 007 is no number
BOOLEAN = r"True|TRUE|true|False|FALSE|false"
FOREIGN = {  # how files start that people take for tables
    b"PK\x03\x04": "a zip archive or Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"%PDF": "a PDF document",
    b"SQLite format 3": "a SQLite database",
}


class TextRules(NamedTuple):
    """Choices of a caller about a file.

    ``texts`` are columns whose cells stay as they are written, each with words that are not missing there;
    ``decimal_comma`` None: found out; ``header`` says whether the first line names the columns.
    """

    texts: Mapping[str, Collection[str]]
    decimal_comma: bool | None
    missing: frozenset[str]
    header: bool


@dataclass
class TextColumn:
    """A column of texts: what all cells seen so far are, and how they become typed ones."""

    name: str
    missing: frozenset[str]
    is_text: bool  # its cells stay as they are written
    is_empty: bool = True
    only_signs: bool = True
    has_plus: bool = False
    are_numbers: bool = True
    are_whole: bool = True
    are_digits: bool = True
    are_booleans: bool = True
    has_code: bool = False
    has_point: bool = False

    def add(self, texts: pa.Array) -> None:
        """Look at more cells, which are stripped."""
        distinct = pc.unique(texts)
        if self.only_signs:
            self.only_signs = bool(pc.all(pc.is_in(distinct, pa.array(["", *SIGNS]))).as_py())
            self.has_plus |= self.only_signs and "+" in distinct.to_pylist()
        given = distinct.filter(pc.invert(pc.is_in(distinct, pa.array(sorted(self.missing), pa.string()))))
        if not len(given):
            return
        self.is_empty = False
        self.are_booleans = self.are_booleans and bool(full_matches(given, BOOLEAN).all())
        self.are_numbers = self.are_numbers and bool(full_matches(given, FLOAT).all())
        if self.are_numbers:
            self.are_whole = self.are_whole and bool(full_matches(given, WHOLE).all())
            self.are_digits = self.are_digits and bool(full_matches(given, r"\d+").all())
            self.has_code |= bool(full_matches(given, CODE).any())
            self.has_point |= bool(pc.any(pc.match_substring(given, ".")).as_py())

    def type(self, decimal_comma: bool | None) -> pa.DataType:
        """The type of all cells.

        Texts are columns of codes, in which some whole numbers begin with a zero, and with decimal commas columns with
        points: 1.234 is a thousand there.
        """
        if self.is_text or not (self.are_numbers or self.are_booleans):
            return pa.string()
        if self.is_empty:
            return pa.null()
        if self.are_booleans:
            return pa.bool_()
        if (self.are_digits and self.has_code) or (decimal_comma and self.has_point):
            return pa.string()
        return pa.int64() if self.are_whole else pa.float64()

    def convert(self, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        """Stripped cells in the type of the column, null where they are missing."""
        if pa.types.is_null(kind):
            return pa.nulls(len(texts))
        words = self.missing - set(SIGNS) if self.only_signs and self.has_plus else self.missing
        blank = pc.is_in(texts, pa.array(sorted(words), pa.string()))
        given = pc.if_else(blank, pa.scalar(None, pa.string()), texts)
        return pc.equal(pc.utf8_lower(given), "true") if pa.types.is_boolean(kind) else given.cast(kind)


class TextTable(NamedTuple):
    """A text that was read: its columns, the meaning of commas (None: no cell has one), and notes."""

    columns: list[TextColumn]
    decimal_comma: bool | None
    notes: list[str]

    @property
    def types(self) -> list[pa.DataType]:
        """The types of the columns."""
        return [column.type(self.decimal_comma) for column in self.columns]


class _Irregular(Exception):
    """Rows that Arrow's reader does not take, or takes for what they are not."""


def read_text(
    path: str | os.PathLike[str],
    name: str,
    rules: TextRules,
    begin: Callable[[list[str]], Callable[[list[pa.Array]], None]],
    max_bytes: float | None = None,
) -> TextTable:
    """Read a text from beginning to end, a block at a time.

    Args:
        path: the file, which is opened again where its encoding or its rows are not the usual ones.
        name: of the file, in errors.
        rules: choices of the caller.
        begin: called with the names of the columns, perhaps several times; what it gives back is called with the
            stripped cells of each column, block by block.
        max_bytes: of the text; None: as many as fit in memory.
    """
    for encoding in ENCODINGS:
        for is_checked in (False, True):
            try:
                return _Reading(path, name, encoding, rules, is_checked, max_bytes).run(begin)
            except UnicodeDecodeError:
                break
            except (_Irregular, pa.ArrowInvalid) as error:
                if is_checked:
                    raise TableError(f"{name} is not a regular table: {str(error).splitlines()[0]}") from error
    raise TableError(f"{name} is a binary file or text in an unknown encoding; expected CSV in UTF-8, or Parquet")


@dataclass
class _Reading:
    """One attempt to read a text; ``is_checked`` has Python's own reader go over every row and fill short ones."""

    path: str | os.PathLike[str]
    name: str
    encoding: str
    rules: TextRules
    is_checked: bool
    max_bytes: float | None
    notes: list[str] = field(default_factory=list)

    def run(self, begin: Callable[[list[str]], Callable[[list[pa.Array]], None]]) -> TextTable:
        with open_table(self.path, self.max_bytes) as stream:
            head = self._open(stream)
            said = SEPARATOR_LINE.match(head)
            delimiter = said[1] if said else _sniff(head)
            names, n_lines = _find_header(head, delimiter, self.name, self.rules.header, skip=1 if said else 0)
            kept = [k for k, name in enumerate(names) if name and not name.startswith("Unnamed: ")]
            if len(kept) < len(names):
                self.notes.append(
                    f"{count(len(names) - len(kept), 'column')} without a name left out (often row numbers)."
                )
            columns = [self._column(names[k]) for k in kept]
            take = begin([column.name for column in columns])
            votes: CommaVotes | None = None
            for batch in self._batches(stream, head, delimiter, len(names), n_lines):
                texts = [pc.utf8_trim_whitespace(batch.column(k)) for k in kept]
                for column, cells in zip(columns, texts, strict=True):
                    column.add(cells)
                if votes is None:
                    first = {c.name: _given(cells, c.missing) for c, cells in zip(columns, texts, strict=True)}
                    votes = count_comma_votes(first)
                    if self.rules.header:
                        self._check_names(columns, first)
                take(texts)
        if stream.quotes % 2 and not self.is_checked:  # one that is never closed may hide the rest of the file
            raise _Irregular("a quoted cell that does not end")
        if votes is None:
            raise TableError(f"{self.name} has no rows, only a header")
        decided, asked = votes.decide(delimiter), self.rules.decimal_comma
        comma = decided if asked is None else asked
        if self.encoding == "cp1252":
            self.notes.append("The file is not UTF-8; it was read as Windows-1252.")
        if delimiter != ",":
            self.notes.append(f"Columns are separated by {DELIMITERS[delimiter]}.")
        against = votes.comma if comma is False else votes.point
        if comma is not None and against:
            self.notes.append(_contradiction(against, comma, asked is not None))
        return TextTable(columns, comma, self.notes)

    def _open(self, stream: TableBytes) -> str:
        """The first megabyte as text, and the stream set to the encoding; a TableError where it is no text."""
        for signature, what in FOREIGN.items():
            if stream.head.startswith(signature):
                raise TableError(f"{self.name} is {what}, not a table; export it as CSV or Parquet")
        if self.encoding == ENCODINGS[0] and stream.head.startswith((b"\xff\xfe", b"\xfe\xff")):
            self.encoding = "utf-16"
        if self.encoding != "utf-16" and b"\0" in stream.head:
            raise TableError(f"{self.name} is a binary file; expected CSV or Parquet")
        stream.set_encoding(self.encoding)
        text = codecs.getincrementaldecoder(self.encoding)().decode(stream.head)
        if self.encoding == "cp1252" and any(ord(sign) < 32 and sign not in "\t\n\r\f" for sign in text):
            raise TableError(f"{self.name} is a binary file; expected CSV or Parquet")
        start = text.lstrip()[:1]
        if start in ("<", "{", "["):
            kind = "HTML or XML" if start == "<" else "JSON"
            raise TableError(f"{self.name} looks like {kind}, not a table; expected CSV or Parquet")
        return text

    def _column(self, name: str) -> TextColumn:
        texts = self.rules.texts
        return TextColumn(name, self.rules.missing - {*texts.get(name, ())} | {""}, name in texts)

    def _batches(
        self, stream: TableBytes, head: str, delimiter: str, width: int, n_lines: int
    ) -> Iterator[pa.RecordBatch]:
        """Blocks of texts, whose first row is the one after ``n_lines`` lines."""
        source: Any = io.BufferedReader(stream, 2**18)
        if not self.is_checked and re.search(rf"(?m)(?:^|[{delimiter}]) +\"", head):  # Arrow takes such quotes for text
            raise _Irregular("spaces before a quoted cell")
        if self.is_checked:
            source, n_lines = _CheckedRows(source, delimiter, width, n_lines), 0
            delimiter = ","
        columns = [f"{k}" for k in range(width)]
        try:
            with arrow_csv.open_csv(
                source,
                read_options=arrow_csv.ReadOptions(
                    block_size=BLOCK, use_threads=False, skip_rows=n_lines, column_names=columns
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string())),
            ) as reader:
                yield from (batch for batch in reader if batch.num_rows)
        except pa.ArrowInvalid as error:
            if stream.failure is not None:
                raise stream.failure from error
            if "Empty CSV file" not in str(error):
                raise

    def _check_names(self, columns: Sequence[TextColumn], cells: Mapping[str, pa.Array]) -> None:
        """Say so where the first line is more like a row of values than like names."""
        values = []
        for column in columns:
            texts = pd.Series(cells[column.name][:SNIFFED_ROWS].to_pylist(), dtype=object)
            if column.are_numbers and not column.is_empty:
                if not is_number(column.name):
                    return
                values.append(column.name)
            elif any(sign.isdigit() for sign in column.name) and find_date_format(texts) is not None:
                if find_date_format(pd.Series([column.name])) is None:
                    return
                values.append(column.name)
        numbers = [float(value) for value in values if is_number(value)]
        whole = len(numbers) == len(values) and all(number.is_integer() for number in numbers)
        are_years = whole and all(a < b for a, b in pairwise(numbers))
        if values and not are_years:
            row = f"the first line of {self.name} must name the columns; got the values {listing(values)}"
            if len(values) == len(columns):
                raise TableError(f"{row} (--no-header reads it as a row)")
            self.notes.append(
                f"The first line is more like a row than like names: {listing(values)}; --no-header reads it as a row."
            )


class _CheckedRows(io.RawIOBase):
    """The rows of a text, each with as many cells as the header, as a text that leaves nothing open."""

    def __init__(self, source: Any, delimiter: str, width: int, n_lines: int) -> None:
        lines = io.TextIOWrapper(source, encoding="utf-8", newline="")
        self._skipped = sum(1 for _ in islice(lines, n_lines))
        self._rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
        self._width, self._ahead = width, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._ahead:
            self._ahead = self._write(list(islice(self._next(), 1_000)))
        data, self._ahead = self._ahead[: len(buffer)], self._ahead[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _next(self) -> Iterator[list[str]]:
        try:
            for row in self._rows:
                if len(row) > self._width:
                    line = self._skipped + self._rows.line_num
                    raise _Irregular(f"Expected {self._width} fields in line {line}, saw {len(row)}")
                if row:
                    yield row + [""] * (self._width - len(row))
        except csv.Error as error:
            raise _Irregular(str(error)) from error

    @staticmethod
    def _write(rows: list[list[str]]) -> bytes:
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def _given(texts: pa.Array, missing: frozenset[str]) -> pa.Array:
    """The different texts of the first rows that are not missing."""
    distinct = pc.unique(texts[:DECIDING_ROWS])
    return distinct.filter(pc.invert(pc.is_in(distinct, pa.array(sorted(missing), pa.string()))))


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


def _find_header(text: str, delimiter: str, name: str, header: bool, *, skip: int = 0) -> tuple[list[str], int]:
    """The names of the columns, and the number of lines before the first row of values."""
    before = 0
    for place, (n_lines, row) in enumerate(_rows(text, delimiter)):
        names = [cell.strip() for cell in row]
        if place < skip or not any(names):
            before = n_lines
            continue
        if not header:
            return [f"column {k + 1}" for k in range(len(names))], before
        if all(is_number(cell) for cell in names):
            numbers = ", ".join(names[:4])
            raise TableError(
                f"the first line of {name} must name the columns; got the numbers {numbers} (--no-header reads it as "
                "a row)"
            )
        repeated = [cell for cell, times in Counter(names).items() if times > 1 and cell]
        if repeated:
            raise TableError(f"{name} has several columns of the same name; rename {listing(repeated)}")
        return names, n_lines
    raise TableError(f"{name} has no columns with a name")


def _contradiction(against: list[str], comma: bool, asked: bool) -> str:
    """The sentence where cells are numbers only in the other convention."""
    mark, other = ("commas", "points") if comma else ("points", "commas")
    why = "as asked or as at the fit" if asked else "as most columns have"
    return (
        f"Numbers are read with decimal {mark}, {why}, but {listing(against)} can only have decimal {other}; "
        f"--decimal {'.' if comma else ','} reads them so."
    )
