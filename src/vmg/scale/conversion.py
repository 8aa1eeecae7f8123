"""Delimited text as Parquet, converted once and a block at a time, since text cannot be read from the middle."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from vmg.files import replacing
from vmg.tables.files import text_rules
from vmg.tables.text_files import TextTable, read_text

__all__ = ["DECIMAL_COMMA", "as_parquet", "convert_csv"]

TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
DECIMAL_COMMA = b"vmg.decimal_comma"  # what the cells of the text said of commas, in the metadata of the schema


def convert_csv(source: str | os.PathLike[str], target: str | os.PathLike[str], **reading: Any) -> TextTable:
    """Write a delimited text as one Parquet file, in memory that does not grow with its rows.

    Cells have the types and values that :func:`vmg.tables.read_table` gives them, whose arguments ``reading`` are: a
    first pass writes texts and finds out the types of whole columns, a second one converts.
    """
    with tempfile.TemporaryDirectory(prefix="vmg-") as folder, replacing(target) as temporary:
        texts = os.path.join(folder, "texts.parquet")
        with ExitStack() as stack:

            def begin(names: list[str]) -> Callable[[list[pa.Array]], None]:
                stack.close()  # an attempt in another encoding was begun before
                schema = pa.schema([(name, pa.string()) for name in names])
                writer = stack.enter_context(parquet.ParquetWriter(texts, schema))
                return lambda cells: writer.write_batch(pa.RecordBatch.from_arrays(cells, schema=schema))

            table = read_text(source, os.fspath(source), text_rules(**reading), begin, math.inf)
        _write_typed(texts, temporary, table)
    return table


def _write_typed(texts: str, target: Path, table: TextTable) -> None:
    kinds = [pa.string() if pa.types.is_null(kind) else kind for kind in table.types]
    schema = pa.schema(
        [(column.name, kind) for column, kind in zip(table.columns, kinds, strict=True)],
        metadata={} if table.decimal_comma is None else {DECIMAL_COMMA: str(table.decimal_comma).encode()},
    )
    with parquet.ParquetFile(texts) as source, parquet.ParquetWriter(target, schema) as writer:
        for batch in source.iter_batches(use_threads=False):
            cells = [
                column.convert(batch.column(k), kind)
                for k, (column, kind) in enumerate(zip(table.columns, kinds, strict=True))
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(cells, schema=schema))


@contextmanager
def as_parquet(source: str, **reading: Any) -> Iterator[str]:
    """A dataset as it is, or a delimited text as a Parquet file that is gone after the block."""
    if not source.lower().endswith(TEXT_ENDINGS) or "://" in source:
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="vmg-") as folder:
        path = os.path.join(folder, Path(source).name.split(".")[0] + ".parquet")
        convert_csv(source, path, **reading)
        yield path
