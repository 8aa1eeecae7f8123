"""Choices of a user about a table: kinds of columns, dates, decimals, columns to leave out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vmg.tables.cells import TableError, listing
from vmg.tables.dates import check_date_format

__all__ = ["IGNORED", "TYPES", "TableChoices", "read_choices"]

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
        types = {**self.types, **dict.fromkeys(categorical, "category"), **dict.fromkeys(ignore, IGNORED)}
        formats = dict(date_formats or {})
        types = dict.fromkeys(filter(None, formats), "date") | types
        return TableChoices(
            types,
            {**self.date_formats, **formats},
            self.decimal_comma if decimal is None else _comma(decimal),
            self.na_values if na_values is None else tuple(na_values),
            self.header if header is None else header,
        )

    def to_document(self) -> dict[str, Any]:
        """The choices for a model file."""
        return asdict(self)


def read_choices(path: str | os.PathLike[str]) -> TableChoices:
    """The choices in a TOML file.

    ``decimal = ","``, ``na = ["-", "none"]`` and ``header = false`` at the top, and a section ``[columns]`` with lines
    such as ``zip = "category"`` or ``sold = {type = "date", format = "%d/%m/%Y"}``.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    name = os.fspath(path)
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"cannot read {name}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{name} must be a TOML file; {error}") from error
    unknown = [key for key in document if key not in ("decimal", "na", "header", "columns")]
    if unknown or not isinstance(document.get("columns", {}), dict):
        raise TableError(
            f"{name} must have 'decimal', 'na', 'header' and a section [columns] alone; got "
            f"{listing(unknown or ['columns'])}"
        )
    words, header = document.get("na"), document.get("header", True)
    are_texts = isinstance(words, list | None) and all(isinstance(word, str) for word in words or [])
    if not isinstance(header, bool) or not are_texts:
        raise TableError(f"in {name} 'na' must be a list of texts, and 'header' true or false")
    types, formats = {}, {}
    for column, said in document.get("columns", {}).items():
        parts = {"type": said} if isinstance(said, str) else said
        if (
            not isinstance(parts, dict)
            or set(parts) - {"type", "format"}
            or not all(isinstance(part, str) for part in parts.values())
        ):
            raise TableError(f"the column '{column}' in {name} must have a type and perhaps a format; got {said!r:.60}")
        types[column] = parts.get("type", "date" if "format" in parts else "category")
        if "format" in parts:
            formats[column] = parts["format"]
    return TableChoices(types, formats).changed(decimal=document.get("decimal"), na_values=words, header=header)


def _comma(decimal: Any) -> bool:
    if decimal not in DECIMALS:
        raise TableError(f"decimal must be a point or a comma; got {decimal!r:.20}")
    return DECIMALS[decimal]
