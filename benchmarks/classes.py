"""Log loss of classifiers on the development tables, and whether they doubt digits of classes they have never seen.

Twelve tables (``VMG_DATA/tables/classification``, categories one-hot, holes at the median), the first folds of a
stratified four-fold split, at most 2,500 rows of each; and scikit-learn's digits with two classes left out of training,
told from the others by mutual information (AUROC). CatBoost takes part where it is installed; ``VMGClassifier``
does with ``--vmg``. One JSON line is appended per fit, so a killed run resumes.

    python benchmarks/classes.py [--folds 2] [--out results/classes.jsonl] [--vmg] [--show]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measuring import print_table
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vmg import TableClassifier
from vmg.variational import VMGClassifier
from vmg_paper.experiments.results_file import Record, measure_missing

MOST_ROWS = 2_500
LEFT_OUT = ((3, 8), (1, 7), (0, 6))  # digits that training does not see
LEAST = 1e-12  # probability that a log loss counts
FAR = 100.0


class MLPEnsemble:
    """Five plain networks: a deep ensemble of classifiers."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> MLPEnsemble:
        networks = [make_pipeline(StandardScaler(), MLPClassifier((100,), random_state=seed)) for seed in range(5)]
        self.networks = [network.fit(X, y) for network in networks]
        self.classes_ = self.networks[0].classes_
        return self

    def samples(self, X: np.ndarray) -> np.ndarray:
        return np.stack([network.predict_proba(X) for network in self.networks])

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return self.samples(X).mean(0)


def methods(*, vmg: bool) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "table": lambda: TableClassifier(random_state=0),
        "deep ensemble": MLPEnsemble,
        "gradient boosting": lambda: HistGradientBoostingClassifier(random_state=0),
    }
    if importlib.util.find_spec("catboost"):
        from catboost import CatBoostClassifier

        found["CatBoost"] = lambda: CatBoostClassifier(
            verbose=False, random_seed=0, thread_count=1, allow_writing_files=False
        )
    if vmg:
        found["vmg"] = lambda: VMGClassifier(random_state=0)
    return found


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    frame = pd.read_csv(folder / "data.csv.gz")
    y = np.unique(frame["class"].astype(str), return_inverse=True)[1]
    X = pd.get_dummies(frame.drop(columns="class")).astype(float)
    return X.fillna(X.median()).to_numpy(), y


def mutual_information(model: Any, X: np.ndarray) -> np.ndarray:
    if isinstance(model, MLPEnsemble):
        p = model.samples(X)
        entropy = -(p.mean(0) * np.log(np.maximum(p.mean(0), LEAST))).sum(-1)
        return entropy + (p * np.log(np.maximum(p, LEAST))).sum(-1).mean(0)
    return model.pred_dist(X).mutual_information


def fit_table(make: Callable[[], Any], X: np.ndarray, y: np.ndarray, fold: int) -> Record:
    train, test = list(StratifiedKFold(4, shuffle=True, random_state=0).split(X, y))[fold]
    started = time.process_time()
    model = make().fit(X[train], y[train])
    seconds = time.process_time() - started
    p = model.predict_proba(X[test])
    centre = X[train].mean(0)
    far = model.predict_proba(centre + FAR * (X[test] - centre))
    chosen = p[np.arange(len(test)), np.searchsorted(model.classes_, y[test])]
    return {
        "log_loss": -float(np.log(np.maximum(chosen, LEAST)).mean()),
        "accuracy": float((model.classes_[p.argmax(1)] == y[test]).mean()),
        "confidence": float(p.max(1).mean()),
        "confidence_far": float(far.max(1).mean()),
        "seconds": round(seconds, 2),
    }


def fit_digits(make: Callable[[], Any], left_out: tuple[int, ...]) -> Record:
    X, y = load_digits(return_X_y=True)
    known = ~np.isin(y, left_out)
    X_train, X_test, y_train, y_test = train_test_split(X[known], y[known], random_state=0, stratify=y[known])
    started = time.process_time()
    model = make().fit(X_train, y_train)
    seconds = time.process_time() - started
    inside, outside = mutual_information(model, X_test), mutual_information(model, X[~known])
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    accuracy = float((model.classes_[model.predict_proba(X_test).argmax(1)] == y_test).mean())
    auroc = float(roc_auc_score(truth, np.r_[inside, outside]))
    return {"auroc": auroc, "accuracy": accuracy, "seconds": round(seconds, 2)}


def tasks(folds: int, *, vmg: bool) -> Iterator[tuple[Record, Callable[[], Record]]]:
    """Keys of records, and what measures them: every table once before any a second time."""
    makers = methods(vmg=vmg)
    for left_out in LEFT_OUT:
        for name in ("table", "deep ensemble"):
            key = {"experiment": "digits", "method": name, "left_out": list(left_out)}
            yield key, lambda name=name, left_out=left_out: fit_digits(makers[name], left_out)
    root = Path(os.environ["VMG_DATA"]) / "tables" / "classification"
    for fold in range(folds):
        for folder in sorted(root.iterdir()):
            X, y = load(folder)
            rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
            X, y = X[rows], y[rows]
            for name, make in makers.items():
                key = {"experiment": "classes", "method": name, "table": folder.name, "fold": fold}
                yield key, lambda make=make, X=X, y=y, fold=fold: fit_table(make, X, y, fold)


def show(records: list[Record]) -> None:
    tables = [r for r in records if r["experiment"] == "classes"]
    names = list(dict.fromkeys(r["method"] for r in tables))

    def mean(key: str, **wanted: Any) -> str:
        values = [r[key] for r in records if all(r.get(k) == v for k, v in wanted.items())]
        return f"{np.mean(values):.3f}" if values else ""

    print("Log loss:\n")
    rows = [[t, *(mean("log_loss", table=t, method=n) for n in names)] for t in sorted({r["table"] for r in tables})]
    rows.append(["mean", *(mean("log_loss", experiment="classes", method=n) for n in names)])
    print_table(["table", *names], rows)
    print("\nAll tables: accuracy, confidence on test rows, confidence a hundred times farther out, CPU seconds:\n")
    keys = ("accuracy", "confidence", "confidence_far", "seconds")
    print_table(["method", *keys], ([n, *(mean(k, experiment="classes", method=n) for k in keys)] for n in names))
    print("\nDigits, two classes left out: AUROC of mutual information:\n")
    header = ["left out", "table", "deep ensemble"]
    found = (
        [f"{a} and {b}", *(mean("auroc", experiment="digits", method=n, left_out=[a, b]) for n in header[1:])]
        for a, b in LEFT_OUT
    )
    print_table(header, found)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--folds", type=int, default=2)
    options.add_argument("--out", type=Path, default=Path("results/classes.jsonl"))
    options.add_argument("--vmg", action="store_true")
    options.add_argument("--show", action="store_true")
    a = options.parse_args()
    torch.set_num_threads(1)
    show(measure_missing([] if a.show else tasks(a.folds, vmg=a.vmg), a.out))


if __name__ == "__main__":
    main()
