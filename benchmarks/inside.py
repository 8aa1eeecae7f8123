"""Scores of a method on held-out rows, and tables of them by method and by table.

RMSE and log-likelihood are in the target's own units; ``unit`` is the standard deviation of the training targets.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from regression_tables import Array, Rows
from regressors import TREES, Make

from vmg.metrics import interval_coverage, rmse
from vmg_paper.experiments.results_file import Record, markdown

NAMES = {"table": "table", "GP": "GP", "trees": TREES}  # as recorded


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
