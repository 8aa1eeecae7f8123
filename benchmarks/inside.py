"""Quality inside the data: nineteen tables on the first of their standard splits or folds, with defaults.

RMSE and log-likelihood are in the target's own units; ``unit`` is the standard deviation of the training targets.
The exact Gaussian process runs up to 3,000 training rows. Trees are LightGBM's where it is installed, else
scikit-learn's. ``--vmg`` adds ``VMGRegressor()`` on the ten tables that
``lab/results/coverage.jsonl`` does not have; it is slow.

What is in the results file already is not run again. All tables have one split before any has a second.

    python benchmarks/inside.py --splits 3     # measure, into results/inside.jsonl
    python benchmarks/inside.py --show         # print the tables, and write them into docs/ignorance.md
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from documents import fill, markdown
from regression_tables import ALL, OTHERS, PAPER, Array, Rows, load, splits
from regressors import TREES, Make, methods
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from vmg.metrics import interval_coverage, rmse
from vmg_paper.experiments import results_file

Record = results_file.Record

GP_ROWS = 3_000
VMG = "vmg-defaults"
NAMES = {"table": "table", "GP": "GP", "trees": TREES, VMG: VMG}  # as recorded


def tasks(names: Sequence[str], n_splits: int, *, vmg: bool) -> Iterator[Record]:
    """All methods of a split, all tables before the next split."""
    for split in range(n_splits):
        for name in names:
            for method in NAMES:
                if method != VMG or (vmg and name in OTHERS):
                    yield {"method": NAMES[method], "table": name, "split": split}


def measure(make: Make, X: Array, y: Array, train: Rows, test: Rows) -> Record:
    """Scores on test rows, in the target's own units."""
    started = time.process_time()
    model = make(len(train)).fit(X[train], y[train])
    seconds = round(time.process_time() - started, 3)
    prediction = model.pred_dist(X[test])
    densities = prediction.log_prob(y[test])
    return {
        "seconds": seconds,
        "n_train": len(train),
        "unit": float(y[train].std()),
        "rmse": rmse(y[test], prediction.mean),
        "log_likelihood": float(densities.mean()),
        "worst_row": float(densities.min()),
        "coverage_90": interval_coverage(y[test], prediction.interval(0.9)),
    }


def run(todo: Iterable[Record], out: Path, minutes: float, *, quick: bool) -> None:
    """Earn a record for each task that has none, until time is up."""
    end = time.monotonic() + 60 * minutes
    makers = {NAMES[name]: make for name, make in methods(quick=quick).items() if name in NAMES}
    done = {tuple(record[name] for name in ("method", "table", "split")) for record in results_file.read(out)}
    for task in todo:
        if time.monotonic() > end:
            print("time is up; start again to go on", flush=True)
            return
        if tuple(task.values()) in done:
            continue
        if task["method"] == "GP" and len(splits(task["table"], 1)[0][0]) > GP_ROWS:
            continue
        rows = splits(task["table"], task["split"] + 1)[task["split"]]
        found = {**task, **measure(makers[task["method"]], *load(task["table"]), *rows)}
        results_file.append(out, [found])
        print(json.dumps(found), flush=True)


# -- what was found ---------------------------------------------------------------------------------------------------


def earlier_records(path: Path, found: Sequence[Record]) -> list[Record]:
    """``VMGRegressor()`` on the same splits of the paper's tables; its seconds were not those of a CPU."""
    wanted = {(r["table"], r["split"]) for r in found}
    plain = [r for r in results_file.read(path) if r["kind"] == "plain" and (r["table"], r["split"]) in wanted]
    return [{**r, "method": VMG, "seconds": None, "worst_row": None} for r in plain]


def means(records: Sequence[Record], name: str) -> dict[tuple[str, str], float]:
    """By table and method, over splits; what has no number is left out."""
    groups: dict[tuple[str, str], list[float]] = {}
    for r in records:
        if r[name] is not None:
            groups.setdefault((r["table"], r["method"]), []).append(r[name])
    return {where: float(np.mean(values)) for where, values in groups.items()}


