"""The figures of ``scaling.py``, drawn from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from measuring import Row

DOTS_PER_INCH = 200
INK, MUTED, GRID, BLUE, ORANGE, SKY = "#222222", "#666666", "#e4e4e4", "#1f5fa8", "#d1581a", "#7fa8d6"
COLOURS = {"nn.Linear": MUTED, "P=20": SKY, "P=50": BLUE}

DASHED = (0, (4, 3))

Lines = dict[str, list[Row]]


def draw(lines: Lines, part: str, path: Path) -> None:
    """One figure of a part."""
    panels = 2 if part == "rows" else 1
    figure = Figure(figsize=(4.1 * panels + 0.9, 3.3), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if part == "width":
        draw_width(axes[0], lines)
    elif part == "points":
        draw_points(axes[0], lines)
    else:
        draw_rows(axes, lines)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(MUTED)
        panel.tick_params(colors=MUTED, labelcolor=INK, labelsize=8.5)
        panel.grid(color=GRID, linewidth=0.7)
        panel.set_axisbelow(True)
        panel.xaxis.label.set_color(INK)
    figure.savefig(path)


def draw_width(axes: Axes, lines: Lines) -> None:
    """Time of a step against width: lines that end up parallel."""
    for name, line in lines.items():
        sizes, times = columns(line)
        colour = COLOURS.get(name, INK)
        axes.loglog(
            sizes,
            times,
            marker="o",
            markersize=4,
            color=colour,
            linewidth=1.6,
            label=name if name == "nn.Linear" else f"vmg, {name}",
        )
    axes.set_title("One training step, three hidden layers", loc="left", color=INK, fontsize=10)
    axes.set_xlabel("width h")
    axes.set_ylabel("milliseconds")
    axes.xaxis.set_major_locator(FixedLocator([row["size"] for row in next(iter(lines.values()))]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend(frameon=False, fontsize=8.5, loc="upper left", reverse=True)


def draw_points(axes: Axes, lines: Lines) -> None:
    """Time of a step against pseudo-points, with the straight line through the first few."""
    [own] = [name for name in lines if name != "nn.Linear"]
    sizes, times = columns(lines[own])
    straight = [row["straight_ms"] for row in lines[own]]
    plain = columns(lines["nn.Linear"])[1]
    axes.plot(sizes, times, marker="o", markersize=4, color=BLUE, linewidth=1.6, label="vmg")
    axes.plot(sizes, straight, color=ORANGE, linewidth=1.2, linestyle=DASHED, label="straight line through P ≤ 50")
    axes.plot(sizes, plain, color=MUTED, linewidth=1.6, label="nn.Linear")
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    axes.set_title(f"One training step, three hidden layers of {own[2:]}", loc="left", color=INK, fontsize=10)
    axes.set_xlabel("pseudo-points P")
    axes.set_ylabel("milliseconds")
    axes.set_xlim(0, 1.03 * sizes.max())
    axes.set_ylim(0, 1.25 * times.max())


def draw_rows(axes: Sequence[Axes], lines: Lines) -> None:
    """Time per row and memory against the rows of the table."""
    for line in lines.values():
        sizes, times = columns(line)
        axes[0].semilogx(sizes, 1e3 * times, marker="o", markersize=4, color=BLUE, linewidth=1.6)
        axes[0].set_ylim(0, 1.5 * 1e3 * times.max())
        own = np.array([row["memory_mb"] for row in line])
        files = np.array([row["files_mb"] for row in line])
        axes[1].semilogx(sizes, own, marker="o", markersize=4, color=BLUE, linewidth=1.6)
        axes[1].semilogx(sizes, files, marker="o", markersize=4, color=MUTED, linewidth=1.1, linestyle=DASHED)
        axes[1].set_ylim(0, 1.35 * max(own.max(), files.max(), 1.0))
        for text, values, colour in (("the process", own, BLUE), ("the files", files, MUTED)):
            place = {"xytext": (0, 6), "textcoords": "offset points", "color": colour, "fontsize": 8.5}
            axes[1].annotate(text, (sizes[0], values[0]), **place)
    axes[0].set_title("Time per row, microseconds", loc="left", color=INK, fontsize=10)
    axes[1].set_title("Memory, MB", loc="left", color=INK, fontsize=10)
    for panel in axes:
        panel.set_xlabel("rows of the table")
        panel.xaxis.set_minor_locator(NullLocator())


def columns(line: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([float(row["size"]) for row in line]), np.array([row["ms"] for row in line])
