"""Tables and pictures of ``ignorance.py``, from its results file alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vmg_paper.experiments.results_file import markdown

Array = NDArray[np.float64]
Record = dict[str, Any]

COLOURS = {"table": "#1f5fa8", "GP": "#d1581a", "deep ensemble": "#3a8f4d", "linear": "#999999", "HMC": "#222222"}
MARKERS = {"table": "o", "GP": "s", "deep ensemble": "^", "linear": "x"}
INK, MUTED, DOTS_PER_INCH = "#222222", "#666666", 200
LINE_METHODS = ("table", "GP", "HMC", "deep ensemble")  # from left to right


def unique(records: Sequence[Record], name: str) -> list[Any]:
    """Values in the order of their first coming."""
    return list(dict.fromkeys(record[name] for record in records))


def mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record[name] for record in records]))


# -- tables -----------------------------------------------------------------------------------------------------------


def toy_table(records: Sequence[Record]) -> str:
    """A line for each toy and method; ratios are geometric means over seeds."""
    toys, lines = [r for r in records if r["part"] == "toy"], []
    for toy in unique(toys, "table"):
        for method in unique(toys, "method"):
            some = [r for r in toys if (r["table"], r["method"]) == (toy, method)]
            if not some:
                continue
            ratio = np.exp(np.mean(np.log([r["gap_ratio"] for r in some])))
            errors = [r["error_over_std"] for r in some]
            error = f"{np.exp(np.mean(np.log(errors))):.2f} ({max(errors):.2f})"
            lines.append([toy, method, str(len(some)), f"{ratio:.1f}", error, f"{mean(some, 'seconds'):.1f}"])
    header = ["toy", "method", "seeds", "std in the gap over std at rows", "error in the gap over std (worst seed)"]
    return markdown([*header, "CPU s"], lines)


def comparable(records: Sequence[Record]) -> list[Record]:
    """Splits of tables that all methods have; a method that lacks more than a tenth of them is left out itself."""
    owned: dict[str, set[tuple[Any, ...]]] = {}
    for r in records:
        if r["part"] != "toy":
            owned.setdefault(r["method"], set()).add((r["part"], r["table"], r["split"]))
    most = max(map(len, owned.values()), default=0)
    full = {method: own for method, own in owned.items() if len(own) >= 0.9 * most}
    shared = set.intersection(*full.values()) if full else set()
    return [r for r in records if r["method"] in full and (r["part"], r["table"], r.get("split")) in shared]


def by_table(records: Sequence[Record], name: str) -> dict[str, float]:
    """A table's mean over its splits."""
    return {table: mean([r for r in records if r["table"] == table], name) for table in unique(records, "table")}


def table_tables(records: Sequence[Record]) -> dict[str, str]:
    """The summary, in which each table counts once, and a line for each table."""
    return {"summary": summary_table(records), "tables": split_table(comparable(records))}


def summary_table(records: Sequence[Record]) -> str:
    lines = []
    for part in ("gap", "tail"):
        splits = comparable([r for r in records if r["part"] == part])
        for method in unique(splits, "method"):
            some = [r for r in splits if r["method"] == method]
            coverages = by_table(some, "coverage_90")
            lowest = min(coverages, key=lambda table: coverages[table])
            cells = [part, method, str(len(some))]
            cells += [f"{np.mean(list(by_table(some, name).values())):.3f}" for name in ("auroc", "coverage_90")]
            cells += [f"{coverages[lowest]:.2f} ({lowest})"]
            cells += [f"{np.mean(list(by_table(some, 'log_likelihood').values())):.2f}"]
            cells += [f"{np.median(list(by_table(some, 'log_likelihood').values())):.2f}"]
            names = ("rmse", "inside_log_likelihood", "inside_rmse", "seconds")
            lines.append(cells + [f"{np.mean(list(by_table(some, name).values())):.2f}" for name in names])
    header = ["left out", "method", "splits", "AUROC", "coverage 90 %", "lowest", "log-likelihood", "its median"]
    return markdown([*header, "RMSE", "log-likelihood inside", "RMSE inside", "CPU s"], lines)


def split_table(splits: Sequence[Record]) -> str:
    """AUROC / coverage / log-likelihood of each table, gaps and tails together."""
    methods, lines = unique(splits, "method"), []
    for table in unique(splits, "table"):
        own = [[r for r in splits if (r["table"], r["method"]) == (table, method)] for method in methods]
        cells = [" / ".join(f"{mean(r, name):.2f}" for name in ("auroc", "coverage_90", "log_likelihood")) for r in own]
        lines.append([table, str(own[0][0]["n_train"]), str(len(own[0])), *cells])
    return markdown(["table", "training rows", "splits", *methods], lines)


# -- pictures ---------------------------------------------------------------------------------------------------------


def draw_toys(records: Sequence[Record], rows: tuple[Array, Array], grid: Array, curve: Array, path: Path) -> None:
    """Bands of two standard deviations along the one-dimensional toy, a panel for each method."""
    lines = {r["method"]: r["line"] for r in records if "line" in r}
    shown = [method for method in LINE_METHODS if method in lines]
    figure = Figure(figsize=(2.9 * len(shown), 2.7), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, len(shown), sharex=True, sharey=True, squeeze=False)[0]
    for panel, method in zip(panels, shown, strict=True):
        centre, epistemic, total = (np.asarray(values) for values in lines[method])
        colour = COLOURS[method]
        for std, strength in ((total, 0.18), (epistemic, 0.25)):
            panel.fill_between(grid, centre - 2 * std, centre + 2 * std, color=colour, alpha=strength, lw=0)
        panel.plot(grid, centre, color=colour, lw=1.4)
        panel.plot(grid, curve, color=MUTED, lw=0.9, ls="--")
        panel.plot(rows[0][:, 0], rows[1], ".", color=INK, ms=3.5)
        panel.set_title(method, fontsize=10, color=INK, loc="left")
        panel.set(xlim=(grid[0], grid[-1]), ylim=(-5, 5))
        panel.tick_params(labelsize=8, colors=MUTED)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_tables(records: Sequence[Record], path: Path) -> None:
    """AUROC and coverage of each table, gaps and tails together, a mark for each method."""
    splits = comparable(records)
    tables = unique(splits, "table")
    figure = Figure(figsize=(9, 1.1 + 0.22 * len(tables)), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    titles = (
        "AUROC of epistemic std, rows left out against rows inside",
        "coverage of 90 % intervals on rows left out",
    )
    for panel, name, title, goal in zip(panels, ("auroc", "coverage_90"), titles, (0.5, 0.9), strict=True):
        panel.axvline(goal, color=MUTED, lw=0.8, ls="--")
        for method in unique(splits, "method"):
            found = by_table([r for r in splits if r["method"] == method], name)
            panel.plot(
                [found[table] for table in tables],
                range(len(tables)),
                MARKERS[method],
                color=COLOURS[method],
                ms=5,
                label=method,
            )
        panel.set_title(title, fontsize=9, color=INK, loc="left")
        panel.set_yticks(range(len(tables)), tables)
        panel.tick_params(labelsize=8, colors=MUTED)
        panel.grid(axis="y", lw=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].invert_yaxis()
    figure.legend(
        *panels[0].get_legend_handles_labels(), fontsize=8, frameon=False, loc="outside lower center", ncols=4
    )
    figure.savefig(path)
