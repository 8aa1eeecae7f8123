"""Twenty splits of a table as one batched network, against one fit after another.

A table of Boston's size, made up; both ways run the same number of steps for every split.

    python benchmarks/replicas.py [--json] [--splits 20] [--epochs 50] [--rounds 3]
"""

from __future__ import annotations

import numpy as np
import torch
from measuring import Row, interleaved, parser, show
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.model_selection import ShuffleSplit

from vmg.variational import VMGRegressor
from vmg_paper.baselines.splits import fit_splits

ROWS, FEATURES = 506, 13  # Boston's
COLUMNS = {
    "splits": "{splits}",
    "steps each": "{steps}",
    "one batch, s": "{together_s:.2f}",
    "one after another, s": "{apart_s:.2f}",
    "ratio": "{times:.2f}×",
    "goal": "{goal}",
    "R², batch": "{together_r2:.3f}",
    "R², apart": "{apart_r2:.3f}",
}


def measure(n_splits: int, epochs: int, rounds: int, threads: int, n_rows: int) -> list[Row]:
    torch.set_num_threads(threads)
    X, y = make_friedman1(n_rows, FEATURES, noise=1.0, random_state=0)
    splits = list(ShuffleSplit(n_splits, test_size=0.1, random_state=0).split(X))
    estimator = VMGRegressor(max_noise=0.2, batch_size=32, max_iter=epochs, random_state=0)
    clone(estimator).set_params(max_iter=1).fit(X, y)  # what is loaded at first use
    fitted: dict[str, list[VMGRegressor]] = {}

    def together() -> None:
        fitted["together"] = fit_splits(estimator, X, y, splits)

    def apart() -> None:
        fitted["apart"] = [clone(estimator).fit(X[train], y[train]) for train, _ in splits]

    medians = interleaved({"together": together, "apart": apart}, rounds, warm_up=0)
    score = {
        name: float(np.mean([m.score(X[test], y[test]) for m, (_, test) in zip(models, splits, strict=True)]))
        for name, models in fitted.items()
    }
    return [
        {
            "splits": n_splits,
            "rows": n_rows,
            "steps": fitted["together"][0].history_.last.step,
            "together_s": medians["together"] / 1e3,
            "apart_s": medians["apart"] / 1e3,
            "times": medians["apart"] / medians["together"],
            "goal": ">= 8",
            "together_r2": score["together"],
            "apart_r2": score["apart"],
            "threads": threads,
        }
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--splits", type=int, default=20)
    options.add_argument("--epochs", type=int, default=50)
    options.add_argument("--rounds", type=int, default=3)
    a = options.parse_args()
    n_rows = ROWS
    if a.quick:
        n_rows, a.splits, a.epochs, a.rounds = 80, 2, 1, 1
    rows = measure(a.splits, a.epochs, a.rounds, a.threads, n_rows)
    show(rows, COLUMNS, as_json=a.json)


if __name__ == "__main__":
    main()
