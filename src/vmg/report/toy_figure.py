"""The paper's Figure 1 for one model: data, truth, and a band that opens where there are no data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["ToyCurve", "draw_toy_figure"]

Array = NDArray[np.float64]

WIDTH_INCHES, HEIGHT_INCHES, DOTS_PER_INCH = 6.4, 4.2, 200
INK, BLUE, LIGHT_BLUE, PALE_BLUE, ORANGE = "#222222", "#1f5fa8", "#a9c1df", "#dde7f2", "#d1581a"
HEIGHT = 160.0  # of the y axis, both ways: the truth leaves it near |x| = 5.4


@dataclass(frozen=True)
class ToyCurve:
    """A predictive distribution along a line: its mean, its spread, and ignorance's part of that."""

    x: Array
    mean: Array
    std: Array
    epistemic_std: Array


def draw_toy_figure(curve: ToyCurve, x: Array, y: Array, path: str | os.PathLike[str]) -> None:
    """Draw data (x, y), the true x³, and the mean with ±3 standard deviations [LW16, figure 1]."""
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), dpi=DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    for spread, colour, label in (
        (curve.std, PALE_BLUE, "±3 std of the target"),
        (curve.epistemic_std, LIGHT_BLUE, "±3 std of ignorance alone"),
    ):
        lower, upper = curve.mean - 3 * spread, curve.mean + 3 * spread
        axes.fill_between(curve.x, lower, upper, color=colour, linewidth=0, label=label)
    axes.plot(curve.x, curve.x**3, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label="truth, $x^3$")
    axes.plot(curve.x, curve.mean, color=BLUE, linewidth=2, label="mean")
    axes.plot(x, y, "o", color=ORANGE, markersize=5.5, markeredgecolor="white", markeredgewidth=0.8, label="data")
    axes.set(xlim=(curve.x[0], curve.x[-1]), ylim=(-HEIGHT, HEIGHT), xlabel="$x$", ylabel="$y$")
    axes.set_title("Sure where there are data, unsure where there are none", loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    figure.savefig(Path(path))
