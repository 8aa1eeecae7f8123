"""Tables whose cells have types: Parquet, Excel workbooks and databases; rarer packages are imported when asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pandas as pd
from pyarrow.parquet import ParquetFile

from vmg.tables.cells import TableError, listing

__all__ = ["FREE_BYTES", "MAX_CELLS", "MAX_UNPACKING", "read_database", "read_parquet", "read_workbook"]

MAX_UNPACKING = 200  # bytes that one packed byte may become, once they are more than FREE_BYTES; tables have 3 to 50
FREE_BYTES = 2**26
MAX_CELLS = 2**28  # of a Parquet file, which can hold any number of equal cells in a few bytes
FREE_CELLS, CELLS_A_BYTE = 2**23, 8  # cells of any file, and those that a byte of a larger one may stand for


@contextmanager
def _explained(name: str, kind: str) -> Iterator[None]:
    """Raise a TableError for whatever a damaged file or a missing package raises."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:  # a damaged file ends in errors of many types
        raise TableError(f"cannot read {name} as {kind}: {(str(error) or repr(error)).splitlines()[0]}") from error


def read_parquet(packed: bytes, name: str) -> pd.DataFrame:
    """A Parquet table, also of pandas."""
    data, limit = io.BytesIO(packed), min(MAX_CELLS, max(FREE_CELLS, CELLS_A_BYTE * len(packed)))
    with _explained(name, "Parquet"):
        shape = ParquetFile(data).metadata
        if shape.num_rows * max(shape.num_columns, 1) > limit:
            got = f"{shape.num_rows:,} rows of {shape.num_columns:,}"
            raise TableError(f"{name} must have at most {limit:,} cells in {len(packed):,} bytes; got {got}")
        frame = pd.read_parquet(data, coerce_int96_timestamp_unit="us")
    return frame.reset_index() if any(frame.index.names) else frame  # columns that pandas had made an index


def read_workbook(
    path: str | os.PathLike[str], sheet: str, name: str, texts: Collection[str], missing: Collection[str], header: bool
) -> pd.DataFrame:
    """A sheet of an Excel workbook, the first one for ""; columns of ``texts`` keep cells as they are written."""
    with _explained(name, "a workbook"):
        unpacked = sum(part.file_size for part in ZipFile(path).infolist())
        if unpacked > (most := max(FREE_BYTES, MAX_UNPACKING * os.path.getsize(path))):
            raise TableError(f"{name} must have at most {most:,} bytes unpacked; it has {unpacked:,}")
        reading: dict[str, Any] = {"keep_default_na": False, "na_values": list(missing)}
        reading |= {"dtype": dict.fromkeys(texts, str), "header": 0 if header else None}
        frame = pd.read_excel(path, sheet_name=sheet or 0, **reading)
    return frame if header else frame.set_axis([f"column {k + 1}" for k in range(frame.shape[1])], axis=1)


def read_database(path: str | os.PathLike[str], table: str, name: str, *, is_duck: bool) -> pd.DataFrame:
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
