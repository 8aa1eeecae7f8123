"""Table 1: test RMSE and log-likelihood on the regression tables, standard splits [LW16, §4.1].

All splits of a table train as one batched network. Only training rows reach ``fit``; test rows are read once, to score.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vmg import metrics
from vmg.data import load_table, standard_splits
from vmg.estimators import VMGRegressor, fit_splits
from vmg.experiments import records
from vmg.experiments.recipes import METHODS

__all__ = ["run"]


def run(
    datasets: Sequence[str],
    methods: Sequence[str],
    *,
    out: Path,
    n_splits: int | None = None,
    seed: int = 0,
    version: str,
) -> Iterator[records.Record]:
    """Run what is not in ``out`` yet, appending and yielding one record per (method, dataset, split)."""
    done = {
        (r["method"], r["dataset"], r["split"], r["seed"]) for r in records.read(out) if r["experiment"] == "table1"
    }
    for dataset in datasets:
        table = load_table(dataset)
        splits = standard_splits(dataset)[:n_splits]
        for method in methods:
            missing = [k for k in range(len(splits)) if (method, dataset, k, seed) not in done]
            if not missing:
                continue
            estimator = METHODS[method].make(dataset, seed)
            started = time.perf_counter()
            fitted = fit_splits(estimator, table.X, table.y, [splits[k] for k in missing])
            seconds = time.perf_counter() - started
            earned = [
                {
                    "experiment": "table1",
                    "method": method,
                    "dataset": dataset,
                    "split": k,
                    "seed": seed,
                    **score(model, table.X[splits[k][1]], table.y[splits[k][1]]),
                    "seconds": round(seconds / len(missing), 3),
                    "steps": model.history_.last.step,
                    "config": {key: value for key, value in estimator.get_params().items() if key != "verbose"},
                    "version": version,
                }
                for model, k in zip(fitted, missing, strict=True)
            ]
            records.append(out, earned)
            yield from earned


def score(model: VMGRegressor, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
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
