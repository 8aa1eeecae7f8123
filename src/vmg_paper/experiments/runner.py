"""Runs the tasks of an experiment, here or in several processes, and keeps what they earn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vmg.scale import spread
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
    ray_address: str | None = None,
    watch: Watch = unwatched,
) -> Iterator[tuple[Task, list[Record]]]:
    """Every task with what it earned, as soon as that is in the results file.

    Several ``jobs``, and those of a Ray cluster, run in processes of their own, which nobody watches.
    """
    if jobs == 1 and ray_address is None:
        earned = _one_by_one(experiment, tasks, watch)
    else:
        earned = _spread_out(experiment, tasks, jobs, threads, ray_address)
    for task, records in earned:
        results_file.append(out, records)
        yield task, records


def _one_by_one(
    experiment: Experiment[Task], tasks: Sequence[Task], watch: Watch
) -> Iterator[tuple[Task, list[Record]]]:
    for number, task in enumerate(tasks, 1):
        count = f"({number}/{len(tasks)})"
        yield task, experiment.execute(task, lambda label, count=count: watch(f"{label} {count}"))  # type: ignore[misc]


def _spread_out(
    experiment: Experiment[Task], tasks: Sequence[Task], jobs: int, threads: int, ray_address: str | None
) -> Iterator[tuple[Task, list[Record]]]:
    execute = partial(experiment.execute, watch=unwatched)
    for position, records in spread(execute, tasks, n_jobs=jobs, ray_address=ray_address, threads=threads):
        yield tasks[position], records
