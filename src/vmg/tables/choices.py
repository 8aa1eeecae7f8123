"""Choices of a user about a table: kinds of columns, dates, decimals, columns to leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vmg.tables.cells import TableError
from vmg.tables.dates import check_date_format

__all__ = ["IGNORED", "TYPES", "TableChoices"]

IGNORED = "ignore"
TYPES = ("number", "category", "date", "time", "boolean", IGNORED)
DECIMALS = {".": False, ",": True, "point": False, "comma": True}


@dataclass(frozen=True)
class TableChoices:
    """The choices, all of them optional; they are stored with the model.

    Parameters
    ----------
    types : mapping of str to str
        Kinds of columns: number, category, date, time, boolean, or ignore.
    date_formats : mapping of str to str
        Formats of dates by column, as in ``{"sold": "%d/%m/%Y"}``; the column "" stands for all others.
    decimal_comma : bool or None
        Whether a comma is the decimal point; None: found out.
    na_values : tuple of str or None
        Words of a file that mean a missing cell, as an empty one does; None: NA, ?, - and the like.
    header : bool
        Whether the first line of a file names the columns.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    decimal_comma: bool | None = None
    na_values: tuple[str, ...] | None = None
    header: bool = True

    def __post_init__(self) -> None:
        for name, kind in self.types.items():
            if kind not in TYPES:
                raise TableError(f"the type of '{name}' must be one of {', '.join(TYPES)}; got '{kind}'")
        for date_format in self.date_formats.values():
            check_date_format(date_format)

    @property
    def ignored(self) -> list[str]:
        """Columns to leave out."""
        return [name for name, kind in self.types.items() if kind == IGNORED]

    @property
    def named(self) -> list[str]:
        """Columns that a table must have for the choices to mean something."""
        return list(dict.fromkeys([*self.types, *(name for name in self.date_formats if name)]))

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of :func:`~vmg.tables.read_table`: cells of some columns are read as they are written."""
        texts = [name for name, kind in self.types.items() if kind in ("category", "date", "time")]
        texts += [name for name in self.date_formats if name]
        rest = {"decimal_comma": self.decimal_comma, "na_values": self.na_values, "header": self.header}
        return {"texts": texts, **rest}

    def date_format(self, name: str) -> str | None:
        """The format of a column's dates."""
        return self.date_formats.get(name) or (self.date_formats.get("") if self.types.get(name) == "date" else None)

    def changed(
        self,
        *,
        categorical: Iterable[str] = (),
        ignore: Iterable[str] = (),
        date_formats: Mapping[str, str] | None = None,
        decimal: str | None = None,
        na_values: Iterable[str] | None = None,
        header: bool | None = None,
    ) -> TableChoices:
        """The choices with others on top."""
        if decimal not in (None, *DECIMALS):
            raise TableError(f"decimal must be a point or a comma; got {decimal!r:.20}")
        types = {**self.types, **dict.fromkeys(categorical, "category"), **dict.fromkeys(ignore, IGNORED)}
        formats = dict(date_formats or {})
        types = dict.fromkeys(filter(None, formats), "date") | types
        return TableChoices(
            types,
            {**self.date_formats, **formats},
            self.decimal_comma if decimal is None else DECIMALS[decimal],
            self.na_values if na_values is None else tuple(na_values),
            self.header if header is None else header,
        )

    def to_document(self) -> dict[str, Any]:
        """The choices for a model file."""
        return asdict(self)
