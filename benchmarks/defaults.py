"""Choose the estimators' defaults by validation inside training rows; no test row of any benchmark is read.

For each table the rows of its first standard training part are split again, five times 80 to 20. Every candidate is a
set of changes to ``VMGRegressor``; its five fits train as one batched network. One JSON line per (candidate, table) is
appended to the results file, and what is there already is not run again.

    python benchmarks/defaults.py --out results/defaults.jsonl --candidates base,members5
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.model_selection import ShuffleSplit

from vmg import VMGRegressor
from vmg.data import TABLES, load_table, standard_splits
from vmg.estimators import fit_splits
from vmg.metrics import interval_coverage, rmse

MAX_ROWS = 4_000  # of a table: enough to rank candidates, small enough to try many
CANDIDATES: dict[str, dict[str, Any]] = {"base": {}}


def parse_candidate(text: str) -> tuple[str, dict[str, Any]]:
    """A name of CANDIDATES, or changes spelled out as ``max_noise=0.2;noise='input'``."""
    if text in CANDIDATES:
        return text, CANDIDATES[text]
    changes = {}
    for part in text.split(";"):
        key, value = part.split("=", 1)
        changes[key] = eval(value, {}, {})  # the developer's own command line
    return text, changes


def tables() -> list[str]:
    return [*TABLES[:-1], "diabetes", "friedman1", "friedman2", "friedman3"]


def training_rows(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that may be looked at: the first standard training part of a benchmark, or a table that is none."""
    if name == "diabetes":
        return load_diabetes(return_X_y=True)
    if name.startswith("friedman"):
        make = {"friedman1": make_friedman1, "friedman2": make_friedman2, "friedman3": make_friedman3}[name]
        noise = {"friedman1": 1.0, "friedman2": 50.0, "friedman3": 0.1}[name]
        return make(n_samples=500, noise=noise, random_state=0)
    table = load_table(name)
    train, _ = standard_splits(name)[0]
    return table.X[train], table.y[train]


def validate(changes: dict[str, Any], name: str, n_splits: int, seed: int) -> dict[str, Any]:
    X, y = training_rows(name)
    if len(X) > MAX_ROWS:
        keep = np.random.default_rng(0).permutation(len(X))[:MAX_ROWS]
        X, y = X[keep], y[keep]
    splits = list(ShuffleSplit(n_splits, test_size=0.2, random_state=1).split(X))
    started = time.perf_counter()
    fitted = fit_splits(VMGRegressor(random_state=seed, **changes), X, y, splits)
    seconds = time.perf_counter() - started
    rows = []
    for model, (_, held_out) in zip(fitted, splits, strict=True):
        prediction, target = model.pred_dist(X[held_out]), y[held_out]
        scale = y.std()
        rows.append(
            (
                rmse(target, prediction.mean) / scale,
                prediction.log_prob(target).mean() + np.log(scale),
                interval_coverage(target, prediction.interval(0.9)),
            )
        )
    error, log_likelihood, coverage = np.mean(rows, axis=0)
    return {
        "rmse": float(error),
        "log_likelihood": float(log_likelihood),
        "coverage_90": float(coverage),
        "elbo": fitted[0].history_.last.elbo,
        "seconds": seconds,
        "steps": fitted[0].history_.last.step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/defaults.jsonl"))
    parser.add_argument("--candidates", default="base")
    parser.add_argument("--tables", default=",".join(tables()))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if arguments.out.exists():
        for line in arguments.out.read_text().splitlines():
            record = json.loads(line)
            done.add((record["candidate"], record["table"]))
    for text in arguments.candidates.split(","):
        candidate, changes = parse_candidate(text)
        for name in arguments.tables.split(","):
            if (candidate, name) in done:
                continue
            record = {
                "candidate": candidate,
                "table": name,
                **validate(changes, name, arguments.splits, arguments.seed),
            }
            with arguments.out.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}, flush=True)


if __name__ == "__main__":
    main()
