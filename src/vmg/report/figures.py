"""The pictures of a report: intervals, calibration, confusion, influence and effects of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from scipy import stats

from vmg import metrics
from vmg.math.distributions import Array
from vmg.report.facts import Bin, Contents, Effect, Influence, Intervals, choose
from vmg.report.panel import (
    CLASS_STYLES,
    COLOURS,
    Colour,
    Picture,
    percent_axis,
    picture,
    row_names,
    rows_height,
    segments,
    short,
)

__all__ = [
    *("calibration_curve", "class_legend", "classification_figures", "difference_figure", "effect_frame"),
    *("effect_picture", "influence_figure", "interval_bars", "regression_figures", "reliability_diagram"),
]

SCATTER_POINTS = 600
INTERVAL_BARS = 60
LOG_SPREAD = 10.0  # times between the ends of the middle 90 % of amounts from which on axes are logarithmic
MOST_CONFUSED = 12  # classes in the confusion matrix
FEW_VALUES = 6  # of a number, drawn as dots
PROBABILITY = "probability"  # the label of effects on classes


# -- numbers ----------------------------------------------------------------------------------------------------------


def regression_figures(contents: Contents, intervals: Intervals, target: str) -> dict[str, Markup]:
    """All panels of a regression; those that need the truth only where it is known."""
    name, mean, known = short(target), contents.prediction.mean, contents.known
    figures = {
        "intervals": interval_bars(contents, intervals, name),
        "shares": shares_of_ignorance(contents, "variance"),
    }
    if contents.scores is None:
        return figures | {"target": _histogram(mean, f"predicted {name}")}
    return figures | {
        "target": _histogram(contents.truth[known], name),
        "fit": _fit(contents, intervals, name),
        "calibration": calibration_curve(contents),
        "residuals": _residuals(contents, name),
    }


def _is_logarithmic(contents: Contents) -> bool:
    """Whether pictures of predictions have logarithmic axes."""
    mean, known = contents.prediction.mean, contents.known
    return _spans_magnitudes(contents.truth[known] if len(known) else mean) and bool((mean > 0).all())


def _spans_magnitudes(values: Array) -> bool:
    """Whether numbers are amounts that are seen on a logarithmic axis alone."""
    low, high = np.quantile(values, (0.05, 0.95))
    return bool((values > 0).all() and high > LOG_SPREAD * low)


@picture("Truth against prediction with 90 % intervals")
def _fit(ax: Axes, contents: Contents, intervals: Intervals, name: str) -> None:
    seen = np.isfinite(contents.truth[intervals.drawn])
    rows, (low, high) = intervals.drawn[seen], intervals.ends[seen].T
    mean, truth = contents.prediction.mean[rows], contents.truth[rows]
    both = np.concatenate([mean, truth])
    if _is_logarithmic(contents):
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
def interval_bars(ax: Axes, contents: Contents, intervals: Intervals, name: str) -> None:
    """Intervals of up to 60 rows, with the truth where it is known."""
    some = choose(len(intervals.drawn), INTERVAL_BARS)
    order = some[np.argsort(contents.prediction.mean[intervals.drawn[some]], kind="stable")]
    rows, (low, high) = intervals.drawn[order], intervals.ends[order].T
    truth, place, mean = contents.truth[rows], np.arange(len(rows), dtype=np.float64), contents.prediction.mean[rows]
    if _is_logarithmic(contents):
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
def calibration_curve(ax: Axes, contents: Contents) -> None:
    """Share of truths at or below each quantile."""
    levels, n = np.linspace(0, 1, 101), len(contents.known)
    cdf = contents.prediction.take(contents.known).cdf(contents.truth[contents.known])
    inner = levels[1:-1]
    # what perfect predictions would show in 95 of 100 tables of this size, at each level
    low, high = (stats.binom.ppf(q, n, inner) / n for q in (0.025, 0.975))
    ax.fill_between(inner, low, high, color=Colour.MUTED, alpha=0.18, linewidth=0, label="chance")
    ax.plot([0, 1], [0, 1], color=Colour.MUTED, linewidth=0.9)
    ax.plot(levels, metrics.calibration_curve(cdf, levels), color=Colour.BLUE, label="observed")
    ax.set_xlabel("predicted probability of a value this low")


@picture("Residuals against predictions", ylabel="truth − prediction")
def _residuals(ax: Axes, contents: Contents, name: str) -> None:
    mean = contents.prediction.mean[contents.known]
    residual, some = contents.truth[contents.known] - mean, choose(len(mean), SCATTER_POINTS)
    if _is_logarithmic(contents):
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
    low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 0.0)
    n_edges = int(np.clip(2 * len(shown) ** 0.5, 6, 30)) + 1
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):  # all the same
        margin = 0.05 * abs(low) or 0.5
        edges = np.linspace(low - margin, low + margin, 12)
    elif _spans_magnitudes(shown):
        ax.set(xscale="log")
        edges = np.geomspace(low, high, n_edges)
    else:
        edges = np.linspace(low, high, n_edges)
    ax.hist(shown, bins=edges.tolist(), color=Colour.BLUE, alpha=0.75, edgecolor=Colour.PAPER, linewidth=0.6)
    ax.set_xlabel(label)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(axis="x", visible=False)


# -- classes ----------------------------------------------------------------------------------------------------------


def classification_figures(contents: Contents, reliability: list[Bin]) -> dict[str, Markup]:
    """All panels of a classification; those that need the truth only where it is known."""
    classes = [str(name) for name in contents.prediction.classes]
    figures = {"target": _class_shares(contents, classes), "shares": shares_of_ignorance(contents, "uncertainty")}
    if contents.scores is None:
        return figures
    figures |= {"confusion": _confusion(contents, classes), "rejection": _rejection(contents)}
    return figures | {"reliability": reliability_diagram(reliability)}


@picture("Share of each class", percent="x")
def _class_shares(ax: Axes, contents: Contents, classes: list[str]) -> None:
    predicted, known = contents.prediction.probabilities.mean(0), contents.known
    order = np.argsort(-predicted, kind="stable")[:20]
    rows_height(ax, len(order))
    place = np.arange(len(order))
    longest = float(predicted.max())
    if contents.scores is not None:
        shares = np.bincount(contents.truth[known], minlength=len(predicted)) / len(known)
        ax.barh(place, shares[order], height=0.62, color=Colour.MUTED, alpha=0.35, label="share of rows")
        longest = max(longest, float(shares.max()))
    ax.scatter(predicted[order], place, s=26, color=Colour.BLUE, zorder=3, label="mean predicted probability")
    row_names(ax, [classes[k] for k in order])
    ax.set_xlim(0, 1.08 * longest)


@picture("Confusion matrix", xlabel="predicted class", ylabel="true class")
def _confusion(ax: Axes, contents: Contents, classes: list[str]) -> None:
    known, n_classes = contents.known, len(classes)
    whole = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(whole, (contents.truth[known], contents.prediction.probabilities[known].argmax(1)), 1)
    kept = np.sort(np.argsort(-whole.sum(1), kind="stable")[:MOST_CONFUSED])
    counts, n = whole[np.ix_(kept, kept)], len(kept)
    share = counts / np.maximum(whole.sum(1)[kept][:, None], 1)
    rows_height(ax, n, 0.36, 3.0)
    for i, j in np.ndindex(n, n):
        if counts[i, j]:
            # never so dark that ink on it cannot be read
            fill: Any = {"facecolor": Colour.BLUE if i == j else Colour.RED, "alpha": 0.06 + 0.5 * share[i, j]}
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, linewidth=0, **fill))
        how: Any = {"weight": "bold" if i == j else "normal", "color": Colour.INK if counts[i, j] else Colour.MUTED}
        ax.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", **how)
    names = [short(classes[k], 16) for k in kept]
    long = max(len(name) for name in names) * n > 60
    ax.set_xticks(range(n), names, rotation=35 if long else 0, ha="right" if long else "center")
    row_names(ax, names)
    ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


@picture("Reliability diagram", percent="xy", ylim=(-0.02, 1.04), ylabel="share of rows that were right")
def reliability_diagram(ax: Axes, bins: list[Bin]) -> None:
    """How often the likeliest class is right, by its probability."""
    x, y, low, high, n = np.array(bins).T
    start = min(0.5, float(np.floor(10 * x.min()) / 10))
    ax.plot([start, 1], [start, 1], color=Colour.MUTED, linewidth=0.9, label="perfect")
    ax.plot(*segments(x, low, high), color=Colour.BLUE, alpha=0.45, linewidth=2.2)
    label = "rows of like probability"
    ax.scatter(x, y, s=14 + 110 * n / n.sum(), color=Colour.BLUE, linewidths=0, zorder=3, label=label)
    ax.set(xlim=(start, 1.02), xlabel="highest class probability")


@picture("Accuracy against the share of rows set aside", percent="xy", ylabel="accuracy on the rest")
def _rejection(ax: Axes, contents: Contents) -> None:
    correct, known = contents.confidence[1], contents.known
    curves = {
        "by all uncertainty (entropy)": contents.uncertainty[known],
        "by ignorance (mutual information)": contents.prediction.mutual_information[known],
    }
    base = float(correct.mean())
    ax.axhline(base, color=Colour.MUTED, linewidth=0.9)
    room = max(1 - base, 0.02)
    ax.set_ylim(max(base - 0.15 * room, -0.02), 1 + 0.06 * room)
    for (label, uncertainty), (colour, dash) in zip(curves.items(), CLASS_STYLES, strict=False):
        rejected, accuracy = metrics.rejection_curve(uncertainty, correct)
        kept = np.unique(np.linspace(0, len(rejected) - 1, 200).round().astype(int))
        kept = kept[rejected[kept] <= 0.95]
        ax.plot(rejected[kept], accuracy[kept], color=colour, linestyle=dash, label=label)
    ax.set_xlabel("rows set aside, the least certain first")


# -- both --------------------------------------------------------------------------------------------------------------


def _whiskers(ax: Axes, place: Any, low: Any, middle: Any, high: Any, colour: str) -> None:
    """A dot and a bar in each row."""
    ax.hlines(place, low, high, color=colour, alpha=0.45, linewidth=2.8)
    ax.scatter(middle, place, s=20, color=colour, zorder=3)


@picture("Influence of each column")
def influence_figure(ax: Axes, influences: list[Influence], unit: str) -> None:
    """How far each column moves predictions."""
    rows_height(ax, len(influences))
    mean, low, high = np.array([influence[1:] for influence in influences]).T
    _whiskers(ax, np.arange(len(influences)), low, mean, high, Colour.BLUE)
    row_names(ax, [i.column for i in influences])
    ax.set_xlim(left=0)
    ax.set_xlabel(unit)
    if unit.startswith(PROBABILITY):
        percent_axis(ax.xaxis)


@picture("Differences from other methods", xlabel="difference")
def difference_figure(ax: Axes, gains: Mapping[str, tuple[float, float]]) -> None:
    """Intervals of paired differences between methods, the one that is best in the picture first."""
    kept = sorted((name for name in gains if np.isfinite(gains[name]).all()), key=lambda name: sum(gains[name]))
    rows_height(ax, len(kept))
    ax.axvline(0, color=Colour.MUTED, linewidth=0.9)
    for place, (low, high) in enumerate(map(gains.__getitem__, kept)):
        colour = Colour.BLUE if low > 0 else Colour.RED if high < 0 else Colour.MUTED
        _whiskers(ax, place, low, (low + high) / 2, high, colour)
    row_names(ax, kept)


@picture("Shares of noise and ignorance", height=3.0, percent="y", xlim=(0, 1), ylim=(0, 1), xticks=[])
def shares_of_ignorance(ax: Axes, contents: Contents, of: str) -> None:
    """How noise and ignorance share the uncertainty, from the most certain rows to the least."""
    ordered = contents.ignorance_share[np.argsort(contents.uncertainty, kind="stable")]
    share = np.array([group.mean() for group in np.array_split(ordered, min(40, len(ordered)))])
    edges = np.linspace(0, 1, len(share) + 1)
    ax.stairs(np.ones_like(share), edges, baseline=share, fill=True, color=Colour.MUTED, alpha=0.28, label="noise")
    ax.stairs(share, edges, fill=True, color=Colour.BLUE, alpha=0.6, label="ignorance")
    ax.set(xlabel="rows, from the most to the least certain", ylabel=f"share of {of}")
    ax.grid(visible=False)


def effect_frame(
    effects: Sequence[Effect], task: str, target: str, classes: Sequence[int]
) -> tuple[str, tuple[float, float], Sequence[int]]:
    """Label and limits of the axis that panels of effects share; ``classes`` are the columns of the effects to show."""
    low = min(float(effect.low[:, classes].min()) for effect in effects)
    high = max(float(effect.high[:, classes].max()) for effect in effects)
    margin = 0.05 * (high - low or 1.0)
    limits = (low - margin, high + margin)
    if task == "classification":
        return PROBABILITY, (max(limits[0], -0.02), min(limits[1], 1.02)), classes
    return f"predicted {short(target, 24)}", limits, classes


def effect_picture(effect: Effect) -> Picture[Effect, str, tuple[float, float], Sequence[int]]:
    """The picture of an effect: a curve of numbers and dates, a line for each level of others."""
    return _curve if effect.kind in ("number", "date") else _levels


@picture("Effect of a number or a date", width=3.7, height=2.75)
def _curve(ax: Axes, effect: Effect, label: str, limits: tuple[float, float], classes: Sequence[int]) -> None:
    few = len(effect.values) <= FEW_VALUES
    for k, (colour, dash) in zip(classes, CLASS_STYLES, strict=False):
        mean, low, high = effect.mean[:, k], effect.low[:, k], effect.high[:, k]
        if few:
            ax.plot(*segments(effect.values, low, high), color=colour, alpha=0.45, linewidth=2.6)
            ax.plot(effect.values, mean, "o", color=colour, markersize=4.5)
        else:
            ax.fill_between(effect.values, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.plot(effect.values, mean, color=colour, linestyle=dash)
    floor = np.full(len(effect.observed), limits[0])
    ax.plot(effect.observed, floor, "|", color=Colour.INK, markersize=9, mew=0.8)
    ax.set(ylim=limits, ylabel=label)
    if effect.kind == "date":  # the first, the middle and the last moment, as exactly as they differ
        shown = effect.values[[0, len(effect.values) // 2, -1]].astype("datetime64[s]")
        days = float((shown[-1] - shown[0]) / np.timedelta64(1, "D"))
        form = "%b %Y" if days > 120 else "%d %b %Y" if days > 3 else "%d %b %H:%M"
        ax.set_xticks(shown, [moment.strftime(form) for moment in shown.tolist()])
    elif few:
        ax.set_xticks(effect.values)
        ax.margins(x=0.25)
    else:
        whole = bool((effect.observed == np.round(effect.observed)).all())
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
    if label == PROBABILITY:
        percent_axis(ax.yaxis)


@picture("Effect of a category", width=3.7)
def _levels(ax: Axes, effect: Effect, label: str, limits: tuple[float, float], classes: Sequence[int]) -> None:
    rows_height(ax, len(effect.values), 0.24, 2.75)
    place = np.arange(len(effect.values), dtype=np.float64)
    step = 0.16 if len(classes) > 1 else 0.0
    for order, (k, (colour, _)) in enumerate(zip(classes, CLASS_STYLES, strict=False)):
        shifted = place + step * (order - (len(classes) - 1) / 2)
        _whiskers(ax, shifted, effect.low[:, k], effect.mean[:, k], effect.high[:, k], colour)
    row_names(ax, [str(value) for value in effect.values], 18)
    ax.set(xlim=limits, xlabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if label == PROBABILITY:
        percent_axis(ax.xaxis, 4)


def class_legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """Class names with the CSS colour each has in effects."""
    return [(name, COLOURS[colour]) for name, (colour, _) in zip(names, CLASS_STYLES, strict=False)]
