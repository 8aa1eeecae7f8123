"""Runs the tasks of an experiment, here or in several processes, and keeps what they earn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vmg.scale import run_parallel
from vmg.training import Callback
from vmg_paper.experiments import results_file
from vmg_paper.experiments.results_file import Record

__all__ = ["Experiment", "Watch", "run", "unwatched"]

Watch = Callable[[str], AbstractContextManager[Callback]]
"""A label to a block in which training reports to the callback that it gives."""

Task = TypeVar("Task")
AnyTask = TypeVar("AnyTask", contravariant=True)


class Experiment(Protocol[AnyTask]):
    """A table of the paper."""

    def execute(self, task: AnyTask, watch: Watch) -> list[Record]:
        """Do one task: the records that it earns."""


def unwatched(label: str) -> AbstractContextManager[Callback]:
    """Training that nobody hears of."""
    return nullcontext(_ignore)


def _ignore(progress: Any) -> None:
    return None


def run(
    experiment: Experiment[Task],
    tasks: Sequence[Task],
    *,
    out: Path,
    jobs: int = 1,
    threads: int = 1,
    watch: Watch = unwatched,
) -> Iterator[tuple[Task, list[Record]]]:
    """Every task with what it earned, as soon as that is in the results file.

    Several ``jobs`` run in processes of their own, which nobody watches.
    """
    earned = _one_by_one(experiment, tasks, watch) if jobs == 1 else _in_parallel(experiment, tasks, jobs, threads)
    for task, records in earned:
        results_file.append(out, records)
        yield task, records


def _one_by_one(
    experiment: Experiment[Task], tasks: Sequence[Task], watch: Watch
) -> Iterator[tuple[Task, list[Record]]]:
    for number, task in enumerate(tasks, 1):
        count = f"({number}/{len(tasks)})"
        yield task, experiment.execute(task, lambda label, count=count: watch(f"{label} {count}"))  # type: ignore[misc]


def _in_parallel(
    experiment: Experiment[Task], tasks: Sequence[Task], jobs: int, threads: int
) -> Iterator[tuple[Task, list[Record]]]:
    execute = partial(experiment.execute, watch=unwatched)
    for position, records in run_parallel(execute, tasks, n_jobs=jobs, threads=threads):
        yield tasks[position], records
