"""A dataset of any size: the Parquet files that a path, a folder, a pattern or an address stands for.

A *part* is one file. A *piece* is a run of its row groups, about a million rows, which one process reads at a time.
Pieces are numbered in one order, so that work can be shared and resumed. Rows are read by Arrow's file reader: a scan
of ``pyarrow.dataset`` decodes a whole row group at once, which may be larger than memory. Delimited text is converted
to Parquet once, a block at a time.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import fs, parquet

from vmg.files import private_folder, replacing
from vmg.tables import TableError
from vmg.tables.cells import listing
from vmg.tables.files import TextRules, TextTable, scan_text

__all__ = [
    *("Dataset", "Part", "Piece", "as_parquet", "convert_csv", "list_parts", "open_dataset", "require_schema"),
    "to_frame",
]

PARQUET = r"(?i:.*\.(parquet|pq))"
TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
BATCH_ROWS = 65_536  # rows in memory at a time
PIECE_ROWS = 2**20
WILDCARD = re.compile(r"[*?\[]")
WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})")
ROW_NUMBERS = re.compile(r"__index_level_\d+__")  # columns of an index without a name, which pandas writes
HIDDEN = (".", "_")  # first characters of names that are passed over, as Spark and Arrow do
DECIMAL_COMMA = b"vmg.decimal_comma"  # what the cells of a converted text said of commas, in the schema's metadata
TEXT_NAME = b"vmg.text_name"  # and the name of a text that was converted for the moment


@dataclass(frozen=True)
class Part:
    """One file of a dataset: its path below the folder of all parts, and its path in the file system.

    ``keys`` are columns whose value is in the names of folders, as in ``year=2024/part-0.parquet``.
    """

    name: str
    path: str
    filesystem: Any
    keys: dict[str, str | int] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[parquet.ParquetFile]:
        """A reader of the file; a TableError where the file is damaged, also while it is read."""
        try:
            with self.filesystem.open_input_file(self.path) as file:
                yield parquet.ParquetFile(file, pre_buffer=False)
        except TableError:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise TableError(f"cannot be read: {_first_line(error)}") from error

    def layout(self) -> tuple[pa.Schema, list[int]]:
        """Columns with their types, and the rows of each row group."""
        with self.open() as reader:
            metadata, schema = reader.metadata, reader.schema_arrow
            rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        schema = pa.schema([one for one in schema if not ROW_NUMBERS.fullmatch(one.name)], metadata=schema.metadata)
        for name, value in self.keys.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.array([value]).type))
        return schema, rows


@dataclass(frozen=True)
class Piece:
    """A run of row groups of a part, and its number among all pieces of the dataset."""

    part: Part
    groups: range
    n_rows: int
    number: int

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches of a few rows, in order; a TableError where the file is damaged."""
        keys = {name: value for name, value in self.part.keys.items() if name in columns}
        in_file = [name for name in columns if name not in keys]
        with self.part.open() as reader:
            for k in self.groups:  # one by one, so that no more than one is in memory
                for batch in reader.iter_batches(BATCH_ROWS, row_groups=[k], columns=in_file, use_threads=False):
                    for name, value in keys.items():
                        batch = batch.append_column(name, pa.array([value] * batch.num_rows))
                    yield batch


def to_frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """A table of pandas with all columns, also those that were an index when pandas wrote them."""
    return batch.to_pandas(ignore_metadata=True)


