"""Pictures of a regression: each function draws one panel and gives it as inline SVG."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy import stats

from vmg.metrics import calibration_curve
from vmg.report.panel import Colour, legend, panel, percent_axis, segments, shares_of_ignorance, short
from vmg.report.regression import RegressionContents
from vmg.report.table_facts import Array, choose

__all__ = ["regression_figures"]

SCATTER_POINTS = 600
INTERVAL_BARS = 60


def regression_figures(contents: RegressionContents, target: str) -> dict[str, Markup]:
    """All panels of a regression; those that need the truth only where it is known."""
    name = short(target)
    figures = {
        "intervals": _interval_bars(contents, name),
        "spread": _spread(contents.std, f"predicted standard deviation of {name}"),
        "shares": shares_of_ignorance(contents.std, contents.ignorance_share, "variance"),
    }
    if contents.scores is None:
        figures["target"] = _target_histogram(contents.mean, f"predicted {name}")
        return figures
    known = contents.known
    mean, std, truth = contents.mean[known], contents.std[known], contents.truth[known]
    return figures | {
        "target": _target_histogram(truth, name),
        "fit": _fit(contents, name),
        "calibration": _calibration(contents.cdf),
        "residuals": _residuals(mean, truth - mean, name),
        "standardised": _standardised((truth - mean) / std),
    }


def _target_histogram(values: Array, label: str) -> Markup:
    with panel(f"Histogram of {label}", height=2.9) as drawn:
        _histogram(drawn.axes, values)
        drawn.axes.set_xlabel(label)
    return drawn.svg


def _fit(contents: RegressionContents, name: str) -> Markup:
    rows = contents.drawn
    seen = np.isfinite(contents.truth[rows])
    mean, truth, (low, high) = contents.mean[rows][seen], contents.truth[rows][seen], contents.interval[seen].T
    inside = (low <= truth) & (truth <= high)
    ends = np.array([min(mean.min(), truth.min()), max(mean.max(), truth.max())]) if len(mean) else np.array([0, 1])
    with panel(f"{name}: truth against prediction with 90 % intervals") as drawn:
        ax = drawn.axes
        ax.plot(ends, ends, color=Colour.MUTED, linewidth=0.9, zorder=1)
        ax.plot(*segments(truth, low, high), color=Colour.BLUE, alpha=0.22, linewidth=1.1, zorder=2)
        for which, colour, label in ((inside, Colour.BLUE, "truth inside"), (~inside, Colour.RED, "truth outside")):
            marker = "o" if colour == Colour.BLUE else "D"
            ax.scatter(
                truth[which], mean[which], s=11, color=colour, marker=marker, linewidths=0, zorder=3, label=label
            )
        ax.set_xlabel(f"true {name}")
        ax.set_ylabel(f"predicted {name}")
        legend(ax)
    return drawn.svg


def _interval_bars(contents: RegressionContents, name: str) -> Markup:
    some = choose(len(contents.drawn), INTERVAL_BARS)
    rows = contents.drawn[some]
    order = np.argsort(contents.mean[rows], kind="stable")
    rows, (low, high) = rows[order], contents.interval[some][order].T
    truth, place = contents.truth[rows], np.arange(len(rows), dtype=np.float64)
    outside = (truth < low) | (truth > high)
    with panel(f"90 % intervals of {name} for some rows") as drawn:
        ax = drawn.axes
        ax.plot(*segments(place, low, high), color=Colour.BLUE, alpha=0.35, linewidth=3.2)
        ax.plot(
            place,
            contents.mean[rows],
            linestyle="none",
            marker="_",
            markersize=4.5,
            color=Colour.BLUE,
            label="prediction",
        )
        if np.isfinite(truth).any():
            inside = np.isfinite(truth) & ~outside
            ax.scatter(place[inside], truth[inside], s=9, color=Colour.INK, linewidths=0, zorder=3, label="truth")
            ax.scatter(place[outside], truth[outside], s=13, color=Colour.RED, marker="D", linewidths=0, zorder=3)
        ax.set_xlabel(f"{len(rows)} rows, ordered by prediction" if len(rows) > 1 else "one row")
        ax.set_ylabel(name)
        ax.set_xticks([])
        ax.grid(axis="x", visible=False)
        legend(ax)
    return drawn.svg


def _calibration(cdf: Array) -> Markup:
    levels, n = np.linspace(0, 1, 101), len(cdf)
    observed = calibration_curve(cdf, levels)
    inner = levels[1:-1]
    # what perfect predictions would show in 95 of 100 tables of this size, at each level
    low, high = (stats.binom.ppf(q, n, inner) / n for q in (0.025, 0.975))
    with panel("Calibration curve") as drawn:
        ax = drawn.axes
        ax.fill_between(inner, low, high, color=Colour.MUTED, alpha=0.18, linewidth=0, label="chance")
        ax.plot([0, 1], [0, 1], color=Colour.MUTED, linewidth=0.9)
        ax.plot(levels, observed, color=Colour.BLUE, label="observed")
        ax.set_xlabel("predicted probability of a value this low")
        ax.set_ylabel("share of rows that low")
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        percent_axis(ax, "x")
        percent_axis(ax, "y")
        legend(ax)
    return drawn.svg


def _spread(values: Array, label: str) -> Markup:
    with panel(f"Histogram of {label}", height=3.0) as drawn:
        _histogram(drawn.axes, values)
        drawn.axes.set_xlabel(label)
    return drawn.svg


def _residuals(mean: Array, residual: Array, name: str) -> Markup:
    some = choose(len(mean), SCATTER_POINTS)
    with panel(f"Residuals of {name} against predictions") as drawn:
        ax = drawn.axes
        ax.axhline(0, color=Colour.MUTED, linewidth=0.9)
        ax.scatter(mean[some], residual[some], s=11, color=Colour.BLUE, alpha=0.55, linewidths=0)
        if len(mean) >= 40:
            groups = np.array_split(np.argsort(mean, kind="stable"), min(12, len(mean) // 10))
            centre = [[mean[g].mean(), residual[g].mean()] for g in groups]
            ax.plot(*np.array(centre).T, color=Colour.RED, label="running mean")
            legend(ax)
        ax.set_xlabel(f"predicted {name}")
        ax.set_ylabel("truth − prediction")
    return drawn.svg


def _standardised(z: Array) -> Markup:
    z = z[np.isfinite(z)]
    edges = np.linspace(-4, 4, 33 if len(z) > 100 else 17).tolist()
    grid = np.linspace(-4, 4, 161)
    with panel("Histogram of standardised residuals against a normal") as drawn:
        ax = drawn.axes
        if len(z):
            ax.hist(
                np.clip(z, -4, 4),
                bins=edges,
                density=True,
                color=Colour.BLUE,
                alpha=0.75,
                edgecolor=Colour.PAPER,
                linewidth=0.6,
            )
        ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=Colour.RED, label="standard normal")
        ax.set_xlabel("(truth − prediction) / predicted standard deviation")
        ax.set_ylabel("density")
        ax.set_xticks(range(-4, 5), ["≤ −4", *(str(v).replace("-", "−") for v in range(-3, 4)), "≥ 4"])
        ax.grid(axis="x", visible=False)
        legend(ax)
    return drawn.svg


def _bins(values: Array, most: int = 30) -> list[float]:
    """Edges of histogram bins, also where all values are the same."""
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = 0.05 * abs(low) or 0.5
        return [float(edge) for edge in np.linspace(low - margin, low + margin, 12)]
    return [float(edge) for edge in np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 6, most)) + 1)]


def _histogram(ax: Axes, values: Array, colour: str = Colour.BLUE, **options: Any) -> None:
    shown = values[np.isfinite(values)]
    if len(shown):
        ax.hist(shown, bins=_bins(shown), color=colour, alpha=0.75, edgecolor=Colour.PAPER, linewidth=0.6, **options)
    ax.set_ylabel("rows")
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(axis="x", visible=False)
