"""Shared parts of the speed benchmarks: taking turns, medians, tables, and the two networks that most compare."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import MLP
from vmg.objective import Objective, elbo
from vmg.training.loop import differentiate
from vmg.training.rows import Batch

INPUTS, CLASSES, BATCH, N_DATA = 784, 10, 100, 50_000  # MNIST, as in the paper's experiments [LW16, §4.2]
WARM_UP = 5  # turns before the clock runs: allocation, caches, Adam's state

Row = dict[str, Any]
Name = TypeVar("Name")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def show(rows: Sequence[Row], columns: Mapping[str, str], *, as_json: bool) -> None:
    """Print rows as JSON, or as a table whose columns are formats such as ``{ms:.2f}``."""
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print_table(columns, ([form.format(**row) for form in columns.values()] for row in rows))


def print_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table in Markdown."""
    from vmg_paper.experiments.results_file import markdown  # not at the top: processes whose memory counts lack it

    print(markdown(header, rows))


def interleaved(
    actions: Mapping[Name, Callable[[], object]],
    rounds: int,
    warm_up: int = WARM_UP,
    *,
    settle: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, float]:
    """Median milliseconds of each action. They take turns, so that whatever else the machine does meets all.

    With ``settle`` an action runs once more before each of its turns, so that it does not pay for what the one before
    it did to caches and page tables. ``clock`` counts seconds; ``time.process_time`` counts those of this process's
    threads, which says more on a machine that others use too.
    """
    times: dict[Name, list[float]] = {name: [] for name in actions}
    for turn in range(-warm_up, rounds):
        for name, action in actions.items():
            if settle:
                action()
            start = clock()
            action()
            if turn >= 0:
                times[name].append(1e3 * (clock() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def minibatch(inputs: int = INPUTS) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of one step."""
    return torch.rand(BATCH, inputs), torch.randint(CLASSES, (BATCH,))


def plain_network(sizes: Sequence[int]) -> nn.Sequential:
    """``nn.Linear`` layers with ReLU between them."""
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        modules += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def mnist_sizes(width: int) -> list[int]:
    return [INPUTS, width, width, width, CLASSES]


def plain_step(width: int, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One step of a plain network under fused Adam."""
    network = plain_network(mnist_sizes(width))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(network(x), y).backward()
        optimiser.step()

    return step


def bayesian_step(width: int, x: torch.Tensor, y: torch.Tensor, **options: Any) -> Callable[[], None]:
    """One step of :func:`vmg.training.train`: f, the bound and its gradient, fused Adam."""
    network, likelihood = MLP(INPUTS, (width,) * 3, CLASSES, **options), CategoricalLikelihood()
    parameters = list(network.parameters())
    optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    objective, batch = Objective(network, likelihood, N_DATA), Batch(x, y, None)

    def step() -> None:
        differentiate(objective, parameters, batch)
        optimiser.step()

    return step


def own_loop_step(
    width: int, x: torch.Tensor, y: torch.Tensor, *, sequential: bool = False, **options: Any
) -> Callable[[], None]:
    """One step of a loop of one's own: :func:`vmg.elbo`, ``backward``, fused Adam, of an MLP or ``nn.Sequential``."""
    network: nn.Module = MLP(INPUTS, (width,) * 3, CLASSES, **options)
    if sequential:
        modules = [part for layer in network.layers for part in (layer, nn.ReLU())]  # type: ignore[operator, union-attr]
        network = nn.Sequential(*modules[:-1])
    likelihood = CategoricalLikelihood()
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (-elbo(network, likelihood, x, y, n_data=N_DATA).total).backward()
        optimiser.step()

    return step