@dataclass
class Dataset:
    """Parts whose columns have the same kinds.

    ``refused`` has the others by name, with the reason, and ``empty`` those without rows. A part that turns out to be
    damaged while it is read is refused too, but its rows up to there are used, the same ones in every pass.
    """

    name: str
    schema: pa.Schema
    pieces: list[Piece]
    refused: dict[str, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows of all parts together, as the files state them."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def decimal_comma(self) -> bool | None:
        """Whether a comma was the decimal point of a converted text; None where it had no comma."""
        said = (self.schema.metadata or {}).get(DECIMAL_COMMA)
        return None if said is None else said == b"True"

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Tables of a few rows, one after the other."""
        for piece in self.pieces:
            yield from self.frames_of(piece, columns)

    def frames_of(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Tables of a few rows of one piece, up to where it is damaged."""
        try:
            for batch in piece.batches(columns or self.schema.names):
                yield to_frame(batch)
        except TableError as error:
            self.refused.setdefault(piece.part.name, f"{error}; rows before that are used")

    def notes(self) -> list[str]:
        """Short sentences about parts that are not used."""
        sentences = [f"Part {name}: {reason}." for name, reason in self.refused.items()]
        if self.empty:
            sentences.append(f"Parts without rows: {listing(self.empty)}.")
        return sentences


def open_dataset(source: str | os.PathLike[str], columns: Sequence[str] = ()) -> Dataset:
    """Look at every part of ``source``, without reading its rows.

    A part is refused if it lacks one of ``columns`` (or, without them, of the first part's columns), or has another
    kind of cells there than the first part.
    """
    dataset = Dataset(os.fspath(source), None, [])
    for part in list_parts(source):
        try:
            own, sizes = part.layout()
            dataset.name = (own.metadata or {}).get(TEXT_NAME, dataset.name.encode()).decode()
            require_schema(own, columns or (dataset.schema or own).names, dataset.schema or own)
        except TableError as error:
            dataset.refused[part.name] = str(error)
            continue
        dataset.schema = dataset.schema or own
        dataset.pieces += _make_pieces(part, sizes, len(dataset.pieces))
        dataset.empty += [] if sum(sizes) else [part.name]
    if not dataset.pieces:
        reasons = [f"{name}: {reason}" for name, reason in dataset.refused.items()]
        why = "; ".join(reasons[:3]) or f"no part has rows, as {listing(dataset.empty)}"
        raise TableError(f"{dataset.name} has no part that can be used: {why}")
    return dataset


def require_schema(schema: pa.Schema, columns: Sequence[str], first: pa.Schema) -> None:
    """Raise a TableError where a part lacks columns, or where its cells are of another kind than the first part's."""
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise TableError(f"it lacks the column {listing(missing)}; it has {listing(schema.names)}")
    for name in columns:
        kinds = [_kind_of_type(one.field(name).type) for one in (first, schema)]
        if len(set(kinds) - {"empty"}) > 1:
            raise TableError(f"its column '{name}' holds {kinds[1]}, and that of the first part {kinds[0]}")


KINDS: dict[str, Sequence[Callable[[pa.DataType], bool]]] = {
    "empty": [pa.types.is_null],
    "booleans": [pa.types.is_boolean],
    "numbers": [pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal],
    "texts": [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view],
    "dates": [pa.types.is_timestamp, pa.types.is_date],
}


def _kind_of_type(kind: pa.DataType) -> str:
    """The kind of cells of an Arrow type, or the type's own name."""
    if pa.types.is_dictionary(kind):
        return _kind_of_type(kind.value_type)
    return next((name for name, tests in KINDS.items() if any(test(kind) for test in tests)), str(kind))


def _make_pieces(part: Part, sizes: Sequence[int], number: int) -> list[Piece]:
    """Cut a part, known by the rows of its row groups, into pieces numbered from ``number`` on; none is empty."""
    pieces: list[Piece] = []
    start, n = 0, 0
    for k, size in enumerate(sizes):
        n += size
        if n and (n >= PIECE_ROWS or k == len(sizes) - 1):
            pieces.append(Piece(part, range(start, k + 1), n, number + len(pieces)))
            start, n = k + 1, 0
    return pieces


# -- which files ------------------------------------------------------------------------------------------------------


def list_parts(source: str | os.PathLike[str]) -> list[Part]:
    """The files that ``source`` stands for, by name.

    ``source`` is a file, a folder (with folders in it, also of the form ``key=value``), a pattern with ``*`` and
    ``**``, or one with an address, such as ``s3://bucket/sales/*.parquet``. Names that start with a dot or an
    underscore are passed over, unless a pattern spells out such a start.
    """
    text = os.fspath(source)
    base, pattern = _split_pattern(text)
    try:
        if "://" in base:
            filesystem, root = fs.FileSystem.from_uri(base)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.abspath(base)
        entry = filesystem.get_file_info(root)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TableError(f"cannot read {text}: {_first_line(error)}") from error
    if entry.type == fs.FileType.NotFound:
        raise TableError(f"there is no file or folder {text}")
    if entry.type == fs.FileType.File:
        return [Part(entry.base_name, entry.path, filesystem)]
    prefix = root.rstrip("/") + "/"
    matches = re.compile(PARQUET if pattern is None else _translate(pattern))
    hidden_too = any(name.startswith(HIDDEN) for name in (pattern or "").split("/"))
    found = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    files = {info.path.removeprefix(prefix): info.path for info in found if info.type == fs.FileType.File}
    names = [name for name in sorted(files) if matches.fullmatch(name)]
    if not hidden_too:
        names = [name for name in names if not any(piece.startswith(HIDDEN) for piece in name.split("/"))]
    if not names:
        raise TableError(f"there is no Parquet file in {text}")
    return _with_keys([Part(name, files[name], filesystem) for name in names])


def _split_pattern(text: str) -> tuple[str, str | None]:
    """The folder before the first name with a wildcard, and the rest; None without one."""
    match = WILDCARD.search(text)
    if match is None:
        return text, None
    folder, slash, _ = text[: match.start()].rpartition("/")
    base = folder or ("/" if slash else ".")
    return base, text[len(folder) + len(slash) :]


def _translate(pattern: str) -> str:
    """A pattern of a shell as a regular expression: ``*`` and ``?`` stay within a name, ``**/`` is any folders."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        words.get(piece, piece.replace("[!", "[^", 1) if piece.startswith("[") else re.escape(piece))
        for piece in pieces
    )


def _with_keys(parts: list[Part]) -> list[Part]:
    """Parts with the values of their folders, which are whole numbers where those of all parts are."""
    keys = [dict(re.findall("([^/=]+)=([^/]*)/", part.name)) for part in parts]
    texts = {key for own in keys for key, value in own.items() if not WHOLE_NUMBER.fullmatch(value)}
    typed = [{key: value if key in texts else int(value) for key, value in own.items()} for own in keys]
    return [replace(part, keys=own) for part, own in zip(parts, typed, strict=True)]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# -- delimited text ---------------------------------------------------------------------------------------------------


@contextmanager
def as_parquet(source: str, **reading: Any) -> Iterator[str]:
    """A dataset as it is, or a delimited text as a Parquet file that is gone after the block."""
    if not source.lower().endswith(TEXT_ENDINGS) or "://" in source:
        yield source
        return
    with private_folder() as folder:
        path = os.path.join(folder, Path(source).name.split(".")[0] + ".parquet")
        convert_csv(source, path, metadata={TEXT_NAME: source.encode()}, **reading)
        yield path


def convert_csv(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    metadata: Mapping[bytes, bytes] | None = None,
    **reading: Any,
) -> TextTable:
    """Write a delimited text as one Parquet file, in memory that does not grow with its rows.

    Cells have the types and values that :func:`vmg.tables.read_table` gives them, whose arguments ``reading`` are.
    ``metadata`` goes into the schema.
    """
    text = scan_text(source, TextRules(**reading), max_bytes=math.inf)
    comma = {} if text.decimal_comma is None else {DECIMAL_COMMA: str(text.decimal_comma).encode()}
    schema = text.schema(empty=pa.string()).with_metadata({**(metadata or {}), **comma})
    with replacing(target) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for batch in text.batches(schema):
            writer.write_batch(batch)
    return text
