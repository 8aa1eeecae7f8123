"""Quality in a loop of one's own, beside bayesian-torch, laplace-torch and IVON, and the time of a step.

Two tasks: an MLP on scikit-learn's digits (outside: Fashion-MNIST, averaged to 8x8), and a small CNN on 5,000 images of
Fashion-MNIST (outside: MNIST). Every method has the same network, batches and number of epochs, a rate that falls
along half a cosine, and 20 draws to predict with. Its settings are chosen from a small grid by the log-likelihood of
validation rows, with seeds of their own (three for digits, which have 300 such rows; one for Fashion-MNIST with 2,000);
then three seeds are scored on test rows. Replicas, heads and laplace-torch may look at validation rows once more, to
correct how sure they are. AUROC tells test rows from those outside by the entropy of the mean probabilities, or by the
mutual information of class and weights.

    python benchmarks/own_loop_quality.py --out results/own_loop_quality.jsonl [--tasks digits fashion]
    python benchmarks/own_loop_quality.py --out results/own_loop_quality.jsonl --times   # steps, all methods in turn
    python benchmarks/own_loop_quality.py --out results/own_loop_quality.jsonl --show --page docs/pytorch.md

Lines that are in the file already are not computed again. Needs the data folder in VMG_DATA and ``vmg[peers]``.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import Row, interleaved, parser
from own_loop_methods import METHODS, Method, Probabilities, Run, Settings
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from vmg.files import append_lines, read_lines
from vmg_paper.data.images import load_images
from vmg_paper.experiments.results_file import fill, markdown

N_BINS = 15


@dataclass(frozen=True)
class Task:
    """Rows by part, the network, and how long to train."""

    make: Callable[[], nn.Module]
    rows: dict[str, tuple[Tensor, Tensor]]  # train, validation, test
    outside: Tensor
    epochs: int
    batch_size: int
    choosing_seeds: tuple[int, ...] = (100,)  # of the runs that settings are chosen by


def digits(quick: bool) -> Task:
    data = load_digits()
    x, y = torch.as_tensor(data.data).float() / 16, torch.as_tensor(data.target).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    centre = x[:900].mean()
    if quick:
        outside = torch.rand(50, 64)
    else:
        images = torch.as_tensor(load_images("fashion-mnist", "test")[0][:1_000]).reshape(-1, 1, 28, 28)
        outside = nn.functional.adaptive_avg_pool2d(images, 8).flatten(1)
    parts = {"train": slice(0, 900), "validation": slice(900, 1_200), "test": slice(1_200, None)}
    rows = {name: (x[part] - centre, y[part]) for name, part in parts.items()}

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    return Task(make, rows, outside - centre, 2 if quick else 60, 50, (100,) if quick else (100, 101, 102))


def fashion(quick: bool) -> Task:
    x, y = (torch.as_tensor(part) for part in load_images("fashion-mnist", "train"))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:7_000]
    test_x, test_y = (torch.as_tensor(part)[:3_000] for part in load_images("fashion-mnist", "test"))
    other = torch.as_tensor(load_images("mnist", "test")[0][:2_000])
    centre, scale = x[order[:5_000]].mean(), x[order[:5_000]].std()

    def images(part: Tensor) -> Tensor:
        return ((part - centre) / scale).reshape(-1, 1, 28, 28)

    rows = {
        "train": (images(x[order[:5_000]]), y[order[:5_000]].long()),
        "validation": (images(x[order[5_000:]]), y[order[5_000:]].long()),
        "test": (images(test_x), test_y.long()),
    }

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(784, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    return Task(make, rows, images(other), 1 if quick else 12, 100)


TASKS = {"digits": digits, "fashion": fashion}


# -- training and scoring ---------------------------------------------------------------------------------------------


TrainedNetworks = dict[tuple[Any, ...], tuple[dict[str, Tensor], float]]  # states, and the seconds they took


def train(
    task: Task, method: Method, settings: Settings, seed: int, trained: TrainedNetworks
) -> tuple[Probabilities, float]:
    """Draws of all members together, and the processor's seconds of training, whatever comes after it included.

    Plain networks of the same settings and seed are the same: they are trained once, for all methods that use them.
    """
    x, y = task.rows["train"]
    members, seconds = [], 0.0
    for member in range(method.n_members):
        start, n_epochs = time.process_time(), max(1, round(task.epochs * method.share))
        torch.manual_seed(1_000 * seed + member)
        run = method.start(task.make(), len(x), settings)
        key = (settings["lr"], settings.get("weight_decay"), settings.get("smoothing"), seed, member, n_epochs)
        if run.plain is not None and key in trained:
            state, spent = trained[key]
            run.plain.load_state_dict(state)
            seconds += spent
        else:
            train_member(run, x, y, settings["lr"], n_epochs, task.batch_size, 1_000 * seed + member)
            if run.plain is not None:
                trained[key] = copy.deepcopy(run.plain.state_dict()), time.process_time() - start
        members.append(run.finish((x, y), task.rows["validation"]))
        seconds += time.process_time() - start
    return (lambda rows: torch.cat([draw(rows) for draw in members])), seconds


def train_member(run: Run, x: Tensor, y: Tensor, lr: float, n_epochs: int, batch_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    n_steps, done = n_epochs * math.ceil(len(x) / batch_size), 0
    for _ in range(n_epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            for group in run.optimiser.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * done / n_steps))
            run.step(x[rows], y[rows], done / n_steps)
            done += 1


def score(draw: Probabilities, x: Tensor, y: Tensor, outside: Tensor | None) -> Row:
    inside = draw(x)
    p = inside.mean(0)
    right, sure = (p.argmax(-1) == y).float(), p.max(-1).values
    bins = (sure * N_BINS).long().clamp_max(N_BINS - 1)
    gaps = [(right[bins == k] - sure[bins == k]).sum().abs().item() for k in range(N_BINS)]
    found = {
        "accuracy": right.mean().item(),
        "nll": -p.gather(-1, y.unsqueeze(-1)).clamp_min(1e-12).log().mean().item(),
        "ece": sum(gaps) / len(y),
    }
    if outside is None:
        return found
    other = draw(outside)
    label = torch.cat([torch.zeros(len(x)), torch.ones(len(outside))]).numpy()
    for name, unsure in (("entropy", lambda q: entropy(q.mean(0))), ("information", information)):
        values = torch.cat([unsure(inside), unsure(other)])
        found[f"auroc_{name}"] = float(roc_auc_score(label, values.numpy()))
    return found


def entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp_min(1e-12).log()).sum(-1)


def information(draws: Tensor) -> Tensor:
    return entropy(draws.mean(0)) - entropy(draws).mean(0)


# -- the file ---------------------------------------------------------------------------------------------------------


class Results:
    """Lines of JSON; what is there is not computed again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[Row] = [] if path is None else read_lines(path)

    def get(self, key: Row, compute: Callable[[], Row]) -> Row:
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        return self.add({**key, **compute()})

    def add(self, row: Row) -> Row:
        self.rows.append(row)
        if self.path is not None:
            append_lines(self.path, [row])
        return row


