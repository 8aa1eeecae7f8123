"""What a user says about a table: kinds of columns, dates, decimals, columns to leave out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vmg.tables.dates import check_date_format
from vmg.tables.wording import TableError, listing

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
    """

    types: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    decimal_comma: bool | None = None

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
    def texts(self) -> list[str]:
        """Columns whose cells must be read as they are written: 01 is not 1 in them."""
        return [name for name, kind in self.types.items() if kind in ("category", "date", "time")] + [
            name for name in self.date_formats if name
        ]

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
    ) -> TableChoices:
        """The choices with others on top."""
        types = {**self.types, **dict.fromkeys(categorical, "category"), **dict.fromkeys(ignore, IGNORED)}
        for name in date_formats or {}:
            if name:
                types.setdefault(name, "date")
        comma = self.decimal_comma if decimal is None else _comma(decimal)
        return TableChoices(types, {**self.date_formats, **(date_formats or {})}, comma)

    def to_document(self) -> dict[str, Any]:
        """The choices for a model file."""
        return {
            "types": dict(self.types),
            "date_formats": dict(self.date_formats),
            "decimal_comma": self.decimal_comma,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableChoices:
        """The choices that :meth:`to_document` described."""
        types, formats, comma = (document[key] for key in ("types", "date_formats", "decimal_comma"))
        texts = [*types, *types.values(), *formats, *formats.values()]
        if not all(isinstance(text, str) for text in texts) or not (comma is None or isinstance(comma, bool)):
            raise ValueError("choices must be texts, and decimal_comma true, false or null")
        return cls(types, formats, comma)


def read_choices(path: str | os.PathLike[str]) -> TableChoices:
    """The choices in a TOML file.

    ``decimal = ","`` at the top, and a section ``[columns]`` with lines such as ``zip = "category"`` or
    ``sold = {type = "date", format = "%d/%m/%Y"}``.
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
    unknown = [key for key in document if key not in ("decimal", "columns")]
    if unknown or not isinstance(document.get("columns", {}), dict):
        raise TableError(
            f"{name} must have 'decimal' and a section [columns] alone; got {listing(unknown or ['columns'])}"
        )
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
    decimal = document.get("decimal")
    return TableChoices(types, formats, None if decimal is None else _comma(decimal))


def _comma(decimal: Any) -> bool:
    if decimal not in DECIMALS:
        raise TableError(f"decimal must be a point or a comma; got {decimal!r:.20}")
    return DECIMALS[decimal]
