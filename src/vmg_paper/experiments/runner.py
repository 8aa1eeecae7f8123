"""Runs the tasks of an experiment, here or in several processes, and appends their records to the results file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vmg.scale import run_parallel
from vmg.training import Callback
from vmg_paper.experiments import results_file
from vmg_paper.experiments.results_file import Record

__all__ = ["Watch", "run", "unwatched"]

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
        results_file.append(out, records)
        yield tasks[position], records


def _numbered(watch: Watch, position: int, total: int, label: str) -> AbstractContextManager[Callback]:
    return watch(f"{label} ({position + 1}/{total})")


def _unwatched_task(execute: Callable[[Task, Watch], list[Record]], task: Task) -> list[Record]:
    return execute(task, unwatched)