def measure(
    results: Results, name: str, task: Task, methods: Sequence[str], seeds: Sequence[int], n_settings: int | None = None
) -> None:
    """Choose among the first ``n_settings`` of each method on validation rows, and score them on test rows."""
    trained: TrainedNetworks = {}
    for which in methods:
        method = METHODS[which]

        def run(settings: Settings, seed: int, part: str, method: Method = method) -> Row:
            draw, seconds = train(task, method, settings, seed, trained)
            outside = task.outside if part == "test" else None
            return {**score(draw, *task.rows[part], outside), "train_seconds": seconds}

        def mean_loss(settings: Settings, which: str = which, run: Callable[..., Row] = run) -> float:
            found = []
            for seed in task.choosing_seeds:
                key = {"task": name, "method": which, "part": "validation", "seed": seed, "settings": settings}
                found.append(results.get(key, lambda seed=seed: run(settings, seed, "validation"))["nll"])
            return statistics.mean(found)

        best = min(method.grid[:n_settings], key=mean_loss)
        for seed in seeds:
            key = {"task": name, "method": which, "part": "test", "seed": seed, "settings": best}
            results.get(key, lambda seed=seed, best=best, run=run: run(best, seed, "test"))


def measure_times(results: Results, name: str, task: Task, methods: Sequence[str], rounds: int) -> None:
    """Milliseconds of the processor for one step at the chosen settings, all in turn; ensembles take several."""
    x, y = (part[: task.batch_size] for part in task.rows["train"])
    chosen = {row["method"]: row["settings"] for row in results.rows if (row["task"], row["part"]) == (name, "test")}
    steps: dict[str, Callable[[], None]] = {}
    for which in methods:
        if METHODS[which].n_members == 1:
            settings = chosen.get(which, METHODS[which].grid[0])
            run = METHODS[which].start(task.make(), len(task.rows["train"][0]), settings)
            steps[which] = lambda run=run: run.step(x, y, 0.5)
    times = interleaved(steps, rounds, settle=True, clock=time.process_time)
    for which, ms in times.items():
        results.add({"task": name, "method": which, "part": "step", "ms": ms, "ratio": ms / times["plain"]})


COLUMNS = {  # of the file, and how they are shown
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "auroc_entropy": "AUROC, entropy",
    "auroc_information": "AUROC, information",
    "train_seconds": "training, s",
}


def tables(results: Results) -> str:
    """A table in Markdown for each task: means over seeds, with standard deviations."""
    parts = []
    for name in dict.fromkeys(row["task"] for row in results.rows):
        header = ["method", *COLUMNS.values(), "step / plain"]
        rows = []
        for which in METHODS:
            own = [row for row in results.rows if (row["task"], row["method"]) == (name, which)]
            tested = [row for row in own if row["part"] == "test"]
            steps = [f"{row['ratio']:.2f}" for row in own if row["part"] == "step"]
            if tested:
                cells = [_mean_and_spread([row[column] for row in tested]) for column in COLUMNS]
                rows.append([which, *cells, *(steps[-1:] or [""])])
        parts.append(f"**{name}**\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {spread:.3f}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path)
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--times", action="store_true", help="time steps, train nothing")
    options.add_argument("--show", action="store_true", help="print what is in the file")
    options.add_argument("--page", type=Path, help="write the tables into this page, too")
    chosen: Any = options.parse_args()
    torch.set_num_threads(chosen.threads)
    results = Results(chosen.out)
    there = [name for name in chosen.methods if METHODS[name].needs is None or _is_there(METHODS[name].needs)]
    for name in () if chosen.show else chosen.tasks:
        task = TASKS[name](chosen.quick)
        if chosen.times:
            measure_times(results, name, task, there, 2 if chosen.quick else chosen.rounds)
        else:
            seeds, n_settings = (chosen.seeds[:1], 2) if chosen.quick else (chosen.seeds, None)
            measure(results, name, task, there, seeds, n_settings)
    if chosen.page:
        fill(chosen.page, "own loops", f"\n{tables(results)}\n")
    if chosen.json:
        print(json.dumps(results.rows))
    else:
        print(tables(results))
        missing = [METHODS[name].needs for name in chosen.methods if name not in there]
        if missing:
            print(f"\nleft out, for they are not installed: {', '.join(map(str, missing))}")


def _is_there(package: str | None) -> bool:
    return package is not None and importlib.util.find_spec(package) is not None


if __name__ == "__main__":
    main()
