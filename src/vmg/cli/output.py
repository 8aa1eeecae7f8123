"""Output of the commands: sentences, tables and progress bars for people, one JSON document for machines."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

if TYPE_CHECKING:
    from vmg.review.comparison import Comparison
    from vmg.training import Progress

__all__ = [
    *("TrainingBar", "bullet", "print_comparison", "print_error", "print_json", "print_table", "say", "say_aside"),
    *("visible", "waiting"),
]

# what moves a cursor, changes colours, turns the direction of writing or is not seen at all; tab and newline do no
# harm, and some scripts need the joiners U+200C and U+200D
CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """A text of a table or a file with its control characters written out, so that a terminal obeys none."""
    return CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f"), text)


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


def print_table(title: str, header: Sequence[str], rows: Iterable[Iterable[str]], *, meanings: bool = False) -> None:
    """A table: first column to the left, numbers to the right; with ``meanings``, the last column explains them."""
    table = Table(title=_cell(title), title_justify="left", show_header=any(header))
    for position, name in enumerate(header):
        explains = meanings and position == len(header) - 1
        side: Any = "right" if position and not explains else "left"
        table.add_column(_cell(name), justify=side, style="dim" if explains else None, no_wrap=not position)
    for row in rows:
        table.add_row(*map(_cell, row))
    Console().print(table)


def print_comparison(title: str, comparison: Comparison) -> None:
    """Scores of several methods that 80 columns can show, best first, and one sentence; pages and JSON have all."""
    from vmg.review.comparison import SCORES
    from vmg.tables.cells import short

    keys = [key for key in comparison.rows[0] if key not in ("method", "mae", "width", "seconds", "rank")]
    names = [SCORES[key][0].replace(" ", "\n").replace("-", "-\n") for key in keys]
    rows = [[row["method"], *(short(row[key]) for key in keys), f"{row['seconds']:.2f}"] for row in comparison.rows]
    print_table(title, ["", *names, "CPU s"], rows)
    say(comparison.sentence)


# -- progress, on standard error ---------------------------------------------------------------------------------------


def waiting(label: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """A sign of life for work whose length is not known; silent off a terminal."""
    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status(label)


class TrainingBar(Bars):
    """A training callback that shows the objective, its two terms and the time left; silent off a terminal.

    The objective of table models is the log posterior of hidden weights, that of the paper's model the bound.
    """

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        super().__init__(
            SpinnerColumn(),  # it moves from the first moment on, before the length of the work is known
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[terms]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._work = self.add_task(label, total=None, terms="")

    def stop(self) -> None:
        """Remove the bar; older versions of rich print an empty line where there is none."""
        if not self.disable:
            super().stop()

    def count(self, done: int, total: int) -> None:
        """Show how much of some other work is done."""
        self.update(self._work, total=total, completed=done)

    def __call__(self, progress: Progress) -> None:
        fit, complexity = progress.expected_log_likelihood, progress.kl
        terms = f"objective {progress.elbo:.3f} = fit {fit:.3f} - complexity {complexity:.3f}"
        self.update(self._work, total=progress.n_steps, completed=progress.step, terms=terms)
