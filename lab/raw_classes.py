"""Log loss on the development tables of classification as raw CSV files, through ``vmg fit`` and ``vmg predict`` alone.

Twelve tables (``VMG_DATA/tables/classification``), the first folds of a stratified four-fold split, at most 2,500 rows
of each, as in ``classes.py``; but here categories and holes are in the files as they come. CatBoost, where it is
installed, gets the texts as its own categories; gradient boosting gets pandas' categories. One JSON line is appended
per fit, so a killed run resumes.

    python lab/raw_classes.py [--folds 1] [--out lab/results/raw_classes.jsonl] [--show]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import numpy as np
import pandas as pd
import torch
from measuring import print_table
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedKFold

from vmg.cli.app import run
from vmg_paper.experiments.results_file import Record, measure_missing

MOST_ROWS = 2_500
LEAST = 1e-12  # probability that a log loss counts
TARGET = "class"


def vmg_probabilities(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    """The probability of each class, by two commands in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        train.to_csv("train.csv", index=False)
        test.drop(columns=TARGET).to_csv("test.csv", index=False)
        with contextlib.redirect_stdout(io.StringIO()):
            for command in (
                ["fit", "train.csv", "--target", TARGET, "--task", "classification", "--no-holdout", "-q"],
                ["predict", "train.vmg", "test.csv", "--out", "found.csv", "-q"],
            ):
                if run(command):
                    raise SystemExit(f"vmg {' '.join(command)} failed")
        found = pd.read_csv("found.csv")
    start = f"{TARGET}_probability_"
    return found[[name for name in found if name.startswith(start)]].rename(columns=lambda name: name[len(start) :])


def catboost_probabilities(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    from catboost import CatBoostClassifier

    texts = [name for name in train.columns.drop(TARGET) if train[name].dtype == object]
    X, X_test = (part.drop(columns=TARGET).fillna(dict.fromkeys(texts, "missing")) for part in (train, test))
    model = CatBoostClassifier(verbose=False, random_seed=0, thread_count=1, allow_writing_files=False)
    model.fit(X, train[TARGET].astype(str), cat_features=texts)
    return pd.DataFrame(model.predict_proba(X_test), columns=list(model.classes_))


def boosting_probabilities(train: pd.DataFrame, test: pd.DataFrame) -> pd.DataFrame:
    both = pd.concat([train, test]).drop(columns=TARGET)
    texts = [name for name in both if both[name].dtype == object]
    both = both.astype(dict.fromkeys(texts, "category"))
    X, X_test = both.iloc[: len(train)], both.iloc[len(train) :]
    model = HistGradientBoostingClassifier(random_state=0, categorical_features="from_dtype")
    model.fit(X, train[TARGET].astype(str))
    return pd.DataFrame(model.predict_proba(X_test), columns=list(model.classes_))


def methods() -> dict[str, Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]]:
    found = {"table": vmg_probabilities, "gradient boosting": boosting_probabilities}
    return found | ({"CatBoost": catboost_probabilities} if importlib.util.find_spec("catboost") else {})


def measure(method: Callable[..., pd.DataFrame], frame: pd.DataFrame, fold: int) -> Record:
    labels = frame[TARGET].astype(str).to_numpy()
    inside, held = list(StratifiedKFold(4, shuffle=True, random_state=0).split(labels, labels))[fold]
    started = time.process_time()
    p = method(frame.iloc[inside], frame.iloc[held])
    seconds = time.process_time() - started
    names = np.array([str(name) for name in p.columns])
    place = {name: k for k, name in enumerate(names)}
    chosen = p.to_numpy()[np.arange(len(held)), [place[label] for label in labels[held]]]
    return {
        "log_loss": -float(np.log(np.maximum(chosen, LEAST)).mean()),
        "accuracy": float((names[p.to_numpy().argmax(1)] == labels[held]).mean()),
        "seconds": round(seconds, 2),
    }


def tasks(folds: int, root: Path) -> Iterator[tuple[Record, Callable[[], Record]]]:
    """Keys of records, and what measures them: every table once before any a second time."""
    for fold in range(folds):
        for folder in sorted(root.iterdir()):
            frame = pd.read_csv(folder / "data.csv.gz")
            frame = frame.iloc[np.random.default_rng(0).permutation(len(frame))[:MOST_ROWS]]
            for name, method in methods().items():
                key = {"method": name, "table": folder.name, "fold": fold}
                yield key, lambda method=method, frame=frame, fold=fold: measure(method, frame, fold)


def show(records: list[Record]) -> None:
    names = list(dict.fromkeys(r["method"] for r in records))
    tables = sorted({r["table"] for r in records})

    def mean(key: str, **wanted: Any) -> str:
        values = [r[key] for r in records if all(r[k] == v for k, v in wanted.items())]
        return f"{np.mean(values):.3f}" if values else ""

    rows = [[t, *(mean("log_loss", table=t, method=n) for n in names)] for t in tables]
    rows.append(["mean", *(mean("log_loss", method=n) for n in names)])
    print_table(["log loss", *names], rows)
    print_table(
        ["all tables", *names], [[key, *(mean(key, method=n) for n in names)] for key in ("accuracy", "seconds")]
    )


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--folds", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("lab/results/raw_classes.jsonl"))
    options.add_argument("--show", action="store_true")
    a = options.parse_args()
    torch.set_num_threads(1)
    root = Path(os.environ.get("VMG_DATA", "")) / "tables" / "classification"
    show(measure_missing([] if a.show else tasks(a.folds, root), a.out))


if __name__ == "__main__":
    main()
