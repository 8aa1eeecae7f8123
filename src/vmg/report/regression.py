"""Intervals and pictures of a regression report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy import stats

from vmg import metrics
from vmg.estimators import TableModel
from vmg.prediction.conformal import conformal_interval
from vmg.report.facts import Array, Contents, Positions, choose
from vmg.report.panel import Colour, picture, segments, shares_of_ignorance, short

__all__ = [
    "Coverage",
    "Intervals",
    "calibration_curve",
    "interval_bars",
    "is_logarithmic",
    "read_intervals",
    "regression_figures",
]

COVERAGES = (0.5, 0.8, 0.9, 0.95)
INTERVAL_ROWS = 400  # rows whose interval ends are drawn; in a mixture each is found by a root search
SCATTER_POINTS = 600
INTERVAL_BARS = 60
LOG_SPREAD = 10.0  # times between the ends of the middle 90 % of amounts from which on axes are logarithmic


@dataclass(frozen=True)
class Coverage:
    """How often an interval held the truth."""

    stated: float
    observed: float
    width: float
    n_rows: int

    @property
    def tolerance(self) -> float:
        """Tolerated difference: two standard errors of chance, and two percentage points."""
        return 0.02 + 2 * float(np.sqrt(self.stated * (1 - self.stated) / self.n_rows))


@dataclass(frozen=True)
class Intervals:
    """90 % intervals of some of the shown rows, and how often intervals held the truth."""

    drawn: Positions  # [D]
    ends: Array  # [D, 2]
    of_row: dict[int, tuple[float, float]]  # of the most and the least certain rows
    coverages: tuple[Coverage, ...]  # empty where no truth is known


def read_intervals(model: TableModel, contents: Contents) -> Intervals:
    """The intervals that the model predicts, conformal ones where it has them."""
    prediction, conformal = contents.prediction, model.estimator.conformal_scores_
    drawn, known = choose(len(contents.position), INTERVAL_ROWS), contents.known
    extreme = np.concatenate([contents.certain, contents.uncertain])
    ends, outer = (conformal_interval(prediction.take(rows), conformal, 0.9) for rows in (drawn, extreme))
    coverages = []
    for stated in COVERAGES if contents.scores is not None else ():
        interval = conformal_interval(prediction.take(known), conformal, stated)
        held = metrics.interval_coverage(contents.truth[known], interval)
        coverages.append(Coverage(stated, held, metrics.interval_width(interval), len(known)))
    of_row = {int(row): (float(low), float(high)) for row, (low, high) in zip(extreme, outer, strict=True)}
    return Intervals(drawn, ends, of_row, tuple(coverages))


# -- pictures ----------------------------------------------------------------------------------------------------------


def regression_figures(contents: Contents, intervals: Intervals, target: str) -> dict[str, Markup]:
    """All panels of a regression; those that need the truth only where it is known."""
    name, mean, known = short(target), contents.prediction.mean, contents.known
    logarithmic = is_logarithmic(contents)
    figures = {
        "intervals": interval_bars(contents, intervals, name, logarithmic),
        "shares": shares_of_ignorance(contents.uncertainty, contents.ignorance_share, "variance"),
    }
    if contents.scores is None:
        return figures | {"target": _histogram(mean, f"predicted {name}")}
    truth, mean = contents.truth[known], mean[known]
    return figures | {
        "target": _histogram(truth, name),
        "fit": _fit(contents, intervals, name, logarithmic),
        "calibration": calibration_curve(contents.prediction.take(known).cdf(truth)),
        "residuals": _residuals(mean, truth - mean, name, logarithmic),
    }


def is_logarithmic(contents: Contents) -> bool:
    """Whether pictures of predictions have logarithmic axes."""
    mean, known = contents.prediction.mean, contents.known
    return _spans_magnitudes(contents.truth[known] if len(known) else mean) and bool((mean > 0).all())


def _spans_magnitudes(values: Array) -> bool:
    """Whether numbers are amounts that are seen on a logarithmic axis alone."""
    if not len(values) or not (values > 0).all():
        return False
    low, high = np.quantile(values, (0.05, 0.95))
    return bool(high > LOG_SPREAD * low)


@picture("Truth against prediction with 90 % intervals")
def _fit(ax: Axes, contents: Contents, intervals: Intervals, name: str, logarithmic: bool) -> None:
    seen = np.isfinite(contents.truth[intervals.drawn])
    rows, (low, high) = intervals.drawn[seen], intervals.ends[seen].T
    mean, truth = contents.prediction.mean[rows], contents.truth[rows]
    both = np.concatenate([mean, truth])
    if logarithmic:
        ax.set(xscale="log", yscale="log")
        low = np.maximum(low, both.min() / 2)
    inside = (low <= truth) & (truth <= high)
    ends = [both.min(), both.max()] if len(both) else [0, 1]
    ax.plot(ends, ends, color=Colour.MUTED, linewidth=0.9, zorder=1)
    ax.plot(*segments(truth, low, high), color=Colour.BLUE, alpha=0.22, linewidth=1.1, zorder=2)
    for which, colour, marker, label in (
        (inside, Colour.BLUE, "o", "truth inside"),
        (~inside, Colour.RED, "D", "truth outside"),
    ):
        ax.scatter(truth[which], mean[which], s=11, color=colour, marker=marker, linewidths=0, zorder=3, label=label)
    ax.set(xlabel=f"true {name}", ylabel=f"predicted {name}")


@picture("90 % intervals of some rows")
def interval_bars(ax: Axes, contents: Contents, intervals: Intervals, name: str, logarithmic: bool) -> None:
    """Intervals of up to 60 rows, with the truth where it is known."""
    some = choose(len(intervals.drawn), INTERVAL_BARS)
    order = some[np.argsort(contents.prediction.mean[intervals.drawn[some]], kind="stable")]
    rows, (low, high) = intervals.drawn[order], intervals.ends[order].T
    truth, place, mean = contents.truth[rows], np.arange(len(rows), dtype=np.float64), contents.prediction.mean[rows]
    if logarithmic:
        ax.set(yscale="log")
        low = np.maximum(low, np.nanmin([mean, truth]) / 2)
    outside = (truth < low) | (truth > high)
    ax.plot(*segments(place, low, high), color=Colour.BLUE, alpha=0.35, linewidth=3.2)
    ax.plot(place, mean, linestyle="none", marker="_", markersize=4.5, color=Colour.BLUE, label="prediction")
    if np.isfinite(truth).any():
        inside = np.isfinite(truth) & ~outside
        ax.scatter(place[inside], truth[inside], s=9, color=Colour.INK, linewidths=0, zorder=3, label="truth")
        ax.scatter(place[outside], truth[outside], s=13, color=Colour.RED, marker="D", linewidths=0, zorder=3)
    ax.set(xlabel=f"{len(rows)} rows, ordered by prediction" if len(rows) > 1 else "one row", ylabel=name, xticks=[])
    ax.grid(axis="x", visible=False)


@picture("Calibration curve", percent="xy", xlim=(0, 1), ylim=(0, 1), ylabel="share of rows that low")
def calibration_curve(ax: Axes, cdf: Array) -> None:
    """Share of truths at or below each quantile."""
    levels, n = np.linspace(0, 1, 101), len(cdf)
    inner = levels[1:-1]
    # what perfect predictions would show in 95 of 100 tables of this size, at each level
    low, high = (stats.binom.ppf(q, n, inner) / n for q in (0.025, 0.975))
    ax.fill_between(inner, low, high, color=Colour.MUTED, alpha=0.18, linewidth=0, label="chance")
    ax.plot([0, 1], [0, 1], color=Colour.MUTED, linewidth=0.9)
    ax.plot(levels, metrics.calibration_curve(cdf, levels), color=Colour.BLUE, label="observed")
    ax.set_xlabel("predicted probability of a value this low")


@picture("Residuals against predictions", ylabel="truth − prediction")
def _residuals(ax: Axes, mean: Array, residual: Array, name: str, logarithmic: bool) -> None:
    some = choose(len(mean), SCATTER_POINTS)
    if logarithmic:
        ax.set(xscale="log")
    ax.axhline(0, color=Colour.MUTED, linewidth=0.9)
    ax.scatter(mean[some], residual[some], s=11, color=Colour.BLUE, alpha=0.55, linewidths=0)
    if len(mean) >= 40:
        groups = np.array_split(np.argsort(mean, kind="stable"), min(12, len(mean) // 10))
        centre = [[mean[g].mean(), residual[g].mean()] for g in groups]
        ax.plot(*np.array(centre).T, color=Colour.RED, label="running mean")
    ax.set_xlabel(f"predicted {name}")


@picture("Histogram", height=2.9, ylabel="rows")
def _histogram(ax: Axes, values: Array, label: str) -> None:
    shown = values[np.isfinite(values)]
    if len(shown):
        style: dict[str, Any] = {"color": Colour.BLUE, "alpha": 0.75, "edgecolor": Colour.PAPER, "linewidth": 0.6}
        ax.hist(shown, bins=_edges(ax, shown), **style)
    ax.set_xlabel(label)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(axis="x", visible=False)


def _edges(ax: Axes, values: Array, most: int = 30) -> list[float]:
    """Edges of histogram bins, also where all values are the same; the axis is set to be logarithmic with them."""
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = 0.05 * abs(low) or 0.5
        return [float(edge) for edge in np.linspace(low - margin, low + margin, 12)]
    n = int(np.clip(2 * len(values) ** 0.5, 6, most)) + 1
    if _spans_magnitudes(values):
        ax.set(xscale="log")
        return [float(edge) for edge in np.geomspace(low, high, n)]
    return [float(edge) for edge in np.linspace(low, high, n)]
