"""Results as JSON lines, earned by running tasks that a file does not answer yet, and pages with tables of them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vmg.files import append_lines, read_lines
from vmg.scale import run_parallel
from vmg.training import Callback

__all__ = [
    "Record",
    "Watch",
    "fill",
    "markdown",
    "mean_and_error",
    "measure_missing",
    "read_experiment",
    "run",
    "unwatched",
]

Record = dict[str, Any]

Watch = Callable[[str], AbstractContextManager[Callback]]
"""A label to a block in which training reports to the callback that it gives."""

Task = TypeVar("Task")


def unwatched(label: str) -> AbstractContextManager[Callback]:
    """Training without reports."""
    return nullcontext(lambda progress: None)


def read_experiment(path: Path, experiment: str) -> list[Record]:
    """The lines of one experiment; a file may hold several."""
    return [line for line in read_lines(path) if line["experiment"] == experiment]


def run(
    execute: Callable[..., list[Record]],
    tasks: Sequence[Task],
    *,
    out: Path,
    jobs: int = 1,
    threads: int = 1,
    watch: Watch = unwatched,
) -> Iterator[tuple[Task, list[Record]]]:
    """Every task with its records of ``execute(task, watch=...)``, as soon as these are in the results file.

    Several ``jobs`` run in processes of their own, without ``watch``.
    """
    earned: Iterator[tuple[int, list[Record]]]
    if jobs == 1:

        def numbered(k: int) -> Watch:
            return lambda label: watch(f"{label} ({k + 1}/{len(tasks)})")

        earned = ((k, execute(task, watch=numbered(k))) for k, task in enumerate(tasks))
    else:
        earned = run_parallel(partial(execute, watch=unwatched), tasks, n_jobs=jobs, threads=threads)
    for position, records in earned:
        append_lines(out, records)
        yield tasks[position], records


def measure_missing(
    tasks: Iterable[tuple[Record, Callable[[], Record]]], out: Path, minutes: float = math.inf
) -> list[Record]:
    """Measure each task that the file has no record of, until time is up; gives all records.

    A task is the fields that name its record, and a function that measures the others. A record is printed and kept as
    soon as it is measured.
    """
    records, end = read_lines(out), time.monotonic() + 60 * minutes
    for task, measure in tasks:
        if any(task.items() <= record.items() for record in records):
            continue
        if time.monotonic() > end:
            print("time is up; start again to go on", flush=True)
            break
        records.append({**task, **measure()})
        append_lines(out, records[-1:])
        print(json.dumps(records[-1]), flush=True)
    return records


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 for a single value."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    header = list(header)
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def fill(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the page's markers ``<!-- name -->`` and ``<!-- end of name -->``."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found_start, rest = page.read_text(encoding="utf-8").partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"{page} must hold the markers {start} and {end}; got neither or one")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
