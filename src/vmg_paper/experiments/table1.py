"""Table 1: test RMSE and log-likelihood on the regression tables, standard splits [LW16, §4.1].

All splits of a table train as one batched network. Only training rows reach ``fit``; test rows are read once, to score.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import vmg
from vmg import metrics
from vmg_paper.baselines.splits import fit_splits
from vmg_paper.data import load_table, standard_splits
from vmg_paper.experiments.ablations import ABLATIONS
from vmg_paper.experiments.published import BEST, BEST_ONE_LAYER, PAPER_BASELINES, PAPER_TABLE1
from vmg_paper.experiments.results_file import Record, Watch, markdown, mean_and_error, read_experiment, unwatched
from vmg_paper.experiments.table1_methods import TABLE_METHODS

__all__ = ["Task", "config", "execute", "render", "score", "summarise", "tasks"]


class Task(NamedTuple):
    """The splits of one table that a method still has to run; they train as one batched network where it can."""

    method: str
    dataset: str
    splits: tuple[int, ...]
    seed: int
    experiment: str = "table1"


METHODS = {"table1": TABLE_METHODS, "ablations": ABLATIONS}


def tasks(
    datasets: Sequence[str],
    methods: Sequence[str],
    *,
    out: Path,
    n_splits: int | None = None,
    seed: int = 0,
    experiment: str = "table1",
) -> list[Task]:
    """The tasks that ``out`` does not answer yet."""
    done = {(r["method"], r["dataset"], r["split"], r["seed"]) for r in read_experiment(out, experiment)}
    left = []
    for dataset in datasets:
        splits = range(len(standard_splits(dataset, n_splits)))
        for method in methods:
            missing = tuple(k for k in splits if (method, dataset, k, seed) not in done)
            together = missing and METHODS[experiment][method].together
            for part in [missing] if together else [(k,) for k in missing]:
                left.append(Task(method, dataset, part, seed, experiment))
    return left


def execute(task: Task, watch: Watch = unwatched) -> list[Record]:
    """Run a task: one record for each of its splits."""
    table, splits = load_table(task.dataset), standard_splits(task.dataset)
    recipe = METHODS[task.experiment][task.method]
    estimator = recipe.make(task.dataset, task.seed)
    started = time.perf_counter()
    with watch(f"{task.dataset}: {task.method}") as tell:
        fitted = fit_splits(estimator, table.X, table.y, [splits[k] for k in task.splits], callbacks=[tell])
    seconds = time.perf_counter() - started
    return [
        {
            "experiment": task.experiment,
            "method": task.method,
            "dataset": task.dataset,
            "split": k,
            "seed": task.seed,
            **score(model, table.X[splits[k][1]], table.y[splits[k][1]]),
            "seconds": round(seconds / len(task.splits), 3),
            "steps": model.n_steps_,
            "config": config(estimator),
            "version": vmg.__version__,
        }
        for model, k in zip(fitted, task.splits, strict=True)
    ]


def config(estimator: Any) -> dict[str, Any]:
    """Parameters of an estimator for the record; a baseline is named, and its settings stand beside the others."""
    parameters = {key: value for key, value in estimator.get_params().items() if key != "verbose"}
    if "baseline" in parameters:
        baseline = parameters.pop("baseline")
        parameters |= {"baseline": type(baseline).__name__, **dataclasses.asdict(baseline)}
    return parameters


def score(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """All scores of one fitted model on test rows."""
    prediction = model.pred_dist(X)
    interval = prediction.interval(0.9)
    return {
        "rmse": metrics.rmse(y, prediction.mean),
        "log_likelihood": metrics.log_likelihood(prediction.log_prob(y)),
        "coverage_90": metrics.interval_coverage(y, interval),
        "interval_width_90": metrics.interval_width(interval),
        "crps": metrics.crps_from_samples(prediction.sample(200, 0), y),
    }


SCORES = ("rmse", "log_likelihood", "coverage_90", "interval_width_90", "crps", "seconds")
BESIDE = ("paper", "one layer", "any model")
"""The paper's figure for the method, or for its own where it has none; the best of others with one hidden layer, and
with any model."""

HEADER = ("table", "method", "splits", "RMSE", *BESIDE, "log-likelihood", *BESIDE, "coverage 90 %", "s per split")


def summarise(lines: Sequence[Record]) -> list[Record]:
    """Mean and standard error over splits for each (dataset, method)."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for line in lines:
        groups[line["dataset"], line["method"]].append(line)
    summary = []
    for (dataset, method), members in groups.items():
        row: Record = {"dataset": dataset, "method": method, "splits": len(members)}
        for score in SCORES:
            row[score], row[f"{score}_error"] = mean_and_error([member[score] for member in members])
        summary.append(row)
    return sorted(summary, key=lambda row: (row["dataset"], row["method"]))


def render(summary: Sequence[Record]) -> str:
    """The summary as a table; a figure of others is marked + where ours, rounded as theirs, is no worse, else −."""
    return markdown(HEADER, list(map(_cells, summary)))


def _cells(row: Record) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["method"],
        str(row["splits"]),
        *_beside(row, "rmse", 0, sign=-1),
        *_beside(row, "log_likelihood", 1, sign=1),
        f"{row['coverage_90']:.3f}",
        f"{row['seconds']:.1f}",
    )


def _beside(row: Record, score: str, column: int, sign: int) -> tuple[str, ...]:
    """Ours with its standard error, then each figure to compare with."""
    mean, error = row[score], row[f"{score}_error"]
    ours = f"{mean:.4f} ± {error:.4f}" if abs(mean) < 0.1 else f"{mean:.3f} ± {error:.3f}"
    others = []
    for table in (PAPER_BASELINES.get(row["method"], PAPER_TABLE1), BEST_ONE_LAYER, BEST):
        if row["dataset"] not in table:
            others.append("")
            continue
        theirs = table[row["dataset"]][column].mean
        digits = max(2, len(f"{theirs:g}".partition(".")[2]))
        better = sign * (round(mean, digits) - theirs) >= 0
        others.append(f"{theirs:.{digits}f} {'+' if better else '−'}")
    return ours, *others