def table_of(records: Sequence[Record], tables: Sequence[str], shown: Sequence[str]) -> str:
    """RMSE / log-likelihood / coverage of each table and method."""
    found = [means(records, name) for name in ("rmse", "log_likelihood", "coverage_90")]
    lines = []
    for table in tables:
        splits_there = len({r["split"] for r in records if r["table"] == table and r["method"] == "table"})
        cells = []
        for method in shown:
            numbers = [values.get((table, method)) for values in found]
            forms = ("{:.4g}", "{:.3f}", "{:.2f}")
            cells.append(" / ".join(f.format(n) for f, n in zip(forms, numbers, strict=True) if n is not None))
        lines.append([table, str(splits_there), *cells])
    return markdown(["table", "splits", *shown], lines)


def summary_of(records: Sequence[Record], tables: Sequence[str], shown: Sequence[str]) -> str:
    """How ``table`` does against each method, on the tables that both have."""
    errors, densities = means(records, "rmse"), means(records, "log_likelihood")
    lines = []
    for method in shown:
        shared = [t for t in tables if (t, method) in errors]
        own = [r for r in records if r["method"] == method]
        ratio = np.exp(np.mean([np.log(errors[t, "table"] / errors[t, method]) for t in shared]))
        gains = np.array([densities[t, "table"] - densities[t, method] for t in shared])
        wins = [sum(errors[t, "table"] <= errors[t, method] for t in shared), int((gains >= 0).sum())]
        worst = [r["worst_row"] for r in own if r["worst_row"] is not None]
        seconds = [r["seconds"] for r in own if r["seconds"] is not None]
        against = ["", "", "", ""]
        if method != "table":
            against = [f"{ratio:.2f}", f"{wins[0]}", f"{gains.mean():+.2f}", f"{wins[1]}"]
        coverage = np.mean([r["coverage_90"] for r in own])
        row = [method, str(len(shared)), *against, f"{coverage:.3f}", f"{min(worst):.1f}" if worst else ""]
        lines.append([*row, f"{np.mean(seconds):.1f}" if seconds else ""])
    header = [
        "method",
        "tables",
        "RMSE of table over its",
        "won by table",
        "log-likelihood of table minus its",
        "won by table",
    ]
    return markdown([*header, "coverage 90 %", "worst row", "CPU s"], lines)


def show(path: Path, older: Path) -> str:
    found = results_file.read(path)
    records = found + earlier_records(older, found)
    tables = [t for t in ALL if any(r["table"] == t for r in found)]
    present = {r["method"] for r in records}
    shown = [m for m in ("table", "GP", "LightGBM", "HistGradientBoosting", VMG) if m in present]
    return summary_of(records, tables, shown) + "\n\n" + table_of(records, tables, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/inside.jsonl"))
    parser.add_argument("--older", type=Path, default=Path("lab/results/coverage.jsonl"), help="of VMGRegressor()")
    parser.add_argument("--page", type=Path, default=Path("docs/ignorance.md"))
    parser.add_argument("--tables", default=",".join(ALL), help=f"among {', '.join(PAPER + OTHERS)}")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--vmg", action="store_true", help="run VMGRegressor() where no file has it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny settings: shows that it runs, measures nothing")
    parser.add_argument("--show", action="store_true", help="print the tables and write them into the page")
    a = parser.parse_args()
    if a.show:
        text = show(a.out, a.older)
        print(text)
        fill(a.page, "inside", text)
        return
    torch.set_num_threads(a.threads)
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    names = [name for name in a.tables.split(",") if name]
    with threadpool_limits(a.threads):
        run(tasks(names, a.splits, vmg=a.vmg), a.out, a.minutes, quick=a.quick)


if __name__ == "__main__":
    main()
