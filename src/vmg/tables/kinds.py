"""The kinds of columns in the order in which they are tried, and which kind a column of training rows is of."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd

from vmg.tables.cells import Cells, CellTable, full_matches
from vmg.tables.columns import BooleanColumn, CategoryColumn, Column, NumberColumn, Reading
from vmg.tables.date_columns import DateColumn, TimeColumn
from vmg.tables.dates import check_date_format, find_date_format, looks_like_dates
from vmg.tables.numbers import mixed_units
from vmg.tables.wording import TableError, listing

__all__ = ["IDENTIFIER_NAME", "KINDS", "column_from_document", "day_comes_first", "find_kind", "has_leading_zeros"]

IDENTIFIER_NAME = re.compile(
    r"(.*[_\s.-])?(id|ids|index|idx|row|rownum|rownames?|uuid|guid|pk)|.*(?-i:[a-z0-9]I[Dd])|(user|customer|order|client|item)id",
    re.IGNORECASE,
)
"""Names of columns that hold identifiers; customerId and userid are among them."""

FEW_REPEATS = 0.5  # share of different values above which whole numbers with such a name are identifiers
LEADING_ZERO = r"0\d+"

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


def find_kind(cells: Cells, reading: Reading, kind: str | None = None) -> Column | str:
    """The fitted column, or why it is of no use; ``kind`` is what the user says it is."""
    if cells.holds_collections():
        return "its cells are lists or structures"
    if cells.n_given == 0:
        return "it has no values"
    if cells.n_distinct == 1 and cells.n_given == len(cells):
        return f"it is always '{cells.first}'"
    if kind is not None:
        return _fit_as(cells, reading, kind)
    if pd.api.types.is_integer_dtype(cells.column) and IDENTIFIER_NAME.fullmatch(cells.name):
        if cells.n_distinct == len(cells):
            return "its numbers are all different, like row numbers"
        if cells.n_distinct > FEW_REPEATS * len(cells):
            return "its name and its many different numbers are those of identifiers (--categorical or --types uses it)"
    if units := mixed_units(cells):
        return (
            f"its numbers are in several units, {listing(units)}; write them in one (--categorical takes them as words)"
        )
    kinds = {**KINDS}
    if has_leading_zeros(cells):
        kinds = {"category": KINDS["category"]} if not looks_like_dates(cells) else kinds
    for cls in kinds.values():
        fitted = cls.fit(cells, reading)
        if fitted is not None:
            return fitted
    if looks_like_dates(cells):
        example = cells.examples(1)
        return f"its texts look like dates in a format that is not known (--date-format tells it), such as {example}"
    return "its texts are all different, like identifiers"


def _fit_as(cells: Cells, reading: Reading, kind: str) -> Column:
    fitted = KINDS[kind].fit(cells, reading)
    if fitted is None:
        extra = f" with the format {reading.date_format}" if reading.date_format else ""
        raise TableError(
            f"the column '{cells.name}' cannot be read as {KINDS[kind].plural}{extra}; got {cells.examples(2)}"
        )
    return fitted


def has_leading_zeros(cells: Cells) -> bool:
    """Whether cells are texts of digits some of which begin with a zero, as codes do: 01 is not 1 there."""
    if cells.is_numeric or not len(cells.levels):
        return False
    return bool(full_matches(cells.arrow, r"\d+").all() and full_matches(cells.arrow, LEADING_ZERO).any())


def day_comes_first(table: CellTable, decimal_comma: bool) -> bool | None:
    """Whether dates of a table that could be either have the day first: as in those that cannot, or with commas."""
    decided = set()
    for cells in (table[name] for name in table.names):
        if not cells.is_time:
            ways = {find_date_format(cells, day_first=way) for way in (True, False)}
            if len(ways) == 1 and (form := ways.pop()) is not None and re.match("%[md][/.-]", form):
                decided.add(form.startswith("%d"))
    if len(decided) == 1:
        return decided.pop()
    return True if decimal_comma else None
