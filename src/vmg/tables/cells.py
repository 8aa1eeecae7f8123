"""How the cells of a text file are read: which columns stay as they are written, and what its commas mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from vmg.tables.decimals import count_comma_votes
from vmg.tables.wording import listing

__all__ = ["CellOptions", "CellReading", "decide_cells"]

BLANK = frozenset(["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "-", "--", "."])  # missing cells
CODE = re.compile(r"0\d+")  # 007 is no number


class CellOptions(NamedTuple):
    """What a caller asks for: columns to leave as they are written, and what a comma means (None: found out)."""

    texts: frozenset[str] = frozenset()
    decimal_comma: bool | None = None


class CellReading(NamedTuple):
    """What was decided; None where no cell has a comma. ``contradiction`` says which cells speak against it."""

    texts: list[str]
    decimal_comma: bool | None
    contradiction: str


def decide_cells(
    header: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str, asked: CellOptions
) -> CellReading:
    """Look at the first megabyte of a file before pandas takes its numbers for what they may not be.

    With decimal commas 1.234 is a thousand, and a column in which some whole numbers begin with a zero holds codes.
    """
    columns: dict[str, list[str]] = {name: [] for name in header}
    for row in rows:
        for name, cell in zip(header, row, strict=False):
            if cell.strip() not in BLANK:
                columns[name].append(cell.strip())
    votes = count_comma_votes(columns)
    found = votes.decide(delimiter)
    comma = found if asked.decimal_comma is None else asked.decimal_comma
    texts = []
    for name, cells in columns.items():
        code = any(CODE.fullmatch(cell) for cell in cells) and all(map(str.isdigit, cells))
        dotted = bool(comma) and any("." in cell for cell in cells)
        if name.strip() in asked.texts or code or dotted:
            texts.append(name)
    return CellReading(texts, comma, _contradiction(votes.comma if comma is False else votes.point, comma, asked))


def _contradiction(against: list[str], comma: bool | None, asked: CellOptions) -> str:
    """What is worth saying where cells are numbers only in the other convention."""
    if comma is None or not against:
        return ""
    mark, other = ("commas", "points") if comma else ("points", "commas")
    why = "as asked or as at the fit" if asked.decimal_comma is not None else "as most columns have"
    return (
        f"Numbers are read with decimal {mark}, {why}, but {listing(against)} can only have decimal {other}; "
        f"--decimal {'.' if comma else ','} reads them so."
    )
