"""Tables of other libraries as pandas data frames."""

from __future__ import annotations

from typing import Any

import pandas as pd

from vmg.tables.errors import TableError

__all__ = ["as_frame"]


def as_frame(table: Any) -> pd.DataFrame:
    """A pandas data frame as it is; a Polars or Arrow table, or any with Arrow's stream interface, as one."""
    if isinstance(table, pd.DataFrame):
        return table
    if hasattr(table, "collect") and hasattr(table, "lazy"):  # a lazy frame of Polars
        table = table.collect()
    if hasattr(table, "__arrow_c_stream__"):
        import pyarrow as pa

        arrow = table if isinstance(table, pa.Table) else pa.table(table)
        return arrow.to_pandas(date_as_object=False)
    if isinstance(table, dict):
        return pd.DataFrame(table)
    raise TableError(f"a table must be a data frame of pandas or Polars, or an Arrow table; got {type(table).__name__}")
