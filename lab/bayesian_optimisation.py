"""Bayesian optimisation of Branin and Hartmann-6 with a Bayesian head as BoTorch's model, beside SingleTaskGP.

Both start from the same 2·d + 2 points and choose one point after the other by the largest log expected improvement,
with the same optimiser of the acquisition. The head is on 100 tanh features of a random hidden layer, trained by its
own evidence after each point. Without a model points are uniform. One JSON line per function, method and seed has the
regret after each evaluation; lines that are in the file are not computed again. Needs the extra ``botorch``.

    python lab/bayesian_optimisation.py --seeds 11 [--show]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vmg
from vmg.likelihoods import GaussianLikelihood

FUNCTIONS = {"branin": (-0.397887, 30), "hartmann-6": (3.32237, 40)}  # the best value of its negative, and evaluations
WIDTH, STEPS, RATE = 100, 150, 0.02


def with_head(x: Tensor, y: Tensor) -> Any:
    """A head on features that its exact evidence has trained, from a start of their own."""
    from vmg.nn.botorch_model import BotorchModel

    hidden = nn.Linear(x.shape[-1], WIDTH).double()
    nn.init.normal_(hidden.weight, std=4.0)
    nn.init.uniform_(hidden.bias, -6, 6)
    features = nn.Sequential(hidden, nn.Tanh())
    head = vmg.nn.BayesianHead(
        features, GaussianLikelihood(1, concentration=1.0, rate=1e-3), layer=None, n_features=WIDTH
    )
    start = [parameter.detach().clone() for parameter in hidden.parameters()]
    optimiser = torch.optim.Adam([*hidden.parameters(), *head.output.parameters()], lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        away = sum((p - s).square().sum() for p, s in zip(hidden.parameters(), start, strict=True))
        (0.5 * away - head.log_evidence(x, y) - head.log_prior()).sum().backward()
        optimiser.step()
    return BotorchModel(head.fit(x, y))


def with_gp(x: Tensor, y: Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def run(name: str, method: str, seed: int) -> dict[str, object]:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.test_functions import Branin, Hartmann

    best, n_points = FUNCTIONS[name]
    function = Branin(negate=True) if name == "branin" else Hartmann(6, negate=True)
    torch.manual_seed(seed)
    low, high = function.bounds.double()
    bounds = torch.stack([torch.zeros_like(low), torch.ones_like(low)])
    x = torch.rand(2 * len(low) + 2, len(low), dtype=torch.float64)
    start = time.process_time()
    while len(x) < n_points:
        y = function(low + x * (high - low)).unsqueeze(-1)
        if method == "uniform":
            chosen = torch.rand(1, len(low), dtype=torch.float64)
        else:
            scaled = (y - y.mean()) / y.std()
            model = (with_head if method == "head" else with_gp)(x, scaled)
            acquisition = LogExpectedImprovement(model, scaled.max())
            chosen, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=128)
        x = torch.cat([x, chosen.detach()])
    values = function(low + x * (high - low)).cummax(0).values
    regret = [round(best - value, 6) for value in values.tolist()]
    return {
        "function": name,
        "method": method,
        "seed": seed,
        "s": round(time.process_time() - start, 1),
        "regret": regret,
    }


def show(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for name, method in dict.fromkeys((line["function"], line["method"]) for line in lines):
        own = [line for line in lines if (line["function"], line["method"]) == (name, method)]
        curves = [
            statistics.median(line["regret"][n - 1] for line in own)
            for n in (10, 15, 20, 30, 40)
            if n <= len(own[0]["regret"])
        ]
        seconds = statistics.mean(line["s"] for line in own)
        print(
            f"{name:12s} {method:8s} {len(own):2d} runs  {seconds:6.1f} s  median regret",
            *(f"{r:8.4f}" for r in curves),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=11)
    parser.add_argument("--show", action="store_true")
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).with_name("results") / "bayesian_optimisation.jsonl"
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # BoTorch and its libraries warn of matters of their own
    arguments.results.touch()
    done = {
        (r["function"], r["method"], r["seed"]) for r in map(json.loads, arguments.results.read_text().splitlines())
    }
    for seed in [] if arguments.show else range(arguments.seeds):
        for task in [(name, method, seed) for name in FUNCTIONS for method in ("uniform", "gp", "head")]:
            if task not in done:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(run(*task)) + "\n")
    show(arguments.results)
