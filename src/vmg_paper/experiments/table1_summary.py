"""Table 1 from a results file: ours beside the paper's and the best published."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from vmg_paper.experiments.published import BEST, BEST_ONE_LAYER, PAPER_BASELINES, PAPER_TABLE1
from vmg_paper.experiments.results_file import Record
from vmg_paper.experiments.typeset import FORMATS, check_format, typeset

__all__ = ["FORMATS", "render", "summarise"]

SCORES = ("rmse", "log_likelihood", "coverage_90", "interval_width_90", "crps", "seconds")
BESIDE = ("paper", "one layer", "any model")
"""The paper's figure for the method, or for its own where it has none; the best of others with one hidden layer, and
with any model."""

HEADER = ("table", "method", "splits", "RMSE", *BESIDE, "log-likelihood", *BESIDE, "coverage 90 %", "s per split")


def summarise(lines: Sequence[Record]) -> list[Record]:
    """Mean and standard error over splits for each (dataset, method)."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for line in lines:
        if line["experiment"] == "table1":
            groups[line["dataset"], line["method"]].append(line)
    summary = []
    for (dataset, method), members in groups.items():
        row: Record = {"dataset": dataset, "method": method, "splits": len(members)}
        for score in SCORES:
            values = np.array([member[score] for member in members])
            error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
            row[score], row[f"{score}_error"] = float(values.mean()), float(error)
        summary.append(row)
    return sorted(summary, key=lambda row: (row["dataset"], row["method"]))


def render(summary: Sequence[Record], form: str) -> str:
    """The summary as a table; a figure of others is marked + where ours, rounded as theirs, is no worse, else −."""
    check_format(form)
    if form == "json":
        return json.dumps(list(summary), indent=1)
    return typeset(HEADER, [_cells(row) for row in summary], form)


def _cells(row: Record) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["method"],
        str(row["splits"]),
        *_beside(row, "rmse", 0, sign=-1),
        *_beside(row, "log_likelihood", 1, sign=1),
        f"{row['coverage_90']:.3f}",
        f"{row['seconds']:.1f}",
    )


def _beside(row: Record, score: str, column: int, sign: int) -> tuple[str, ...]:
    """Ours with its standard error, then each figure to compare with."""
    mean, error = row[score], row[f"{score}_error"]
    ours = f"{mean:.4f} ± {error:.4f}" if abs(mean) < 0.1 else f"{mean:.3f} ± {error:.3f}"
    others = []
    for table in (PAPER_BASELINES.get(row["method"], PAPER_TABLE1), BEST_ONE_LAYER, BEST):
        if row["dataset"] not in table:
            others.append("")
            continue
        theirs = table[row["dataset"]][column].mean
        digits = max(2, len(f"{theirs:g}".partition(".")[2]))
        better = sign * (round(mean, digits) - theirs) >= 0
        others.append(f"{theirs:.{digits}f} {'+' if better else '−'}")
    return ours, *others
