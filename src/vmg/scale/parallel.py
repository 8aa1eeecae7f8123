"""Independent tasks in parallel, by joblib: processes of this machine, or any backend that its user has registered.

Each task runs with a fixed number of threads, so that its numbers are the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from vmg.fit.design import use_threads

__all__ = ["run_parallel"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_parallel(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, n_jobs: int = 1, threads: int = 1
) -> Iterator[tuple[int, Result]]:
    """The result of each task with its position among ``tasks``, as soon as it is there.

    Args:
        function: of one task; importable by name, so that another process finds it.
        n_jobs: tasks at once; -1 takes all cores. An active ``joblib.parallel_config`` names the backend.
        threads: of PyTorch in each task.
    """
    if n_jobs == 1 or len(tasks) <= 1:
        for position, task in enumerate(tasks):
            yield _run(function, position, task, threads)
        return
    from joblib import Parallel, delayed, effective_n_jobs
    from joblib.parallel import get_active_backend

    calls = (delayed(_run)(function, position, task, threads) for position, task in enumerate(tasks))
    if get_active_backend()[0].supports_return_generator:
        yield from Parallel(n_jobs=n_jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")(calls)
        return
    while some := list(islice(calls, 4 * effective_n_jobs(n_jobs))):  # such as Ray's, which gives whole lists
        yield from Parallel(n_jobs=n_jobs)(some)


def _run(function: Callable[[Task], Result], position: int, task: Task, threads: int) -> tuple[int, Result]:
    """A task with its own number of threads; the caller's is put back."""
    with use_threads(threads):
        return position, function(task)
