"""The recipe of ``VMGRegressor`` and ``VMGClassifier`` before and after its steps were fewer and larger.

Before: trials of 1,000 steps for five limits, then 4,000 steps on all rows, of 32 rows each up to 3,000 rows. After:
what the estimators do. Both are fitted in turn to the same rows in one process and one thread. Tables are the
development tables, training parts alone, at most 625 rows of which a fifth is held out, and Friedman's first function.

    VMG_DATA=... python lab/vmg_time.py --out lab/results/vmg_time.jsonl

`--show` prints the results again; see lab/README.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import pandas as pd
import regression_tables
import torch
from sklearn.datasets import make_friedman1
from sklearn.model_selection import train_test_split

from vmg import VMGClassifier, VMGRegressor
from vmg.files import append_lines, read_lines
from vmg.variational.fitter import Budget
from vmg_paper.data.download import find_file
from vmg_paper.experiments.results_file import Record

CLASSES = ("contraceptive", "crx", "german", "heart", "ionosphere", "phoneme", "pima", "segment", "sonar", "spambase",
           "splice", "vehicle")  # fmt: skip
MAX_ROWS = 625


class Longer:
    """The former recipe of a single network."""

    def _budget(self) -> Budget:
        return Budget(4_000, 10_000, batches=64)


class LongerRegressor(Longer, VMGRegressor):
    """``VMGRegressor`` as it was."""


class LongerClassifier(Longer, VMGClassifier):
    """``VMGClassifier`` as it was."""


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that may be looked at: Friedman's, or a random part of a table's training rows; words become indicators."""
    if name.startswith("friedman"):
        return make_friedman1(int(name.removeprefix("friedman-")) + 125, noise=1.0, random_state=0)
    if name in CLASSES:
        file = find_file(f"tables/classification/{name}/data.csv.gz")
        assert file is not None, "the tables must be in the folder VMG_DATA"
        frame = pd.read_csv(file)
        y = frame.pop("class").astype(str).to_numpy()
        X = pd.get_dummies(frame).to_numpy(np.float64)
        train = np.random.default_rng(1).permutation(len(y))[: round(0.9 * len(y))]  # the rest is for testing
    else:
        X, y = regression_tables.load(name)
        train, _ = regression_tables.splits(name, 1)[0]
    kept = np.random.default_rng(0).permutation(train)[:MAX_ROWS]
    return X[kept], y[kept]


def compare(name: str, seed: int) -> Record:
    """Processor seconds and held-out log-likelihood of both recipes."""
    X, y = rows_of(name)
    classes = name in CLASSES
    X, X_out, y, y_out = train_test_split(X, y, test_size=0.2 if "fried" not in name else 125, random_state=1)
    line: Record = {"experiment": "vmg_time", "table": name, "seed": seed, "rows": len(X)}
    unit = 0.0 if classes else float(np.log(y.std()))
    kinds = (LongerClassifier, VMGClassifier) if classes else (LongerRegressor, VMGRegressor)
    for when, kind in zip(("before", "after"), kinds, strict=True):
        started = time.process_time()
        model = kind(random_state=seed).fit(X, y)
        line[f"seconds_{when}"] = round(time.process_time() - started, 2)
        line[f"log_score_{when}"] = round(float(model.pred_dist(X_out).log_prob(y_out).mean()) + unit, 4)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", default=",".join(["friedman-500", *regression_tables.OTHERS, *CLASSES]))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("lab/results/vmg_time.jsonl"))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.show:
        make_warm = VMGRegressor(max_iter=1, random_state=0)
        make_warm.fit(*make_friedman1(40, random_state=0))  # imports are no part of a fit
        for seed in range(options.seeds):
            for name in options.tables.split(","):
                line = compare(name, seed)
                append_lines(options.out, [line])
                print(line, flush=True)
    lines = read_lines(options.out)
    for kind, some in (("numbers", [r for r in lines if r["table"] not in CLASSES]),
                       ("classes", [r for r in lines if r["table"] in CLASSES])):  # fmt: skip
        if some:
            gain = np.array([line["log_score_after"] - line["log_score_before"] for line in some])
            seconds = [np.mean([line[f"seconds_{name}"] for line in some]) for name in ("before", "after")]
            print(
                f"{kind}: {len(some)} fits, {seconds[0]:.1f} s before and {seconds[1]:.1f} s after; "
                f"log-likelihood after less before {gain.mean():+.3f} ± {gain.std(ddof=1) / len(gain) ** 0.5:.3f}"
            )


if __name__ == "__main__":
    main()
