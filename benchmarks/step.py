"""Time of one training step over that of a plain ``nn.Linear`` network of the same shape and the same Adam.

A step is the one of :func:`vmg.training.train`: it draws f, takes the bound with the categorical likelihood and its
gradient, and makes one step of Adam (fused, for both).
The two networks take turns, so that whatever else the machine does meets both; a ratio is one of medians.

    python benchmarks/step.py [--json] [--widths 150 400 750] [--rounds 40]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from vmg import kernels
from vmg.flat import FlatParameters
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import MLP
from vmg.stepping import make_step

INPUTS, CLASSES, BATCH, N_DATA = 784, 10, 100, 50_000  # MNIST, as in the paper's experiments [LW16, §4.2]
VARIANTS = {
    "P=50": {"n_pseudo": 50},
    "P=20": {"n_pseudo": 20},
    "zero mean, P=50": {"n_pseudo": 50, "zero_mean": True},
}
WARM_UP = 5  # steps before the clock runs: allocation, caches, Adam's state


def plain_step(width: int, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    sizes = [INPUTS, width, width, width, CLASSES]
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        modules += [nn.Linear(n_in, n_out), nn.ReLU()]
    network = nn.Sequential(*modules[:-1])
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        cross_entropy(network(x), y).backward()
        optimiser.step()

    return step


def bayesian_step(width: int, x: torch.Tensor, y: torch.Tensor, **options: object) -> Callable[[], None]:
    network, likelihood = MLP(INPUTS, (width,) * 3, CLASSES, **options), CategoricalLikelihood()
    flat = FlatParameters(network.parameters())
    optimiser = torch.optim.Adam(flat.tensors, lr=1e-3, fused=True)
    evaluate = make_step(network, likelihood, flat, x.shape, n_data=N_DATA, kl_weight=1.0)

    def step() -> None:
        evaluate(x, y, None)
        optimiser.step()

    return step


def interleaved(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each step, the steps taking turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(-WARM_UP, rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if round_ >= 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(widths: list[int], rounds: int, threads: int) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = torch.rand(BATCH, INPUTS), torch.randint(CLASSES, (BATCH,))
    results: list[dict[str, object]] = []
    for width in widths:
        steps = {name: bayesian_step(width, x, y, **options) for name, options in VARIANTS.items()}
        medians = interleaved({"nn.Linear": plain_step(width, x, y), **steps}, rounds)
        plain = medians.pop("nn.Linear")
        for name, milliseconds in medians.items():
            row = {
                "width": width,
                "variant": name,
                "ms": milliseconds,
                "plain_ms": plain,
                "ratio": milliseconds / plain,
            }
            results.append({**row, "threads": threads, "kernels": kernels.available()})
    return results


def table(results: list[dict[str, object]]) -> str:
    lines = ["| layers | network | ms per step | nn.Linear, ms | ratio |", "|---|---|---|---|---|"]
    for r in results:
        layers = f"{INPUTS}-" + f"{r['width']}-" * 3 + str(CLASSES)
        lines.append(f"| {layers} | {r['variant']} | {r['ms']:.2f} | {r['plain_ms']:.2f} | {r['ratio']:.2f}× |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[150, 400, 750])
    parser.add_argument("--rounds", type=int, default=40, help="timed steps of each network (default 40)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results = measure(arguments.widths, arguments.rounds, arguments.threads)
    print(json.dumps(results, indent=2) if arguments.json else table(results))


if __name__ == "__main__":
    main()
