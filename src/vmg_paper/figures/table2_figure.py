"""Table 2 as a picture: errors against size, errors once the doubtful are rejected, and doubt about other images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["MethodPicture", "draw_table2_figure"]

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 9.0, 7.6, 160
INK, MUTED, GRID = "#222222", "#666666", "#dfe3e8"
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
