"""A small CNN on 8,000 images of Fashion-MNIST: plain, as an ensemble, with Bayesian heads, converted, and by others.

Methods of one seed share their plain networks. Every method is used with its defaults; nothing is chosen on test rows.
AUROC tells 3,000 test images from 2,000 of MNIST and of notMNIST by the entropy of the mean probabilities. Seconds are
the processor's: those of training, and those that the method adds. One JSON line per method and seed; lines that are in
the file are not computed again. Needs the data folder in VMG_DATA; other libraries are left out where they are missing.

    python lab/image_heads.py --seeds 0,1,2 [--show]
    python lab/image_heads.py --time      # a head of 10 classes on 100,000 rows of 128 features
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import vmg
from vmg.files import append_lines, read_lines
from vmg.likelihoods import CategoricalLikelihood
from vmg.metrics import auroc, class_scores
from vmg_paper.data.images import load_images
from vmg_paper.experiments.results_file import markdown

EPOCHS, BATCH, RATE, N_MEMBERS, N_DRAWS = 12, 100, 3e-3, 5, 100
Draws = Callable[[Tensor], Tensor]  # of class probabilities, [draws, rows, classes]


def images(name: str, part: str, n: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.as_tensor(found[:n]) for found in load_images(name, part))
    return x.float().reshape(-1, 1, 28, 28), y.long()


def make() -> nn.Sequential:
    first, second = nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.Conv2d(16, 32, 3, stride=2, padding=1)
    return nn.Sequential(
        first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(1_568, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """Train in place along half a cosine; gives the processor's seconds."""
    start = time.process_time()
    optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(model), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * -(-len(x) // BATCH))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            loss(x[rows], y[rows]).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    return time.process_time() - start


@torch.no_grad()
def probabilities(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([torch.softmax(model(rows), -1) for rows in x.split(500)]).double()


def ensemble(networks: list[nn.Module], x: Tensor, y: Tensor) -> Draws:
    return lambda rows: torch.stack([probabilities(network, rows) for network in networks])


def heads(networks: list[nn.Module], x: Tensor, y: Tensor) -> Draws:
    found = [vmg.nn.BayesianHead(network).fit(DataLoader(TensorDataset(x, y), 500)) for network in networks]
    return lambda rows: torch.cat([head.sample_probabilities(rows, N_DRAWS) for head in found])


def laplace(networks: list[nn.Module], x: Tensor, y: Tensor) -> Draws:
    """The last layer with a full covariance and the prior precision of the marginal likelihood."""
    from laplace import Laplace

    found = Laplace(
        copy.deepcopy(networks[0]), "classification", subset_of_weights="last_layer", hessian_structure="full"
    )
    found.fit(DataLoader(TensorDataset(x, y), 500))
    found.optimize_prior_precision(method="marglik")
    return lambda rows: torch.cat(
        [found.predictive_samples(part, n_samples=N_DRAWS) for part in rows.split(500)], 1
    ).double()


def converted(seed: int, x: Tensor, y: Tensor) -> tuple[Draws, float]:
    torch.manual_seed(seed)
    model, likelihood = vmg.nn.bayesianize(make(), n_data=len(x)), CategoricalLikelihood()
    seconds = train(model, lambda a, b: -vmg.elbo(model, likelihood, a, b, n_data=len(x)).total, x, y)

    def draws(rows: Tensor) -> Tensor:
        with vmg.nn.fixed_draw(model, N_DRAWS // 5) as drawn:
            return torch.stack([probabilities(model, rows) for _ in drawn])

    return draws, seconds


def vbll(seed: int, x: Tensor, y: Tensor) -> tuple[Draws, float]:
    """A variational Bayesian last layer (Harrison et al. 2024), trained with the network."""
    from vbll import DiscClassification

    torch.manual_seed(seed)
    plain = make()
    plain[-1] = DiscClassification(64, 10, 1 / len(x))
    seconds = train(plain, lambda a, b: plain(a).train_loss_fn(b), x, y)
    return lambda rows: probabilities(lambda part: plain(part).predictive.probs.log(), rows).unsqueeze(0), seconds


ON_PLAIN: dict[str, tuple[int, Callable[[list[nn.Module], Tensor, Tensor], Draws]]] = {
    "plain": (1, ensemble),
    "ensemble of five": (N_MEMBERS, ensemble),
    "head": (1, heads),
    "five heads": (N_MEMBERS, heads),
    "laplace-torch": (1, laplace),
}
FROM_START = {"bayesianize": converted, "VBLL": vbll}
NEEDS = {"laplace-torch": "laplace", "VBLL": "vbll"}


def score(draws: Draws, test: tuple[Tensor, Tensor], outside: dict[str, Tensor]) -> dict[str, float]:
    def unsure(rows: Tensor) -> Tensor:
        p = draws(rows).mean(0)
        return -(p * p.clamp_min(1e-12).log()).sum(-1)

    p = draws(test[0]).mean(0)
    found = class_scores((p / p.sum(-1, keepdim=True)).numpy(), test[1].numpy())
    inside = unsure(test[0]).numpy()
    aurocs = {f"auroc {name}": auroc(inside, unsure(rows).numpy()) for name, rows in outside.items()}
    return {name: round(float(value), 4) for name, value in (found | aurocs).items()}


def measure(out: Path, seeds: list[int]) -> None:
    done = {(row["method"], row["seed"]) for row in read_lines(out)}
    there = [m for m in (*ON_PLAIN, *FROM_START) if m not in NEEDS or find_spec(NEEDS[m]) is not None]
    (x, y), test = images("fashion-mnist", "train", 8_000), images("fashion-mnist", "test", 3_000)
    outside = {"MNIST": images("mnist", "test", 2_000)[0], "notMNIST": images("notmnist", "test", 2_000)[0]}
    for seed in seeds:
        todo = [method for method in there if (method, seed) not in done]
        networks, trained = [], []
        if any(method in ON_PLAIN for method in todo):
            for member in range(N_MEMBERS):
                torch.manual_seed(100 * seed + member)
                network = make()
                networks.append(network)
                trained.append(train(network, lambda a, b, f=network: nn.functional.cross_entropy(f(a), b), x, y))
        for method in todo:
            start = time.process_time()
            if method in ON_PLAIN:
                n, finish = ON_PLAIN[method]
                draws, seconds = finish(networks[:n], x, y), sum(trained[:n])
                extra = time.process_time() - start
            else:
                (draws, seconds), extra = FROM_START[method](seed, x, y), 0.0
            times = {"train_seconds": round(seconds, 1), "extra_seconds": round(extra, 1)}
            append_lines(out, [{"method": method, "seed": seed, **score(draws, test, outside), **times}])


def table(out: Path) -> str:
    """Means over seeds, in Markdown."""
    rows = read_lines(out)
    columns = [name for name in rows[0] if name not in ("method", "seed")]
    means = [
        [method, *(f"{statistics.mean(row[c] for row in rows if row['method'] == method):.4g}" for c in columns)]
        for method in dict.fromkeys(row["method"] for row in rows)
    ]
    return markdown(["method", *columns], means)


def time_head(n_rows: int = 100_000, width: int = 128) -> float:
    """The processor's seconds of a head of ten classes whose features are given."""
    torch.manual_seed(0)
    x = torch.randn(n_rows, width)
    y = (x @ torch.randn(width, 10) / width**0.5 + torch.randn(n_rows, 10)).argmax(-1)
    start = time.process_time()
    vmg.nn.BayesianHead(nn.Identity(), CategoricalLikelihood(), layer=None).fit(x, y)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "image_heads.jsonl")
    parser.add_argument("--show", action="store_true", help="print the table of the file")
    parser.add_argument("--time", action="store_true", help="time one large head")
    options = parser.parse_args()
    if options.time:
        print(f"{time_head():.1f} s")
        return
    if not options.show:
        measure(options.out, [int(seed) for seed in options.seeds.split(",")])
    print(table(options.out))


if __name__ == "__main__":
    main()
