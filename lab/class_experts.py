"""Networks alone and with boosted trees, on training parts of development tables and of ``hard_tables.py``.

    VMG_DATA=../shared/data python lab/class_experts.py --label now
    python lab/class_experts.py --show before,now

Log loss on rows of the training part that the fit has not seen, of networks alone and of what held-out rows choose, and
the processor's seconds of the fit. No test row is read. Another tree is measured by putting it first in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from hard_study import rows_of
from hard_tables import CLASSIFICATION
from sklearn.model_selection import StratifiedKFold

import vmg
from vmg.files import read_lines
from vmg_paper.experiments.results_file import measure_missing

RESULTS = Path(__file__).parent / "results" / "class_experts.jsonl"
NAMES = ("contraceptive", "crx", "german", "heart", "ionosphere", "pima", "sonar", "vehicle")
LARGE = ("phoneme", "segment", "spambase", "splice")  # at two sizes


def development(name: str, rows: int):
    """Rows to fit to and rows to score, of the training part of a development table."""
    frame = pd.read_csv(Path(os.environ["VMG_DATA"]) / "tables" / "classification" / name / "data.csv.gz")
    y = frame["class"].astype(str).to_numpy()
    train, _ = next(StratifiedKFold(4, shuffle=True, random_state=0).split(frame, y))
    order = np.random.default_rng(5).permutation(train)
    cut = min(rows, round(0.7 * len(order)))
    parts = order[:cut], order[cut : cut + 1500]
    return [(frame.drop(columns="class").iloc[part].reset_index(drop=True), y[part]) for part in parts]


def hard(table):
    """The same of a hard table."""
    fit, held = rows_of(table, "validation")
    held = held[held[table.target].astype(str).isin(fit[table.target].astype(str))]
    return [
        (part.drop(columns=table.target).reset_index(drop=True), part[table.target].astype(str).to_numpy())
        for part in (fit, held)
    ]


def log_loss(model, X, y) -> float:
    chosen = model.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


def measure(load, *of) -> dict[str, object]:
    """Scores and seconds of networks alone, and of the default."""
    (X, y), (X_held, y_held) = load(*of)
    line = {"rows": len(y), "classes": len(np.unique(y))}
    for key, experts in (("networks", "networks"), ("log_loss", "auto")):
        started = time.process_time()
        model = vmg.TableClassifier(random_state=0, experts=experts).fit(X, y)
        seconds = time.process_time() - started
        line[key] = log_loss(model, X_held, y_held)
    trust = model.expert_weights_.get("boosted_trees", 0.0)
    return line | {"trust": trust, "steps": model.n_iter_, "cpu_seconds": round(seconds, 2)}


def show(lines: list[dict], first: str, second: str) -> None:
    """Ratios of log losses and seconds of two labels, table by table and in the geometric mean."""
    before, after = ({line["table"]: line for line in lines if line["label"] == label} for label in (first, second))
    pairs = [(before[name], after[name]) for name in after if name in before]
    for a, b in pairs:
        print(f"{b['table']:24s} {a['log_loss']:.4f} {b['networks']:.4f} {b['log_loss']:.4f} {b['cpu_seconds']:6.2f} s")
    for key in ("networks", "log_loss", "cpu_seconds"):
        ratio = np.array([np.log(b[key] / a["log_loss" if key == "networks" else key]) for a, b in pairs])
        print(f"{key}: {np.exp(ratio.mean()):.3f} of {first}, at most {np.exp(ratio.max()):.3f}, {len(pairs)} tables")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="now")
    parser.add_argument("--tables", help="names to measure; all without")
    parser.add_argument("--show", help="two labels to compare")
    options = parser.parse_args()
    if options.show:
        return show(read_lines(RESULTS), *options.show.split(","))
    torch.set_num_threads(1)
    todo = {
        f"{name}-{n}": (development, name, n) for n, names in ((1000, NAMES + LARGE), (2000, LARGE)) for name in names
    }
    todo |= {table.key: (hard, table) for table in CLASSIFICATION}
    names = options.tables.split(",") if options.tables else list(todo)
    tasks = (({"label": options.label, "table": name}, partial(measure, *todo[name])) for name in names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measure_missing(tasks, RESULTS)


if __name__ == "__main__":
    main()
