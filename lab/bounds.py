"""The log evidence beside what each objective says it is, and how ignorant each network is in a gap of the data.

Three parts, with known noise and in float64. `linear`: Bayesian linear regression, whose evidence is exact. `tiny`: a
1-d network of one hidden layer, whose evidence comes from annealed importance sampling over the hidden weights with the
output layer integrated out. `gap`: y = sin 2.5x + x/2 seen at x in [-2, -1] and [1, 2]; the spread of function draws in
the gap over that at the data. Each network trains from four starts at once, and that with the highest objective counts.
One JSON line per network is appended to the results file, and what is there already is not run again; `--write` puts
the tables at the end of the page.

    python lab/bounds.py --write docs/bounds.md
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from vmg.likelihoods import KnownNoiseLikelihood
from vmg.math.preactivations import augment
from vmg.nn import MLP, kl_divergence
from vmg.priors import IsotropicPrior
from vmg.training import cosine, train
from vmg_paper.experiments.results_file import measure_missing
from vmg_paper.layers import GlobalInducingMLP

QUIET = 1e-3  # bound on √α: the noise of pseudo-data is not what is measured
PRIOR_SCALE = {"linear": 1.0, "tiny": 3.0, "gap": 3.0}
NOISE = {"linear": 0.5, "tiny": 0.2, "gap": 0.1}
HIDDEN = {"linear": (), "tiny": (6,), "gap": (50,)}
ACTIVATION = {"linear": "identity", "tiny": "tanh", "gap": "relu"}
STEPS = {"linear": 1_500, "tiny": 2_000, "gap": 1_500}
STARTS = 4
DAMPING = 1e-4
MARKER = "<!-- what follows is written by lab/bounds.py -->"

Row = dict[str, Any]


def wave(x: Tensor) -> Tensor:
    return torch.sin(2.5 * x) + x / 2


def data(part: str) -> tuple[Tensor, Tensor]:
    """Rows of a part's problem."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if part == "linear":
        x = normal(30, 4)
        return x, x[:, :1] - 0.5 * x[:, 1:2] + NOISE[part] * normal(30, 1)
    if part == "tiny":
        x = torch.linspace(-2, 2, 20, dtype=torch.float64).unsqueeze(-1)
    else:
        x = 1 + torch.rand(100, 1, generator=generator, dtype=torch.float64)
        x[::2] *= -1
    return x, wave(x) + NOISE[part] * normal(*x.shape)


