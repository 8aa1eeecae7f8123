"""The paper's figures, drawn: predictive bands side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmg_paper.experiments.toys import Band, ToyResult

__all__ = ["draw_band_figure"]

INK, MUTED, BLUE, ORANGE = "#222222", "#666666", "#1f5fa8", "#d1581a"
DOTS_PER_INCH = 160

PANEL_WIDTH, PANEL_HEIGHT = 2.9, 2.35
SHADES = ("#a9c1df", "#d3e0ef")  # the inner band, and the outer
TRUE_SHADES = ("#c4c4c4", "#e2e2e2")


def draw_band_figure(
    result: ToyResult,
    path: str | os.PathLike[str],
    *,
    widths: Sequence[float],
    height: tuple[float, float],
    columns: int,
    target_label: str,
) -> None:
    """Draw a panel for each band: its mean and ±widths standard deviations, the data and the function behind them.

    The edge of the widest true band is a dotted line in the panels of approximations. The legend takes a free place of
    the grid, or stands below it.
    """
    panels, truths = result.bands, result.truths
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL_WIDTH * columns, PANEL_HEIGHT * rows), dpi=DOTS_PER_INCH, layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    cells: list[Band | None] = [*panels, *[None] * (rows * columns - len(panels))]
    drawn = np.array([cell is not None for cell in cells]).reshape(rows, columns)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, cells, strict=True):
        if panel is None:
            axes.set_axis_off()
            continue
        for handle in _draw_panel(axes, panel, truths.get(panel.truth), result, sorted(widths), target_label):
            handles.setdefault(str(handle.get_label()), handle)
        axes.set(xlim=(panel.x[0], panel.x[-1]), ylim=height)
    for row in range(rows):  # axes are labelled at the outer panels, wherever the legend is
        first = grid[row, int(drawn[row].argmax())]
        first.set_ylabel("$y$")
        first.tick_params(labelleft=True)
    for column in np.flatnonzero(drawn.any(0)):
        last = grid[rows - 1 - int(drawn[::-1, column].argmax()), column]
        last.set_xlabel("$x$")
        last.tick_params(labelbottom=True)
    free = [axes for axes, cell in zip(grid.flat, cells, strict=True) if cell is None]
    if free:
        free[0].legend(handles.values(), handles.keys(), loc="center", frameon=False, fontsize=9, labelspacing=0.7)
    else:
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8
        )
    figure.savefig(Path(path))


def _draw_panel(
    axes: Axes, panel: Band, truth: Band | None, result: ToyResult, widths: Sequence[float], target_label: str
) -> list[Any]:
    """Draw one band, and the edges of its truth unless it is one itself; what the legend shows."""
    is_truth = truth is None
    shades = (TRUE_SHADES if is_truth else SHADES)[-len(widths) :]
    colour = INK if is_truth else BLUE
    handles: list[Any] = []
    for width, shade in reversed(list(zip(widths, shades, strict=True))):
        lower, upper = panel.mean - width * panel.std, panel.mean + width * panel.std
        band = axes.fill_between(panel.x, lower, upper, color=shade, linewidth=0, label=f"±{width:g} std")
        if not is_truth:
            handles.append(band)
    (line,) = axes.plot(panel.x, panel.mean, color=colour, linewidth=1.6, label="mean")
    (true,) = axes.plot(
        panel.x, result.target(panel.x), color=MUTED, linewidth=0.9, linestyle=(0, (5, 3)), label=target_label
    )
    if not is_truth:
        handles.append(line)
    handles.append(true)
    if truth is not None:
        for sign in (-1, 1):
            edge = truth.mean + sign * widths[-1] * truth.std
            label = f"±{widths[-1]:g} std of HMC"
            (dots,) = axes.plot(panel.x, edge, color=INK, linewidth=0.9, linestyle=":", label=label)
        handles.append(dots)
    (points,) = axes.plot(
        result.x,
        result.y,
        "o",
        color=ORANGE,
        markersize=3.6,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label="data",
        zorder=5,
    )
    handles.append(points)
    title = panel.name if panel.rhat is None else f"{panel.name} (R̂ {panel.rhat:.2f})"
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return handles
