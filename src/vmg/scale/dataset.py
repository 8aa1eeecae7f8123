"""A dataset of any size: the Parquet and Arrow files that a path, a folder, a pattern or an address stands for.

A *part* is one file. A *piece* is a run of its row groups, about a million rows, which one process reads at a time.
Pieces are numbered in one order, whoever reads them, so that work can be shared and resumed. Rows are read by Arrow's
file readers: a scan of ``pyarrow.dataset`` decodes a whole row group at once, which may be larger than memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import fs, ipc, parquet

from vmg.scale.conversion import DECIMAL_COMMA
from vmg.tables import TableError
from vmg.tables.wording import listing

__all__ = ["ALONE", "Dataset", "Part", "Piece", "Refused", "Shard", "list_parts", "open_dataset"]

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".arrow", ".feather", ".ipc")
BATCH_ROWS = 65_536  # rows in memory at a time
PIECE_ROWS = 2**20
WILDCARD = re.compile(r"[*?\[]")
HIDDEN = (".", "_")  # first characters of names that are passed over, as Spark and Arrow do

Shard = tuple[int, int]
"""Rank and number of processes that share a dataset; (0, 1) is one process alone."""

ALONE: Shard = (0, 1)


@dataclass(frozen=True)
class Refused:
    """A part that cannot be used, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class Part:
    """One file of a dataset.

    Parameters
    ----------
    name : str
        Path below the folder of all parts.
    path : str
        Path in the file system.
    filesystem : pyarrow.fs.FileSystem
    keys : mapping
        Columns whose value is in the names of folders, as in ``year=2024/part-0.parquet``.
    """

    name: str
    path: str
    filesystem: Any
    keys: dict[str, str | int] = field(default_factory=dict)

    @property
    def is_arrow(self) -> bool:
        """Whether the file is in Arrow's own format, not in Parquet."""
        return self.path.lower().endswith(ARROW_ENDINGS)

    def layout(self) -> tuple[pa.Schema, list[int]]:
        """Columns with their types, and the rows of each row group; a TableError where the file is damaged."""
        try:
            with self.filesystem.open_input_file(self.path) as file:
                if self.is_arrow:
                    opened = ipc.open_file(file)
                    rows = [opened.get_batch(k).num_rows for k in range(opened.num_record_batches)]
                    schema = opened.schema
                else:
                    opened_parquet = parquet.ParquetFile(file)
                    metadata, schema = opened_parquet.metadata, opened_parquet.schema_arrow
                    rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise TableError(f"cannot be read: {_first_line(error)}") from error
        for name, value in self.keys.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.int64() if isinstance(value, int) else pa.string()))
        return schema, rows


