"""The paper's figures, drawn: predictive bands side by side, and Table 2 as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vmg_paper.experiments.toys import Band, ToyResult

__all__ = ["MethodPicture", "draw_band_figure", "draw_table2_figure"]

INK, MUTED, GRID, BLUE, ORANGE = "#222222", "#666666", "#dfe3e8", "#1f5fa8", "#d1581a"
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
    panels = result.panels()
    truths = {band.name: band for band in result.truths}
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


WIDTH_INCHES, HEIGHT_INCHES = 9.0, 7.6
COLOURS = ("#0072b2", "#3d9fd6", "#d55e00", "#009e73", "#b0578d", "#c98a00", "#68707a", "#23282f", "#8a5a2b", "#6a4fb3")
MARKERS = "osD^vP*X<>"
DASHED, DOTTED = (0, (4, 3)), ":"
SET_NAMES = {"notmnist": "notMNIST", "fashion-mnist": "Fashion-MNIST"}


@dataclass(frozen=True)
class MethodPicture:
    """One method's numbers in each panel; a part may be empty."""

    name: str
    errors: Mapping[str, float]
    """Test error in percent by size."""
    paper_errors: Mapping[str, float]
    rejection: tuple[Sequence[float], Sequence[float]] = ((), ())
    """Rejected share and accuracy on the rest, both in percent."""
    auroc: Mapping[str, float] | None = None
    """Area under the curve by the name of the other set."""
    paper_error_anywhere: float | None = None
    """A figure of the paper without a size: a line across all of them."""


def draw_table2_figure(
    methods: Sequence[MethodPicture], sizes: Sequence[str], path: str | os.PathLike[str], *, at_size: str
) -> None:
    """Draw three panels; ``sizes`` orders the first one's axis, ``at_size`` is where the other two were measured."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplot_mosaic([["size", "size"], ["rejection", "set"]])
    by_size, by_rejection, by_set = (panels[name] for name in ("size", "rejection", "set"))
    styles = {method.name: _style(place) for place, method in enumerate(methods)}
    _draw_errors(by_size, methods, sizes, styles)
    _draw_rejection(by_rejection, methods, styles, at_size)
    _draw_auroc(by_set, methods, styles, at_size)
    for axes in (by_size, by_rejection, by_set):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, labelsize=9)
    handles, labels = by_size.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=9)
    figure.savefig(Path(path))


def _style(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def _draw_errors(
    axes: Axes, methods: Sequence[MethodPicture], sizes: Sequence[str], styles: Mapping[str, dict[str, Any]]
) -> None:
    """A line joins networks of one depth."""
    place = {size: k for k, size in enumerate(sizes)}
    for method in methods:
        style = styles[method.name]
        axes.plot([], [], **style, markersize=5, label=method.name)
        for errors, is_ours in ((method.errors, True), (method.paper_errors, False)):
            for depth in dict.fromkeys(_depth(size) for size in errors):
                points = sorted((place[size], errors[size]) for size in errors if _depth(size) == depth)
                axes.plot(
                    *zip(*points, strict=True),
                    **style,
                    linestyle="-" if is_ours else DASHED,
                    linewidth=1.6 if is_ours else 1.0,
                    markersize=5,
                    markerfacecolor=style["color"] if is_ours else "white",
                )
        if method.paper_error_anywhere is not None:
            axes.axhline(method.paper_error_anywhere, color=style["color"], linestyle=DOTTED, linewidth=1.0)
    axes.plot([], [], color=MUTED, marker="o", linestyle=DASHED, markerfacecolor="white", label="paper")
    if any(method.paper_error_anywhere is not None for method in methods):
        axes.plot([], [], color=MUTED, linestyle=DOTTED, label="paper, of no stated size")
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_xlabel("hidden layers × units", fontsize=10)
    axes.set_ylabel("test error, %", fontsize=10)
    axes.set_title("Test error against size", loc="left", fontsize=11, color=INK)


def _depth(size: str) -> str:
    return size.partition("x")[0]


def _draw_rejection(
    axes: Axes, methods: Sequence[MethodPicture], styles: Mapping[str, dict[str, Any]], at_size: str
) -> None:
    for method in methods:
        if len(method.rejection[0]):
            axes.plot(*method.rejection, **styles[method.name], linewidth=1.6, markersize=4.5)
    axes.set_xlabel("most doubtful images rejected, %", fontsize=10)
    axes.set_ylabel("accuracy on the rest, %", fontsize=10)
    axes.set_title(f"Accuracy against rejection, {at_size}", loc="left", fontsize=11, color=INK)


def _draw_auroc(
    axes: Axes, methods: Sequence[MethodPicture], styles: Mapping[str, dict[str, Any]], at_size: str
) -> None:
    shown = [(method.name, method.auroc) for method in methods if method.auroc]
    sets = list(dict.fromkeys(name for _, auroc in shown for name in auroc))
    for k, (name, auroc) in enumerate(shown):
        places = np.arange(len(sets)) + 0.6 * ((k + 0.5) / len(shown) - 0.5)
        axes.plot(places, [auroc.get(one, float("nan")) for one in sets], **styles[name], linestyle="", markersize=7)
    axes.set_xlim(-0.5, max(len(sets), 1) - 0.5)
    axes.set_xticks(range(len(sets)), [SET_NAMES.get(name, name) for name in sets])
    axes.set_ylabel("AUROC of the predictive entropy", fontsize=10)
    axes.set_title(f"Telling other images from digits, {at_size}", loc="left", fontsize=11, color=INK)
