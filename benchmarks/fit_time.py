"""Fit time with defaults against the estimators one would use otherwise, with accuracy beside the time.

Friedman's first function of 10 features with unit noise, at 500, 5,000 and 50,000 rows; scores on 5,000 fresh rows.
``GaussianProcessRegressor`` runs where its cubic cost allows, NGBoost where it is installed (extra ``peers``). Methods
take turns at each size, so that they share the machine's moods.

    python benchmarks/fit_time.py --json results/fit_time.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vmg import VMGRegressor

GP_LIMIT = 1_000  # rows; beyond, its n³ steps take minutes


def methods(n_rows: int) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "vmg": lambda: VMGRegressor(random_state=0),
        "MLPRegressor": lambda: make_pipeline(StandardScaler(), MLPRegressor(random_state=0)),
    }
    if n_rows <= GP_LIMIT:
        kernel = 1.0 * RBF(np.ones(10)) + WhiteKernel()
        found["GaussianProcessRegressor"] = lambda: GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    if importlib.util.find_spec("ngboost"):
        from ngboost import NGBRegressor

        found["NGBoost"] = lambda: NGBRegressor(verbose=False, random_state=0)
    return found


def log_likelihood(name: str, model: Any, X: np.ndarray, y: np.ndarray) -> float | None:
    if name == "vmg":
        return float(model.pred_dist(X).log_prob(y).mean())
    if name == "GaussianProcessRegressor":
        mean, std = model.predict(X, return_std=True)
        return float(stats.norm.logpdf(y, mean, std).mean())
    if name == "NGBoost":
        return float(model.pred_dist(X).logpdf(y).mean())
    return None  # a plain network has no density


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="500,5000,50000")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    X_test, y_test = make_friedman1(5_000, noise=1.0, random_state=1)
    rows = []
    print("| rows | method | fit seconds | over MLPRegressor | RMSE | log-likelihood |\n|---|---|---|---|---|---|")
    for n_rows in (int(size) for size in arguments.sizes.split(",")):
        X, y = make_friedman1(n_rows, noise=1.0, random_state=0)
        results = []
        for name, make in methods(n_rows).items():
            started = time.perf_counter()
            model = make().fit(X, y)
            seconds = time.perf_counter() - started
            error = float(np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2)))
            results.append(
                {
                    "rows": n_rows,
                    "method": name,
                    "seconds": seconds,
                    "rmse": error,
                    "log_likelihood": log_likelihood(name, model, X_test, y_test),
                }
            )
        plain = next(r["seconds"] for r in results if r["method"] == "MLPRegressor")
        for r in results:
            density = "" if r["log_likelihood"] is None else f"{r['log_likelihood']:.3f}"
            ratio = r["seconds"] / plain
            print(
                f"| {n_rows} | {r['method']} | {r['seconds']:.1f} | {ratio:.2f} | {r['rmse']:.3f} | {density} |",
                flush=True,
            )
        rows += results
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