@dataclass(frozen=True)
class Piece:
    """A run of row groups of a part, and its number among all pieces of the dataset."""

    part: Part
    groups: range
    n_rows: int
    number: int

    def batches(self, columns: Sequence[str] | None = None, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Record batches of at most ``rows`` rows, in order; a TableError where the file is damaged."""
        keys = {name: value for name, value in self.part.keys.items() if columns is None or name in columns}
        try:
            with self.part.filesystem.open_input_file(self.part.path) as file:
                for batch in self._read(file, columns, rows):
                    for name, value in keys.items():
                        if name not in batch.schema.names:
                            batch = batch.append_column(name, pa.array([value] * batch.num_rows))
                    yield batch
        except (OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, TableError):
                raise
            raise TableError(f"cannot be read: {_first_line(error)}") from error

    def _read(self, file: Any, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
        wanted = None if columns is None else [name for name in columns if name not in self.part.keys]
        if not self.part.is_arrow:
            opened = parquet.ParquetFile(file, pre_buffer=False)
            for k in self.groups:  # one by one, so that no more than one is in memory
                yield from opened.iter_batches(rows, row_groups=[k], columns=wanted, use_threads=False)
            return
        reader = ipc.open_file(file)
        for k in self.groups:
            batch = reader.get_batch(k)
            batch = batch if wanted is None else batch.select(wanted)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)


@dataclass
class Dataset:
    """Parts whose columns have the same kinds; ``refused`` and ``empty`` name the others.

    A part that turns out to be damaged while its rows are read is named in ``refused`` too. Its rows up to there are
    used, the same ones in every pass.
    """

    name: str
    schema: pa.Schema
    pieces: list[Piece]
    refused: list[Refused] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows of all parts together, as the files state them."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def decimal_comma(self) -> bool | None:
        """Whether a comma is the decimal point, as the text said that was converted; None where none did."""
        said = (self.schema.metadata or {}).get(DECIMAL_COMMA)
        return None if said is None else said == b"True"

    def frames(
        self, columns: Sequence[str] | None = None, *, shard: Shard = ALONE
    ) -> Iterator[tuple[Piece, pd.DataFrame]]:
        """Tables of a few rows, one after the other, each with the piece that it is from."""
        for piece in self.own_pieces(shard):
            for frame in self.frames_of(piece, columns):
                yield piece, frame

    def own_pieces(self, shard: Shard = ALONE) -> list[Piece]:
        """The pieces that one of several processes reads."""
        rank, world = shard
        return self.pieces[rank::world]

    def frames_of(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Tables of a few rows of one piece, up to where it is damaged."""
        try:
            for batch in piece.batches(columns):
                yield batch.to_pandas()
        except TableError as error:
            if all(refused.name != piece.part.name for refused in self.refused):
                self.refused.append(Refused(piece.part.name, f"{error}; rows before that are used"))

    def notes(self) -> list[str]:
        """Short sentences about parts that are not used."""
        sentences = [f"Part {refused}." for refused in self.refused]
        if self.empty:
            sentences.append(f"Parts without rows: {listing(self.empty)}.")
        return sentences


def open_dataset(source: str | os.PathLike[str], columns: Sequence[str] = ()) -> Dataset:
    """Look at every part of ``source``, without reading its rows.

    The first part that can be read says which columns there are and of what kinds. A part that lacks some of
    ``columns`` (or, without them, of the first part's columns), or has another kind in one, is refused.
    """
    name = os.fspath(source)
    schema: pa.Schema | None = None
    good: list[tuple[Part, list[int]]] = []
    refused: list[Refused] = []
    empty: list[str] = []
    for part in list_parts(source):
        try:
            own, sizes = part.layout()
            _require_columns(own, own if schema is None else schema, columns)
        except TableError as error:
            refused.append(Refused(part.name, str(error)))
            continue
        schema = own if schema is None else schema
        if sum(sizes):
            good.append((part, sizes))
        else:
            empty.append(part.name)
    if schema is None or not good:
        why = "; ".join(map(str, refused[:3])) or f"no part has rows, as {listing(empty)}"
        raise TableError(f"{name} has no part that can be used: {why}")
    return Dataset(name, schema, _make_pieces(good), refused, empty)


def _require_columns(schema: pa.Schema, first: pa.Schema, columns: Sequence[str]) -> None:
    """Raise a TableError where a part lacks columns, or where its cells are of another kind than the first part's."""
    columns = columns or first.names
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
    """The kind of cells of an Arrow type: numbers, texts, dates, booleans, or the type's own name."""
    if pa.types.is_dictionary(kind):
        return _kind_of_type(kind.value_type)
    return next((name for name, tests in KINDS.items() if any(test(kind) for test in tests)), str(kind))


def _make_pieces(parts: Sequence[tuple[Part, Sequence[int]]]) -> list[Piece]:
    """Cut parts, known by the rows of their row groups, into pieces; none is empty."""
    pieces: list[Piece] = []
    for part, sizes in parts:
        start, n = 0, 0
        for k, size in enumerate(sizes):
            n += size
            if n and (n >= PIECE_ROWS or k == len(sizes) - 1):
                pieces.append(Piece(part, range(start, k + 1), n, len(pieces)))
                start, n = k + 1, 0
    return pieces


# -- which files ------------------------------------------------------------------------------------------------------


def list_parts(source: str | os.PathLike[str]) -> list[Part]:
    """The files that ``source`` stands for, by name.

    ``source`` is a file, a folder (with folders in it, also of the form ``key=value``), a pattern with ``*`` and
    ``**``, or the same with an address in front, such as ``s3://bucket/sales/*.parquet``. Names that start with a dot
    or an underscore are passed over, unless a pattern spells out such a start.
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
    ending = "|".join(re.escape(ending) for ending in PARQUET_ENDINGS + ARROW_ENDINGS)
    matches = re.compile(f"(?i:.*({ending}))" if pattern is None else _translate(pattern))
    hidden_too = any(name.startswith(HIDDEN) for name in (pattern or "").split("/"))
    parts = []
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        name = info.path.removeprefix(prefix)
        hidden = any(piece.startswith(HIDDEN) for piece in PurePosixPath(name).parts)
        if info.type == fs.FileType.File and matches.fullmatch(name) and (hidden_too or not hidden):
            parts.append(Part(name, info.path, filesystem, _folder_keys(name)))
    if not parts:
        raise TableError(f"{text} must have Parquet or Arrow files; got none")
    return _with_types(sorted(parts, key=lambda part: part.name))


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


def _folder_keys(name: str) -> dict[str, str | int]:
    folders = [piece.partition("=") for piece in PurePosixPath(name).parts[:-1]]
    return {key: value for key, equals, value in folders if equals and key}


def _with_types(parts: list[Part]) -> list[Part]:
    """Values of folders as whole numbers where all parts have such, the same kind in every part."""
    numbers = {
        name
        for name in {name for part in parts for name in part.keys}
        if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", str(part.keys[name])) for part in parts if name in part.keys)
    }
    return [
        replace(part, keys={name: int(value) if name in numbers else value for name, value in part.keys.items()})
        for part in parts
    ]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
