"""Do networks know what they do not know? Gaps and tails of toys and tables, with results as JSON lines.

Toys: x₁ is in [-2, -1] or [1, 2], other inputs are in [-2, 2], y = sin 2.5 x₁ + x₁/2 + noise of 0.1. The gap is x₁ in
[-0.5, 0.5]. Tables: the middle third of a feature (gap) or its top fifth (tail) is left out of training. A fifth of the
other rows is held out too, as rows inside the data. Up to three features a table, those of a fixed seed among features
with more than eight values and ties that allow it. Of longer tables, ``--rows`` rows of a fixed seed are taken.

What is in the results file already is not run again. All tables have one split before any has a second.

    python benchmarks/ignorance.py --minutes 25          # measure, into results/ignorance.jsonl
    python benchmarks/ignorance.py --show                # print the tables, and write them into docs/ignorance.md
    python benchmarks/ignorance.py --figure              # draw docs/ignorance.png and docs/ignorance_tables.png
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignorance_report import draw_tables, draw_toys, table_tables, toy_table
from numpy.typing import NDArray
from regression_tables import ALL, load
from regressors import Make, methods
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from vmg.files import read_lines
from vmg.metrics import auroc, interval_coverage, rmse
from vmg_paper.baselines import HMCRegressor
from vmg_paper.experiments.results_file import Record, fill, measure_missing

Array = NDArray[np.float64]
NOISE = 0.1
SIZES = {"1-d, few": (40, 1), "1-d": (100, 1), "2-d": (200, 2), "5-d": (400, 5)}  # rows and inputs of the toys
TOY_METHODS = ("table", "GP", "deep ensemble", "vmg")
HMC_TOY = "1-d, few"
TABLE_METHODS = ("table", "GP", "deep ensemble", "linear")
GRID = np.linspace(-3, 3, 121)
MIN_VALUES, FEATURES, INSIDE = 8, 3, 0.2
PARTS = ("gap", "tail")


# -- toys -------------------------------------------------------------------------------------------------------------


def curve(x: Array) -> Array:
    """The function behind the toys, of the first input alone."""
    return np.sin(2.5 * x[:, 0]) + x[:, 0] / 2


def toy_rows(n: int, d: int, seed: int) -> tuple[Array, Array]:
    """Training rows on both sides of the gap."""
    rng = np.random.default_rng([seed, n, d])
    x = rng.uniform(-2, 2, (n, d))
    x[:, 0] = rng.choice([-1, 1], n) * rng.uniform(1, 2, n)
    return x, curve(x) + NOISE * rng.standard_normal(n)


def gap_rows(d: int) -> Array:
    """Rows inside the gap."""
    x = np.random.default_rng(0).uniform(-2, 2, (500, d))
    x[:, 0] = np.linspace(-0.5, 0.5, 500)
    return x


def measure_toy(make: Make, toy: str, seed: int) -> Record:
    """Ignorance in the gap over that at the rows, and the error there over what is stated."""
    n, d = SIZES[toy]
    x, y = toy_rows(n, d, seed)
    model, seconds = fitted(make, x, y)
    gap, rows = model.pred_dist(gap_rows(d)), model.pred_dist(x)
    found = {
        "seconds": seconds,
        "gap_ratio": float(gap.epistemic_std.mean() / rows.epistemic_std.mean()),
        "error_over_std": float(rmse(curve(gap_rows(d)), gap.mean) / np.sqrt(np.square(gap.epistemic_std).mean())),
    }
    if isinstance(model, HMCRegressor):
        found["rhat"] = model.posterior_.rhat
    if toy == HMC_TOY and seed == 0:  # what the picture shows
        line = model.pred_dist(GRID[:, None])
        found["line"] = [np.round(values, 4).tolist() for values in (line.mean, line.epistemic_std, line.std)]
    return found


# -- tables -----------------------------------------------------------------------------------------------------------


def left_out(values: Array, part: str) -> NDArray[np.bool_]:
    """Rows with the feature in its middle third, or in its top fifth."""
    if part == "tail":
        return values > np.quantile(values, 0.8)
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    return (low <= values) & (values <= high)


def can_be_left_out(values: Array) -> bool:
    """Whether a feature has enough values, and ties that leave a gap with rows on both sides and a tail."""
    if len(np.unique(values)) <= MIN_VALUES:
        return False
    gap, tail = left_out(values, "gap"), left_out(values, "tail")
    sides = (values < values[gap].min()).mean(), (values > values[gap].max()).mean()
    return bool(gap.mean() <= 0.5 and min(sides) >= 0.1 and tail.mean() >= 0.05)


def sample_of(name: str, max_rows: int) -> tuple[Array, Array]:
    X, y = load(name)
    some = np.random.default_rng(0).permutation(len(X))[:max_rows]
    return X[some], y[some]


def features_of(X: Array) -> list[int]:
    """Up to three features of a fixed seed."""
    order = np.random.default_rng(1).permutation(X.shape[1])
    return [int(j) for j in order if can_be_left_out(X[:, j])][:FEATURES]


def measure_table(make: Make, X: Array, y: Array, feature: int, part: str) -> Record:
    """Scores on left-out rows; errors and log-likelihoods in units of the training targets' standard deviation."""
    out = left_out(X[:, feature], part)
    outside = np.flatnonzero(out)
    others = np.random.default_rng([2, feature]).permutation(np.flatnonzero(~out))
    n_inside = round(INSIDE * len(others))
    inside, train = others[:n_inside], others[n_inside:]
    model, seconds = fitted(make, X[train], y[train])
    unit = y[train].std()
    there, here = model.pred_dist(X[outside]), model.pred_dist(X[inside])
    densities = there.log_prob(y[outside]) + np.log(unit)
    return {
        "seconds": seconds,
        "n_train": len(train),
        "n_outside": len(outside),
        "n_inside": len(inside),
        "auroc": auroc(here.epistemic_std, there.epistemic_std),
        "coverage_90": interval_coverage(y[outside], there.interval(0.9)),
        "log_likelihood": float(densities.mean()),
        "worst_row": float(densities.min()),
        "rmse": float(rmse(y[outside], there.mean) / unit),
        "inside_coverage_90": interval_coverage(y[inside], here.interval(0.9)),
        "inside_log_likelihood": float((here.log_prob(y[inside]) + np.log(unit)).mean()),
        "inside_rmse": float(rmse(y[inside], here.mean) / unit),
    }


