"""Choose the estimators' defaults by validation inside training rows; no test row of any benchmark is read.

For each table the rows of its first standard training part are split again, three times 80 to 20. Every limit on √α,
split and member is a replica of one batched network, so that a whole row of limits costs one training run. One JSON
line per (settings, table, limit) is appended to the results file, and what is there already is not run again. Scores
are in units of the target's standard deviation, of the ensemble and of its first member alone.

    python lab/defaults.py --tables yacht,boston --noise input --max-noise 0.03,0.08,0.2 --steps 5000
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.model_selection import ShuffleSplit

from vmg.files import append_lines, read_lines
from vmg.fit.design import Standardiser
from vmg.metrics import interval_coverage, rmse
from vmg.prediction import Prediction, draw_functions
from vmg.variational import fitter as fitting
from vmg.variational.fitter import (
    LONG,
    STANDARD,
    Fitted,
    Fitter,
    GaussianNoise,
    Method,
    TrainingSet,
    matrix_gaussian_networks,
    predictions,
)
from vmg_paper.data import TABLES, load_table, standard_splits
from vmg_paper.experiments.results_file import Record

N_SPLITS = 3
N_DRAWS = 200
ACTIVATION = "relu"  # of lines that do not say
SIMULATED = {
    "friedman1": (make_friedman1, 1.0),
    "friedman2": (make_friedman2, 50.0),
    "friedman3": (make_friedman3, 0.1),
}


def training_rows(name: str, max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that may be looked at: the first standard training part of a benchmark, or a table that is none."""
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
    elif name in SIMULATED:
        make, noise = SIMULATED[name]
        X, y = make(n_samples=500, noise=noise, random_state=0)
    else:
        table = load_table(name)
        train, _ = standard_splits(name)[0]
        X, y = table.X[train], table.y[train]
    keep = np.random.default_rng(0).permutation(len(X))[:max_rows] if len(X) > max_rows else np.arange(len(X))
    return X[keep], y[keep]


def validate(name: str, settings: dict[str, Any], limits: list[float]) -> list[Record]:
    """One record for each limit."""
    X, y = training_rows(name, settings["max_rows"])
    splits = list(ShuffleSplit(N_SPLITS, test_size=0.2, random_state=1).split(X))
    fitting.NOISE_BALANCE = settings["balance"]
    members = settings["members"]
    networks = matrix_gaussian_networks((settings["hidden"],), settings["activation"], n_pseudo=settings["n_pseudo"])
    pairs = [(limit, split) for limit in limits for split in splits]
    tables = [Rows.of(X[train], y[train]) for _, (train, _) in pairs]
    choices = [[limit] * members for limit, _ in pairs]
    fitter = Fitter(
        Method(networks, GaussianNoise(settings["noise"] == "input"), lambda fitter, sets: choices),
        n_members=members,
        batch_size=settings["batch_size"] or None,
        learning_rate=settings["learning_rate_init"],
        budget=replace(LONG if members > 1 else STANDARD, fewest_steps=settings["steps"], most_steps=settings["steps"]),
        seed=1,
    )
    started = time.perf_counter()
    fitted = fitter.fit([one.encoded for one in tables])
    seconds = time.perf_counter() - started

    scores: dict[float, list[list[float]]] = {limit: [] for limit in limits}
    for one, rows, (limit, (_, held_out)) in zip(fitted, tables, pairs, strict=True):
        whole = rows.predict(one, X[held_out])
        scores[limit].append(
            [*_score(whole, y[held_out], y.std()), *_score(_first(whole, members), y[held_out], y.std())]
        )
    names = ("rmse", "log_likelihood", "coverage_90", "rmse_one", "log_likelihood_one", "coverage_90_one")
    return [
        {"table": name, "max_noise": limit, **settings, "seconds": round(seconds, 1)}
        | dict(zip(names, np.mean(scores[limit], 0).tolist(), strict=True))
        for limit in limits
    ]


@dataclass(frozen=True)
class Rows:
    """Training rows in the network's units, and the way back."""

    inputs: Standardiser
    targets: Standardiser
    encoded: TrainingSet

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray) -> Rows:
        inputs, targets = Standardiser.fit(X), Standardiser.fit(y[:, None])
        x, t = (
            torch.as_tensor(part, dtype=torch.float32) for part in (inputs.transform(X), targets.transform(y[:, None]))
        )
        return cls(inputs, targets, TrainingSet(x, t, None, targets.scale))

    def predict(self, fitted: Fitted, X: np.ndarray) -> Prediction:
        x = torch.as_tensor(self.inputs.transform(X))
        [standard] = predictions(fitted.likelihood, draw_functions(fitted.network, x, N_DRAWS, 1))
        loc, scale = self.targets.inverse(standard.loc), standard.scale * self.targets.scale
        return replace(standard, loc=loc, scale=scale, squeeze=True)


def _score(prediction: Prediction, y: np.ndarray, unit: float) -> tuple[float, float, float]:
    log_likelihood = float(prediction.log_prob(y).mean() + np.log(unit))
    return rmse(y, prediction.mean) / unit, log_likelihood, interval_coverage(y, prediction.interval(0.9))


def _first(prediction: Prediction, n_members: int) -> Prediction:
    """Prediction of the first member of an ensemble alone; draws of members take turns in the mixture."""
    parts = [np.broadcast_to(part, prediction.loc.shape)[::n_members] for part in (prediction.scale, prediction.df)]
    return Prediction(prediction.loc[::n_members], *parts, squeeze=prediction.squeeze)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/defaults.jsonl"))
    parser.add_argument("--tables", default=",".join([*TABLES[:-1], "diabetes", *SIMULATED]))
    parser.add_argument("--max-noise", default="0.01,0.03,0.08,0.2,0.5")
    parser.add_argument("--noise", choices=["input", "constant"], default="input")
    parser.add_argument("--balance", type=float, default=fitting.NOISE_BALANCE)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--activation", default=ACTIVATION)
    parser.add_argument("--n-pseudo", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=0, help="0: the estimator's own")
    parser.add_argument("--learning-rate-init", type=float, default=0.01)
    parser.add_argument("--max-rows", type=int, default=4_000, help="enough to rank settings, few enough to try many")
    settings = vars(parser.parse_args())
    out, tables, limits = (settings.pop(key) for key in ("out", "tables", "max_noise"))
    torch.set_num_threads(1)
    lines = read_lines(out)
    earlier = [{"activation": ACTIVATION, **record} for record in lines]
    done = [{key: record[key] for key in ("table", "max_noise", *settings)} for record in earlier]
    for name in tables.split(","):
        missing = [b for b in map(float, limits.split(",")) if {"table": name, "max_noise": b, **settings} not in done]
        earned = validate(name, settings, missing) if missing else []
        append_lines(out, earned)
        for record in earned:
            print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}), flush=True)


if __name__ == "__main__":
    main()
