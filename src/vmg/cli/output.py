"""What the commands print: sentences and tables for people, one JSON document for machines, one-line errors."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from vmg.tables.comparison import Comparison

__all__ = [
    "bullet",
    "print_comparison",
    "print_error",
    "print_json",
    "print_scores",
    "print_table",
    "say",
    "say_aside",
    "visible",
]

# what moves a cursor, changes colours or turns the direction of writing; tab and newline do no harm
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """A text of a table or a file with its control characters written out, so that a terminal obeys none."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str) -> None:
    """A line on standard output."""
    Console().print(visible(text), markup=False, highlight=False, soft_wrap=True)


def bullet(note: str) -> None:
    """One sentence of a list on standard output."""
    say(f"  - {note}")


def say_aside(text: str) -> None:
    """A line on standard error, where it does not mix with data."""
    Console(stderr=True).print(visible(text), markup=False, highlight=False, soft_wrap=True)


def print_error(text: str) -> None:
    """One line on standard error, whatever the text holds."""
    line = visible(" ".join(text.split()))
    Console(stderr=True).print("[bold red]error:[/]", end=" ", soft_wrap=True)
    print(line, file=sys.stderr)


def print_json(document: Mapping[str, Any]) -> None:
    """The one document on standard output; numbers that JSON does not have become null."""
    print(visible(json.dumps(_jsonable(document), ensure_ascii=False, allow_nan=False)))  # still JSON, and the same


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _cell(text: str) -> str:
    """A text whose brackets are no markup either."""
    return escape(visible(text))


def print_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """A table: first column to the left, numbers to the right."""
    table = Table(title=_cell(title), title_justify="left")
    for position, name in enumerate(header):
        table.add_column(_cell(name), justify="right" if position else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def _short(value: float) -> str:
    """Four digits that matter, and no powers of ten for numbers that people write out."""
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def print_comparison(title: str, comparison: Comparison) -> None:
    """Scores of several methods, and one sentence about them."""
    names = {"log_likelihood": "log score", "coverage": "inside 90 % interval"}
    keys = list(dict.fromkeys(key for found in comparison.scores.values() for key in found))
    rows = [
        [name, *(_short(found[key]) if key in found else "" for key in keys)]
        for name, found in comparison.scores.items()
    ]
    print_table(title, ["", *(names.get(key, key) for key in keys)], rows)
    say(comparison.sentence)


def print_scores(
    title: str, scores: Mapping[str, float], meanings: Mapping[str, str], base_rate: Mapping[str, float] | None = None
) -> None:
    """Scores with what they mean, beside those of a base rate."""
    beside = base_rate or {}
    rows = []
    for name, value in scores.items():
        base = [_short(beside[name]) if name in beside else ""] if beside else []
        rows.append((name, _short(value), *base, meanings.get(name, "")))
    table = Table(title=_cell(title), title_justify="left", show_header=bool(beside))
    table.add_column(justify="left")
    for heading in ("vmg", "base rate") if beside else ("",):
        table.add_column(heading, justify="right")
    table.add_column(justify="left", style="dim")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