# -- running ----------------------------------------------------------------------------------------------------------


def fitted(make: Make, X: Array, y: Array) -> tuple[Any, float]:
    """A fitted regressor and its CPU seconds."""
    started = time.process_time()
    model = make(len(X)).fit(X, y)
    return model, round(time.process_time() - started, 3)


def toy_tasks(seeds: int) -> Iterator[Record]:
    for seed in range(seeds):
        for toy in SIZES:
            for method in TOY_METHODS + ("HMC",) * (toy == HMC_TOY and seed == 0):
                yield {"part": "toy", "method": method, "table": toy, "split": seed}


def table_tasks(names: list[str], max_rows: int, n_features: int) -> Iterator[Record]:
    """Everything of one split of a table before the next table, all tables before the next split."""
    for split in range(n_features):
        for part in PARTS:
            for name in names:
                features = features_of(sample_of(name, max_rows)[0])
                if split >= len(features):
                    continue
                for method in TABLE_METHODS:
                    task = {"part": part, "method": method, "table": name, "split": split}
                    yield {**task, "feature": features[split], "rows": max_rows}


def run_task(task: Record, makers: Mapping[str, Make]) -> Record:
    """Scores of one fit."""
    make = makers[task["method"]]
    if task["part"] == "toy":
        return measure_toy(make, task["table"], task["split"])
    return measure_table(make, *sample_of(task["table"], task["rows"]), task["feature"], task["part"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/ignorance.jsonl"))
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="the folder of ignorance.md and its pictures")
    parser.add_argument("--tables", default=",".join(ALL))
    parser.add_argument("--rows", type=int, default=600, help="of a table, at most")
    parser.add_argument("--seeds", type=int, default=3, help="of each toy")
    parser.add_argument("--parts", default="toy,gap,tail", help="to run")
    parser.add_argument("--methods", default="", help="to run; all unless given")
    parser.add_argument("--features", type=int, default=FEATURES, help="of a table, at most")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny settings: shows that it runs, measures nothing")
    parser.add_argument("--show", action="store_true", help="print the tables and write them into the page")
    parser.add_argument("--figure", action="store_true", help="draw both pictures")
    a = parser.parse_args()
    if a.show or a.figure:
        records = [r for r in read_lines(a.out) if r.get("rows") in (None, a.rows)]
        if a.show:
            tables = {"toys": toy_table(records), **table_tables(records)}
            print("\n\n".join(tables.values()))
            for name, text in tables.items():
                fill(a.docs / "ignorance.md", name, text)
        if a.figure:
            draw_toys(records, toy_rows(*SIZES[HMC_TOY], 0), GRID, curve(GRID[:, None]), a.docs / "ignorance.png")
            draw_tables(records, a.docs / "ignorance_tables.png")
        return
    torch.set_num_threads(a.threads)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    names = [name for name in a.tables.split(",") if name]
    parts, chosen = a.parts.split(","), a.methods.split(",") if a.methods else list(methods())
    tasks = itertools.chain(toy_tasks(a.seeds), table_tasks(names, a.rows, a.features))
    makers = methods(quick=a.quick)
    with threadpool_limits(a.threads):
        wanted = (task for task in tasks if task["part"] in parts and task["method"] in chosen)
        measure_missing(((task, partial(run_task, task, makers)) for task in wanted), a.out, a.minutes)


if __name__ == "__main__":
    main()
