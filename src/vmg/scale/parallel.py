"""Tasks that do not need each other, spread over the cores of one machine or the machines of a Ray cluster.

No scheduler of our own: joblib spreads over processes or whatever backend its user has registered, Ray over a
cluster. Each task runs with one thread, so that its numbers are the same wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

__all__ = ["spread", "start_ray"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    n_jobs: int = 1,
    ray_address: str | None = None,
    threads: int = 1,
) -> Iterator[tuple[int, Result]]:
    """The result of each task with its position among ``tasks``, as soon as it is there.

    Args:
        function: of one task; importable by name, so that another process finds it.
        n_jobs: tasks that run at once by joblib; -1 takes all cores. An active ``joblib.parallel_config`` says where.
        ray_address: of a Ray cluster to use instead: "local" starts one on this machine, "auto" joins the one that
            runs here.
        threads: of PyTorch in each task.
    """
    if ray_address is not None:
        yield from _by_ray(function, tasks, ray_address, threads)
        return
    if n_jobs == 1 or len(tasks) <= 1:
        for position, task in enumerate(tasks):
            yield _run(function, position, task, threads)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")
    yield from parallel(delayed(_run)(function, position, task, threads) for position, task in enumerate(tasks))


def _run(function: Callable[[Task], Result], position: int, task: Task, threads: int) -> tuple[int, Result]:
    """A task with its own number of threads; the caller's is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return position, function(task)
    finally:
        torch.set_num_threads(before)


def start_ray(address: str) -> Any:
    """The module ``ray``, connected: to a new cluster on this machine ("local") or to the one at ``address``."""
    import ray  # of the extra `ray`

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    return ray


def _by_ray(
    function: Callable[[Task], Result], tasks: Sequence[Task], address: str, threads: int
) -> Iterator[tuple[int, Result]]:
    ray = start_ray(address)
    remote = ray.remote(num_cpus=threads)(_run)
    limit = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
    waiting = list(enumerate(tasks))[::-1]
    running: list[Any] = []
    while waiting or running:
        while waiting and len(running) < limit:
            position, task = waiting.pop()
            running.append(remote.remote(function, position, task, threads))
        done, running = ray.wait(running, num_returns=1)
        yield from ray.get(done)
