"""Fit time with defaults against the estimators one would use otherwise, with accuracy beside the time.

Friedman's first function of 10 features with unit noise, at 500, 5,000 and 50,000 rows; scores on 5,000 fresh rows.
``GaussianProcessRegressor`` runs up to 1,000 rows and NGBoost, where it is installed (extra ``peers``), up to 10,000:
beyond, they take minutes. One fit each, one method after another.

    python benchmarks/fit_time.py [--json] [--sizes 500 5000 50000]
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Row, parser, show
from scipy import stats
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vmg import TableRegressor

GP_LIMIT, NGBOOST_LIMIT = 1_000, 10_000  # rows
COLUMNS = {
    "rows": "{rows:,}",
    "method": "{method}",
    "fit, s": "{seconds:.1f}",
    "over MLPRegressor": "{ratio:.2f}×",
    "RMSE": "{rmse:.3f}",
    "log-likelihood": "{density}",
}


def methods(n_rows: int, *, quick: bool) -> dict[str, Callable[[], Any]]:
    """Estimators by name, with their defaults unless it must be quick."""
    ours: dict[str, Any] = {"max_iter": 1, "n_members": 2, "hidden_layer_sizes": 4} if quick else {}
    plain, trees = ({"max_iter": 1}, {"n_estimators": 2}) if quick else ({}, {})
    found: dict[str, Callable[[], Any]] = {
        "table": lambda: TableRegressor(random_state=0, **ours),
        "MLPRegressor": lambda: make_pipeline(StandardScaler(), MLPRegressor(random_state=0, **plain)),
    }
    if n_rows <= GP_LIMIT:
        kernel = 1.0 * RBF(np.ones(10)) + WhiteKernel()
        found["GaussianProcessRegressor"] = lambda: GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    if n_rows <= NGBOOST_LIMIT and importlib.util.find_spec("ngboost"):
        from ngboost import NGBRegressor

        found["NGBoost"] = lambda: NGBRegressor(verbose=False, random_state=0, **trees)
    return found


def log_likelihood(name: str, model: Any, X: np.ndarray, y: np.ndarray) -> float | None:
    if name == "table":
        return float(model.pred_dist(X).log_prob(y).mean())
    if name == "GaussianProcessRegressor":
        mean, std = model.predict(X, return_std=True)
        return float(stats.norm.logpdf(y, mean, std).mean())
    if name == "NGBoost":
        return float(model.pred_dist(X).logpdf(y).mean())
    return None  # a plain network has no density


def measure(sizes: list[int], n_test: int, threads: int, *, quick: bool = False) -> list[Row]:
    torch.set_num_threads(threads)
    X_test, y_test = make_friedman1(n_test, noise=1.0, random_state=1)
    rows: list[Row] = []
    for n_rows in sizes:
        X, y = make_friedman1(n_rows, noise=1.0, random_state=0)
        results: list[Row] = []
        for name, make in methods(n_rows, quick=quick).items():
            started = time.perf_counter()
            model = make().fit(X, y)
            seconds = time.perf_counter() - started
            error = float(np.sqrt(np.mean((model.predict(X_test) - y_test) ** 2)))
            density = log_likelihood(name, model, X_test, y_test)
            results.append({"rows": n_rows, "method": name, "seconds": seconds, "rmse": error})
            results[-1] |= {"log_likelihood": density, "threads": threads}
        plain = next(row["seconds"] for row in results if row["method"] == "MLPRegressor")
        rows += [{**row, "ratio": row["seconds"] / plain} for row in results]
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[500, 5_000, 50_000])
    a = options.parse_args()
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    rows = measure([60], 50, a.threads, quick=True) if a.quick else measure(a.sizes, 5_000, a.threads)
    if not a.json:
        for row in rows:
            row["density"] = "" if row["log_likelihood"] is None else f"{row['log_likelihood']:.3f}"
    show(rows, COLUMNS, as_json=a.json)


if __name__ == "__main__":
    main()
