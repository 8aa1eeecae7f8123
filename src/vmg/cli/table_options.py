"""Options that say how a table is read, shared by ``fit`` and ``inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vmg.tables.choices import TableChoices

__all__ = [
    "READING",
    "CategoricalOption",
    "DateFormatOption",
    "DecimalOption",
    "IgnoreOption",
    "TypesOption",
    "make_choices",
    "split_names",
]

READING = "How the table is read"  # heading of the help

TypesOption = Annotated[
    Path | None,
    typer.Option(
        "--types",
        metavar="FILE.toml",
        help='Kinds of columns: lines such as zip = "category" or note = "ignore" under [columns].',
        rich_help_panel=READING,
    ),
]
CategoricalOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN,...", help="Columns whose values are names, not amounts.", rich_help_panel=READING),
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN,...", help="Columns to leave out.", rich_help_panel=READING)
]
DateFormatOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[COLUMN=]FORMAT",
        help="How dates are written, such as %d/%m/%Y, or sold=%d/%m/%Y for one column.",
        rich_help_panel=READING,
    ),
]
DecimalOption = Annotated[
    str | None,
    typer.Option(
        metavar="MARK",
        help="The decimal mark, . or , in all columns.",
        show_default="found out",
        rich_help_panel=READING,
    ),
]


def split_names(given: list[str] | None) -> list[str]:
    """Names of options that come several times, or once with commas between."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]


def make_choices(
    types: Path | None,
    categorical: list[str] | None,
    ignore: list[str] | None,
    date_format: list[str] | None,
    decimal: str | None,
) -> TableChoices:
    """What the options say about the table, the later ones over the file."""
    from vmg.tables.choices import TableChoices, read_choices

    formats = {}
    for text in date_format or []:
        name, sign, form = text.partition("=")
        formats[name if sign else ""] = form if sign else text
    choices = TableChoices() if types is None else read_choices(types)
    return choices.changed(
        categorical=split_names(categorical), ignore=split_names(ignore), date_formats=formats, decimal=decimal
    )
