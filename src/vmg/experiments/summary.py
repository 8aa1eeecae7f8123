"""Table 1 from a results file: ours beside the paper's."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from vmg.experiments.published import PAPER_TABLE1, Figure
from vmg.experiments.records import Record

__all__ = ["FORMATS", "render", "summarise"]

FORMATS = ("markdown", "latex", "json")
SCORES = ("rmse", "log_likelihood", "coverage_90", "interval_width_90", "crps", "seconds")
HEADER = ("table", "method", "splits", "RMSE", "paper", "log-likelihood", "paper", "coverage 90 %", "s per split")


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
    """The summary as a table; a star marks a figure at least as good as the paper's, as printed there."""
    if form not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}; got {form!r}")
    if form == "json":
        return json.dumps(list(summary), indent=1)
    rows = [_cells(row) for row in summary]
    if form == "markdown":
        return "\n".join(_markdown(cells) for cells in (HEADER, ("---",) * len(HEADER), *rows))
    body = [" & ".join(cells).replace("±", r"$\pm$").replace("%", r"\%") + r" \\" for cells in (HEADER, *rows)]
    return "\n".join([rf"\begin{{tabular}}{{ll{'r' * (len(HEADER) - 2)}}}", *body, r"\end{tabular}"])


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Record) -> tuple[str, ...]:
    paper = PAPER_TABLE1.get(row["dataset"])
    return (
        row["dataset"],
        row["method"],
        str(row["splits"]),
        *_beside(row, "rmse", paper[0] if paper else None, sign=-1),
        *_beside(row, "log_likelihood", paper[1] if paper else None, sign=1),
        f"{row['coverage_90']:.3f}",
        f"{row['seconds']:.1f}",
    )


def _beside(row: Record, score: str, paper: Figure | None, sign: int) -> tuple[str, str]:
    mean, error = row[score], row[f"{score}_error"]
    small = abs(mean) < 0.1
    ours = f"{mean:.4f} ± {error:.4f}" if small else f"{mean:.3f} ± {error:.3f}"
    if paper is None:
        return ours, ""
    better = sign * (round(mean, 2) - paper.mean) >= 0
    return ours + (" *" if better else ""), f"{paper.mean:.2f} ± {paper.error:.2f}"
