"""Bayesian optimisation of Branin and Hartmann-6 with a Bayesian head as BoTorch's model, beside SingleTaskGP.

Both start from the same 2·d + 2 points and choose one point after the other by the largest log expected improvement,
with the same optimiser of the acquisition. One head is on 100 tanh features of a random hidden layer, trained by its
own evidence after each point. The scaled head learns the scale of each input alone, with the prior that SingleTaskGP
has for length scales. Without a model points are uniform. One JSON line per function, method and
seed has the regret after each evaluation; lines that are in the file are not computed again. Needs the extra
``botorch``.

    python lab/bayesian_optimisation.py --seeds 11 [--show]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vmg
from vmg.likelihoods import GaussianLikelihood
from vmg_paper.experiments.results_file import measure_missing

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


class ScaledUnits(nn.Module):
    """Tanh units that bend at random points of the cube; the scale of each input learns, directions stay."""

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.directions = torch.randn(n_inputs, WIDTH, dtype=torch.float64)
        self.bends = torch.rand(WIDTH, n_inputs, dtype=torch.float64)
        self.centre = 3 - math.sqrt(2) - 0.5 * math.log(n_inputs)  # the mode of SingleTaskGP's prior of a length scale
        self.log_scale = nn.Parameter(torch.full((n_inputs,), self.centre, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.log_scale.exp().unsqueeze(-1) * self.directions
        return torch.tanh(x @ weight - (self.bends * weight.mT).sum(-1))

    def log_prior(self) -> Tensor:
        return -(self.log_scale - self.centre).square().sum() / 6


def with_scales(x: Tensor, y: Tensor) -> Any:
    """A head on random units, the scale of whose inputs its exact evidence has learned."""
    from vmg.nn.botorch_model import BotorchModel

    features = ScaledUnits(x.shape[-1])
    likelihood = GaussianLikelihood(1, concentration=1.0, rate=1e-3)
    head = vmg.nn.BayesianHead(features, likelihood, layer=None, n_features=WIDTH)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(80):
        optimiser.zero_grad()
        (-(head.log_evidence(x, y) + head.log_prior() + features.log_prior())).backward()
        optimiser.step()
    return BotorchModel(head.fit(x, y))


def with_gp(x: Tensor, y: Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


MODELS = {"gp": with_gp, "head": with_head, "scaled head": with_scales}


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
            model = MODELS[method](x, scaled)
            acquisition = LogExpectedImprovement(model, scaled.max())
            chosen, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=128)
        x = torch.cat([x, chosen.detach()])
    values = function(low + x * (high - low)).cummax(0).values
    regret = [round(best - value, 6) for value in values.tolist()]
    return {"s": round(time.process_time() - start, 1), "regret": regret}


def show(lines: list[dict[str, Any]]) -> None:
    for name, method in dict.fromkeys((line["function"], line["method"]) for line in lines):
        own = [line for line in lines if (line["function"], line["method"]) == (name, method)]
        curves = [
            statistics.median(line["regret"][n - 1] for line in own)
            for n in (10, 15, 20, 30, 40)
            if n <= len(own[0]["regret"])
        ]
        seconds = statistics.mean(line["s"] for line in own)
        print(
            f"{name:12s} {method:12s} {len(own):2d} runs  {seconds:6.1f} s  median regret",
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
    cases = [
        {"function": name, "method": method, "seed": seed}
        for seed in ([] if arguments.show else range(arguments.seeds))
        for name in FUNCTIONS
        for method in ("uniform", *MODELS)
    ]
    show(measure_missing(((case, partial(run, *case.values())) for case in cases), arguments.results))