def networks(part: str) -> dict[str, Callable[[Tensor, Tensor], nn.Module]]:
    """Makers of the networks of a part, by what the table calls them; they may look at the rows to start."""
    sizes = data(part)[0].shape[1], HIDDEN[part], 1
    options: dict[str, Any] = {"activation": ACTIVATION[part], "batch_shape": (STARTS,)}
    rows = [sizes[0] + 1, *(n + 1 for n in HIDDEN[part])]
    fewer, full = [max(1, R // 2) for R in rows], rows
    if part == "gap":
        fewer, full = [1, 20], [20, 20]

    def layers(n_pseudo: int | list[int] = 0, **own: Any) -> Callable[[Tensor, Tensor], nn.Module]:
        made = {"n_pseudo": n_pseudo, "max_noise": QUIET, "damping": DAMPING, "initial_scale": 0.1, **options, **own}
        return lambda x, y: MLP(*sizes, prior=IsotropicPrior(PRIOR_SCALE[part]), **made)

    def inducing(n_inducing: int) -> Callable[[Tensor, Tensor], nn.Module]:
        def make(x: Tensor, y: Tensor) -> nn.Module:
            network = GlobalInducingMLP(
                *sizes, n_inducing=n_inducing, prior_scale=PRIOR_SCALE[part], **options
            ).double()
            chosen = x.squeeze(-1).argsort() if x.shape[1] == 1 else torch.arange(len(x))
            chosen = chosen[torch.linspace(0, len(x) - 1, n_inducing).round().long()]
            network.start_at(x[chosen], y[chosen])
            nn.init.constant_(network.log_precisions[-1], -2 * math.log(NOISE[part]))
            return network

        return make

    return {
        "no pseudo-data": layers(),
        "no pseudo-data, dense U": layers(row_covariance="dense"),
        f"paper's objective, P = {fewer}": layers(fewer),
        f"paper's objective, P = {full}": layers(full),
        f"paper's objective, P = {full}, √α up to 0.25": layers(full, max_noise=0.25),
        f"conditional KL, P = {fewer}": layers(fewer, kl="conditional"),
        f"conditional KL, P = {full}": layers(full, kl="conditional"),
        **{
            f"global inducing points, P = {P}": inducing(P)
            for P in {"linear": (3, 5, 30), "tiny": (10, 20), "gap": (20,)}[part]
        },
    }


# -- log evidence -----------------------------------------------------------------------------------------------------


def log_marginal(features: Tensor, y: Tensor, scale: float, noise: float) -> Tensor:
    """log N(y; 0, scale² ΦΦᵀ + noise² I) with the weights of features Φ [..., N, R] integrated out, [...]."""
    eye = torch.eye(features.shape[-2], dtype=features.dtype)
    covariance = scale**2 * features @ features.mT + noise**2 * eye
    return MultivariateNormal(features.new_zeros(features.shape[-2]), covariance).log_prob(y.squeeze(-1))


def log_evidence(part: str, n_particles: int = 200, n_levels: int = 400) -> tuple[float, float]:
    """The log evidence and its standard error: exact for a linear model, else by annealed importance sampling.

    Particles start at the prior of the hidden weights. Levels raise the likelihood's power from 0 to 1 as the cube of a
    line; at each one a trajectory of Hamiltonian dynamics moves all particles. The mean weight is an unbiased estimate.
    """
    x, y = data(part)
    scale, noise = PRIOR_SCALE[part], NOISE[part]
    if part == "linear":
        return log_marginal(augment(x), y, scale, noise).item(), 0.0
    (width,), rows = HIDDEN[part], augment(x)
    generator = torch.Generator().manual_seed(2)

    def energies(w: Tensor) -> tuple[Tensor, Tensor]:
        features = augment(torch.tanh(rows @ (scale * w)))
        return log_marginal(features, y, scale, noise), -0.5 * w.square().sum((-2, -1))

    def slope(w: Tensor, power: float) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            leaf = w.requires_grad_()
            likelihood, prior = energies(leaf)
            (g,) = torch.autograd.grad((power * likelihood + prior).sum(), leaf)
        return likelihood.detach(), prior.detach(), g

    def draw() -> Tensor:
        return torch.randn(n_particles, rows.shape[1], width, generator=generator, dtype=torch.float64)

    w, log_weight, step = draw(), torch.zeros(n_particles, dtype=torch.float64), 0.2
    powers = torch.linspace(0, 1, n_levels + 1, dtype=torch.float64) ** 3
    likelihood, prior, g = slope(w, 0.0)
    for before, after in zip(powers[:-1].tolist(), powers[1:].tolist(), strict=True):
        log_weight += (after - before) * likelihood
        likelihood, prior, g = slope(w.detach(), after)
        p = draw()
        start = after * likelihood + prior - 0.5 * p.square().sum((-2, -1))
        moved, g_moved = w.detach(), g
        for _ in range(5):
            p = p + 0.5 * step * g_moved
            moved = moved + step * p
            new_likelihood, new_prior, g_moved = slope(moved.detach(), after)
            p = p + 0.5 * step * g_moved
        end = after * new_likelihood + new_prior - 0.5 * p.square().sum((-2, -1))
        accept = torch.rand(n_particles, generator=generator, dtype=torch.float64).log() < end - start
        w = torch.where(accept[:, None, None], moved, w).detach()
        likelihood = torch.where(accept, new_likelihood, likelihood)
        step *= 1.05 if accept.double().mean() > 0.8 else 0.95
    relative = (log_weight - log_weight.max()).exp()
    error = relative.std() / relative.mean() / math.sqrt(n_particles)
    return (log_weight.logsumexp(0) - math.log(n_particles)).item(), error.item()


# -- what the objectives say ------------------------------------------------------------------------------------------


def fit(part: str, make: Callable[[Tensor, Tensor], nn.Module], n_steps: int, rate: float) -> tuple[nn.Module, float]:
    x, y = data(part)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be")  # what happens there is what is shown
        network = make(x, y).double()
    x, y = (rows.expand(STARTS, *rows.shape) for rows in (x, y))
    likelihood = KnownNoiseLikelihood(NOISE[part]).double()
    options: dict[str, Any] = {"batch_size": x.shape[1], "learning_rate": rate, "schedule": cosine, "averaging": 0.99}
    started = time.process_time()
    generator = torch.Generator().manual_seed(0)
    train(network, likelihood, x, y, n_steps=n_steps, batch_shape=(STARTS,), generator=generator, **options)
    return network, time.process_time() - started


@torch.no_grad()
def objective(part: str, network: nn.Module, n_draws: int) -> tuple[int, float, float]:
    """The start with the highest objective, that objective for all rows together, and its standard error over draws."""
    x, y = data(part)
    likelihood = KnownNoiseLikelihood(NOISE[part]).double()
    f = torch.stack([network(x) for _ in range(n_draws)])
    fits = likelihood.expected_log_prob(f, y.expand(f.shape)).sum(-1)  # [n_draws, STARTS]
    divergences = torch.stack([kl_divergence(network) for _ in range(max(2, n_draws // 50))])
    found = fits.mean(0) - divergences.mean(0)
    best = int(found.argmax())
    errors = [values[:, best].std().item() / math.sqrt(len(values)) for values in (fits, divergences)]
    return best, found[best].item(), math.hypot(*errors)


@torch.no_grad()
def ignorance(network: Any, start: int, n_draws: int) -> Row:
    """Spread of function draws at the data and in the gap, and the error in the gap over what was stated."""
    grid = torch.linspace(-2, 2, 401, dtype=torch.float64).unsqueeze(-1)
    f = network.sample_functions(n_draws)(grid)[:, start].squeeze(-1)
    size = grid.squeeze(-1).abs()
    seen, gap = size >= 1, size <= 0.8
    spread, error = f.std(0), f.mean(0) - wave(grid).squeeze(-1)
    stated = (spread.square() + NOISE["gap"] ** 2).sqrt()
    return {
        "std_at_data": spread[seen].mean().item(),
        "std_in_gap": spread[gap].mean().item(),
        "ratio": (spread[gap].mean() / spread[seen].mean()).item(),
        "rmse_at_data": error[seen].square().mean().sqrt().item(),
        "error_over_std": (error[gap].square().mean() / stated[gap].square().mean()).sqrt().item(),
    }


# -- results ----------------------------------------------------------------------------------------------------------


def tasks(part: str, *, quick: bool) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Keys of records, and what measures them."""

    def evidence() -> Row:
        value, error = log_evidence(part, *([8, 5] if quick else []))
        return {"objective": value, "error": error}

    def measure(make: Callable[[Tensor, Tensor], nn.Module]) -> Row:
        n_steps, n_draws = (5, 4) if quick else (STEPS[part], 2_000 if part == "gap" else 20_000)
        network, seconds = fit(part, make, n_steps, 0.03)
        best, value, error = objective(part, network, n_draws)
        row: Row = {"objective": value, "error": error, "seconds": round(seconds, 1)}
        return row if part != "gap" else {**row, **ignorance(network, best, n_draws)}

    if part != "gap":
        yield {"part": part, "network": "log evidence"}, evidence
    for name, make in networks(part).items():
        yield {"part": part, "network": name}, partial(measure, make)


def tables(rows: list[Row]) -> str:
    """All parts in Markdown."""
    text = ""
    for part, title in (("linear", "Linear model"), ("tiny", "Network of six tanh units on 20 points")):
        chosen = [row for row in rows if row["part"] == part]
        evidence = next((row["objective"] for row in chosen if row["network"] == "log evidence"), math.nan)
        text += f"\n## {title}\n\n| | objective | less the log evidence | CPU s |\n|---|---|---|---|\n"
        for row in chosen:
            gap = "" if row["network"] == "log evidence" else f"{row['objective'] - evidence:+.2f}"
            seconds = row.get("seconds", "")
            text += f"| {row['network']} | {row['objective']:.2f} ± {row['error']:.2f} | {gap} | {seconds} |\n"
    text += "\n## Gap in the data, 50 ReLU units\n\n"
    text += "| | objective | std at the data | std in the gap | ratio | RMSE at the data | error over std in the gap "
    text += "| CPU s |\n|---|---|---|---|---|---|---|---|\n"
    for row in (row for row in rows if row["part"] == "gap"):
        numbers = [row[key] for key in ("std_at_data", "std_in_gap", "ratio", "rmse_at_data", "error_over_std")]
        columns = " | ".join(f"{value:.3g}" for value in numbers)
        text += f"| {row['network']} | {row['objective']:.1f} ± {row['error']:.1f} | {columns} | {row['seconds']} |\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/bounds.jsonl"))
    parser.add_argument("--parts", default="linear,tiny,gap")
    parser.add_argument("--quick", action="store_true", help="few steps: shows that it runs, measures nothing")
    parser.add_argument("--write", type=Path, help="page that ends in these tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.parts.split(","):
        rows = measure_missing(tasks(part, quick=options.quick), options.out)
    text = tables(rows)
    if options.write is None:
        print(text)
        return
    page = options.write.read_text() if options.write.exists() else MARKER
    options.write.write_text(page.split(MARKER)[0] + MARKER + "\n" + text)


if __name__ == "__main__":
    main()
