"""Delimited text as Parquet, converted once and a block at a time, since text cannot be read from the middle."""

from __future__ import annotations

import csv
import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from vmg.files import replacing
from vmg.tables import TableError

__all__ = ["as_parquet", "convert_csv"]

TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
DELIMITERS = ",;\t|"
HEAD = 2**16
BLOCK = 2**22
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A", "?", "-", "--", "."]


def convert_csv(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write a delimited text with a header as one Parquet file, in memory that does not grow with its rows.

    Types are those of the first block. Where a later cell does not fit them, all cells become texts, which the
    encoder reads as it reads texts in memory.
    """
    try:
        with replacing(target) as temporary:
            try:
                _convert(source, temporary, None)
            except pa.ArrowInvalid:
                _convert(source, temporary, pa.string())
    except pa.ArrowInvalid as error:
        raise TableError(f"{os.fspath(source)} is not a regular table: {str(error).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{os.fspath(source)} must be in UTF-8 to be converted; {error.reason}") from error


def _convert(source: str | os.PathLike[str], target: Path, kind: pa.DataType | None) -> None:
    delimiter, names = _header(source)
    types: dict[str, Any] = {} if kind is None else dict.fromkeys(names, kind)
    with arrow_csv.open_csv(
        os.fspath(source),
        read_options=arrow_csv.ReadOptions(block_size=BLOCK, use_threads=False),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False),
        convert_options=arrow_csv.ConvertOptions(column_types=types, null_values=MISSING, strings_can_be_null=True),
    ) as reader:
        schema = pa.schema([field.with_type(_written(field.type)) for field in reader.schema])
        with parquet.ParquetWriter(target, schema) as writer:
            for batch in reader:
                writer.write_table(pa.Table.from_batches([batch]).cast(schema))


def _written(kind: pa.DataType) -> pa.DataType:
    """A column without a value in the first block may hold anything later, so it is one of texts."""
    return pa.string() if pa.types.is_null(kind) else kind


def _header(source: str | os.PathLike[str]) -> tuple[str, list[str]]:
    opener: Any = gzip.open if os.fspath(source).endswith(".gz") else open
    try:
        with opener(source, "rt", encoding="utf-8-sig", newline="") as file:
            line = file.readline(HEAD)
    except FileNotFoundError as error:
        raise TableError(f"there is no file {os.fspath(source)}") from error
    except (OSError, EOFError) as error:
        raise TableError(f"cannot read {os.fspath(source)}: {error}") from error
    if not line.strip():
        raise TableError(f"{os.fspath(source)} must start with names of columns; got an empty line")
    delimiter = max(DELIMITERS, key=line.count)
    return delimiter, next(csv.reader([line], delimiter=delimiter))


@contextmanager
def as_parquet(source: str) -> Iterator[str]:
    """A dataset as it is, or a delimited text as a Parquet file that is gone after the block."""
    if not source.lower().endswith(TEXT_ENDINGS) or "://" in source:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="vmg-") as folder:
        path = os.path.join(folder, Path(source).name.split(".")[0] + ".parquet")
        convert_csv(source, path)
        yield path
