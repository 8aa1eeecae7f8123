"""Results as JSON lines, earned by running tasks, and tables of their summaries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vmg.files import append_lines as append
from vmg.files import read_lines as read
from vmg.scale import run_parallel
from vmg.training import Callback

__all__ = [
    "Watch",
    "append",
    "markdown",
    "mean_and_error",
    "read",
    "run",
    "unwatched",
    "write_tables",
]

Record = dict[str, Any]

Watch = Callable[[str], AbstractContextManager[Callback]]
"""A label to a block in which training reports to the callback that it gives."""

Task = TypeVar("Task")


def unwatched(label: str) -> AbstractContextManager[Callback]:
    """Training that nobody hears of."""
    return nullcontext(_ignore)


def _ignore(progress: Any) -> None:
    return None


def run(
    execute: Callable[[Task, Watch], list[Record]],
    tasks: Sequence[Task],
    *,
    out: Path,
    jobs: int = 1,
    threads: int = 1,
    watch: Watch = unwatched,
) -> Iterator[tuple[Task, list[Record]]]:
    """Every task with its records, as soon as these are in the results file.

    Several ``jobs`` run in processes of their own, which nobody watches.
    """
    earned: Iterator[tuple[int, list[Record]]]
    if jobs == 1:
        earned = ((k, execute(task, partial(_numbered, watch, k, len(tasks)))) for k, task in enumerate(tasks))
    else:
        alone = partial(_unwatched_task, execute)
        earned = run_parallel(alone, tasks, n_jobs=jobs, threads=threads)
    for position, records in earned:
        append(out, records)
        yield tasks[position], records


def _numbered(watch: Watch, position: int, total: int, label: str) -> AbstractContextManager[Callback]:
    return watch(f"{label} ({position + 1}/{total})")


def _unwatched_task(execute: Callable[[Task, Watch], list[Record]], task: Task) -> list[Record]:
    return execute(task, unwatched)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 for a single value."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))


START, END = "<!-- tables, written by vmg reproduce -->", "<!-- end of tables -->"


def write_tables(page: Path, tables: str) -> None:
    """Put tables into a page, between its two markers."""
    text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{page} must hold the lines {START} and {END}")
    page.write_text(f"{before}{START}\n\n{tables}\n\n{END}{after}", encoding="utf-8")
