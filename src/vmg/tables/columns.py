"""The kinds of columns, in the order in which they are tried, and back from a model file.

The fields of a fitted column are JSON-able; they are what a model file holds of it.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from vmg.tables.category_columns import CategoryColumn
from vmg.tables.column import Column, Features, Mask, Reading
from vmg.tables.date_columns import DateColumn, TimeColumn
from vmg.tables.dates import check_date_format
from vmg.tables.number_columns import BooleanColumn, NumberColumn

__all__ = [
    "KINDS",
    "BooleanColumn",
    "CategoryColumn",
    "Column",
    "DateColumn",
    "Features",
    "Mask",
    "NumberColumn",
    "Reading",
    "TimeColumn",
    "column_from_document",
]

KINDS: dict[str, type[Column]] = {
    cls.kind: cls for cls in (BooleanColumn, TimeColumn, DateColumn, NumberColumn, CategoryColumn)
}
"""Kinds in the order in which they are tried."""


def column_from_document(document: dict[str, Any]) -> Column:
    """The column that :meth:`Column.to_document` described; a ValueError where it described none."""
    fields = dict(document)
    column = KINDS[fields.pop("kind")](**fields)
    for field, kind in get_type_hints(type(column)).items():
        if field in fields and not _is(fields[field], kind):
            raise ValueError(f"{field} of a column must be {kind}; got {fields[field]!r:.40}")
    if isinstance(column, DateColumn):
        check_date_format(column.date_format)
    if isinstance(column, CategoryColumn) and len(column.effects):
        widths = {len(row) for row in column.effects}
        if len(column.effects) != len(column.known) or len(widths) != 1 or 0 in widths:
            raise ValueError("effects of a column must be a row of the same length for each known level")
    return column


def _is(value: Any, kind: Any) -> bool:
    """The same as isinstance, also for lists; True and False are no numbers, and numbers are finite."""
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is(item, get_args(kind)[0]) for item in value)
    if isinstance(value, bool) and kind is not bool:
        return False
    wanted = (int, float) if kind is float else kind
    return isinstance(value, wanted) and not (isinstance(value, float) and not np.isfinite(value))
