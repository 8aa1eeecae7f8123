"""A dataset as its parts: the files that a path, a folder, a pattern or an address in a store stands for.

A part is one Parquet or Arrow file. A *piece* is a run of its row groups, about a million rows: what one worker reads
at a time. Pieces are numbered in one order, whoever reads them, so that work can be dealt out and taken up again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs, ipc, parquet

from vmg.tables import TableError

__all__ = ["ARROW_ENDINGS", "BATCH_ROWS", "PARQUET_ENDINGS", "Part", "Piece", "Refused", "list_parts", "make_pieces"]

PARQUET_ENDINGS = (".parquet", ".pq")
ARROW_ENDINGS = (".arrow", ".feather", ".ipc")
BATCH_ROWS = 65_536  # that are in memory at a time
PIECE_ROWS = 2**20
WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Refused:
    """A part that cannot be used, and why."""

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
        Below the folder that all parts are in.
    path : str
        As its file system knows it.
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
                    metadata = parquet.ParquetFile(file).metadata
                    rows = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
                    schema = metadata.schema.to_arrow_schema()
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
        try:
            with self.part.filesystem.open_input_file(self.part.path) as file:
                for batch in self._read(file, columns, rows):
                    yield self._with_keys(batch, columns)
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

    def _with_keys(self, batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
        for name, value in self.part.keys.items():
            if name not in batch.schema.names and (columns is None or name in columns):
                batch = batch.append_column(name, pa.array([value] * batch.num_rows))
        return batch


def make_pieces(parts: Sequence[tuple[Part, Sequence[int]]], rows: int = PIECE_ROWS) -> list[Piece]:
    """Cut parts, known by the rows of their row groups, into pieces of about ``rows`` rows; none is empty."""
    pieces: list[Piece] = []
    for part, sizes in parts:
        start, n = 0, 0
        for k, size in enumerate(sizes):
            n += size
            if n and (n >= rows or k == len(sizes) - 1):
                pieces.append(Piece(part, range(start, k + 1), n, len(pieces)))
                start, n = k + 1, 0
    return pieces


def list_parts(source: str | os.PathLike[str]) -> list[Part]:
    """The files that ``source`` stands for, by name.

    ``source`` is a file, a folder (with folders in it, also of the form ``key=value``), a pattern with ``*`` and
    ``**``, or the same with an address in front, such as ``s3://bucket/sales/*.parquet``. In a folder, names that start
    with a dot or an underscore are passed over.
    """
    text = os.fspath(source)
    base, pattern = _split_pattern(text)
    try:
        if "://" in base:
            filesystem, root = fs.FileSystem.from_uri(base)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.abspath(base)
        found = filesystem.get_file_info(root)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise TableError(f"cannot read {text}: {_first_line(error)}") from error
    if found.type == fs.FileType.NotFound:
        raise TableError(f"there is no file or folder {text}")
    if found.type == fs.FileType.File:
        return [Part(found.base_name, found.path, filesystem)]
    prefix = root.rstrip("/") + "/"
    matches = None if pattern is None else re.compile(_translate(pattern))
    parts = []
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        name = info.path.removeprefix(prefix)
        hidden = any(piece.startswith((".", "_")) for piece in PurePosixPath(name).parts)
        known = name.lower().endswith(PARQUET_ENDINGS + ARROW_ENDINGS)
        if info.type == fs.FileType.File and (known and not hidden if matches is None else matches.fullmatch(name)):
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
    names = {name for part in parts for name in part.keys}
    numbers = {
        name
        for name in names
        if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", str(part.keys[name])) for part in parts if name in part.keys)
    }
    return [
        Part(
            part.name,
            part.path,
            part.filesystem,
            {name: int(value) if name in numbers else value for name, value in part.keys.items()},
        )
        for part in parts
    ]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
