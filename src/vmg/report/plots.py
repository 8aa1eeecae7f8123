"""The report's pictures: each function draws one panel and gives it as inline SVG.

Colours become CSS variables of the page, so that one picture serves light, dark and print. Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from scipy import stats

from vmg.report.contents import (
    Array,
    ClassificationContents,
    Effect,
    Influence,
    RegressionContents,
    TrainingCurve,
    choose,
)

__all__ = [
    "COLOURS",
    "class_legend",
    "classification_figures",
    "effect_figures",
    "regression_figures",
    "shared_figures",
    "short",
]

# Okabe and Ito's colours, which the colour-blind tell apart; the page has lighter ones for dark screens.
COLOURS = {
    "ink": "#23282f",
    "muted": "#68707a",
    "grid": "#dfe3e8",
    "paper": "#fffffe",
    "blue": "#0072b2",
    "red": "#d55e00",
    "green": "#009e73",
    "purple": "#b0578d",
    "amber": "#c98a00",
    "sky": "#3d9fd6",
}
INK, MUTED, GRID, PAPER, BLUE, RED = (COLOURS[name] for name in ("ink", "muted", "grid", "paper", "blue", "red"))
CLASS_STYLES = tuple(
    zip(
        (COLOURS[name] for name in ("blue", "red", "green", "purple", "amber", "sky")),
        ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))),
        strict=True,
    )
)
"""Colour and dash of each class: as many classes as a picture can show."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a column may be called "$ per $"
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "butt",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "vmg",
    "figure.constrained_layout.use": True,
}
WIDE, TALL = 5.0, 3.5  # inches of a panel
SCATTER_POINTS = 600
INTERVAL_BARS = 60
FEW_VALUES = 6  # of a number, drawn as dots


class Panel:
    """One picture while it is drawn; ``svg`` once it is done."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = Markup()


@contextmanager
def panel(description: str, width: float = WIDE, height: float = TALL) -> Iterator[Panel]:
    """Axes in the house style; ``description`` is read out where the picture is not seen."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
        figure = Figure(figsize=(width, height))
        drawn = Panel(figure.add_subplot())
        yield drawn
        text = io.StringIO()
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})  # savefig draws twice
    drawn.svg = _inline(text.getvalue(), description)


def _inline(svg: str, description: str) -> Markup:
    """Matplotlib's SVG document as an element of the page: sized by it, coloured by it, without ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-zA-Z]+[\w.]*_\d+"', "", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    opening = f'<svg {view[0]} role="img" aria-label="{escape(description)}">'
    svg = re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return Markup(re.sub(r"\n\s*", "\n", svg))


def short(text: object, most: int = 34) -> str:
    """A name that fits on an axis."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def _segments(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Vertical bars as one line with gaps: a single path, however many bars."""
    gap = np.full(len(x), np.nan)
    return np.stack([x, x, gap], 1).ravel(), np.stack([low, high, gap], 1).ravel()


def _bins(values: Array, most: int = 30) -> list[float]:
    """Edges of histogram bins, also where all values are the same."""
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = 0.05 * abs(low) or 0.5
        return np.linspace(low - margin, low + margin, 12).tolist()
    return np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 6, most)) + 1).tolist()


def _histogram(ax: Axes, values: Array, colour: str = BLUE, **options: Any) -> None:
    shown = values[np.isfinite(values)]
    if len(shown):
        ax.hist(shown, bins=_bins(shown), color=colour, alpha=0.75, edgecolor=PAPER, linewidth=0.6, **options)
    ax.set_ylabel("rows")
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.grid(axis="x", visible=False)


def _legend(ax: Axes) -> None:
    """A legend above the axes, where it covers nothing."""
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(loc="outside upper right", ncols=3, columnspacing=1.3, handletextpad=0.5, borderaxespad=0.1)


def _date_ticks(ax: Axes, moments: NDArray[np.datetime64]) -> None:
    """The first, the middle and the last moment, as exactly as they differ."""
    shown = moments[[0, len(moments) // 2, -1]].astype("datetime64[s]")
    days = float((shown[-1] - shown[0]) / np.timedelta64(1, "D"))
    form = "%b %Y" if days > 120 else "%d %b %Y" if days > 3 else "%d %b %H:%M"
    ax.set_xticks(shown, [moment.strftime(form) for moment in shown.tolist()])


def _percent(ax: Axes, which: str) -> None:
    """Shares on the x or y axis as percents, at round steps."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}\u00a0%"))


# -- regression -------------------------------------------------------------------------------------------------------


def regression_figures(contents: RegressionContents, target: str) -> dict[str, Markup]:
    """All panels of a regression; those that need the truth only where it is known."""
    name = short(target)
    figures = {
        "intervals": _interval_bars(contents, name),
        "spread": _spread(contents.std, f"predicted standard deviation of {name}"),
        "shares": _shares(contents.std, contents.ignorance_share, "variance"),
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
        ax.plot(ends, ends, color=MUTED, linewidth=0.9, zorder=1)
        ax.plot(*_segments(truth, low, high), color=BLUE, alpha=0.22, linewidth=1.1, zorder=2)
        for which, colour, label in ((inside, BLUE, "truth inside"), (~inside, RED, "truth outside")):
            marker = "o" if colour == BLUE else "D"
            ax.scatter(
                truth[which], mean[which], s=11, color=colour, marker=marker, linewidths=0, zorder=3, label=label
            )
        ax.set_xlabel(f"true {name}")
        ax.set_ylabel(f"predicted {name}")
        _legend(ax)
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
        ax.plot(*_segments(place, low, high), color=BLUE, alpha=0.35, linewidth=3.2)
        ax.plot(
            place, contents.mean[rows], linestyle="none", marker="_", markersize=4.5, color=BLUE, label="prediction"
        )
        if np.isfinite(truth).any():
            inside = np.isfinite(truth) & ~outside
            ax.scatter(place[inside], truth[inside], s=9, color=INK, linewidths=0, zorder=3, label="truth")
            ax.scatter(place[outside], truth[outside], s=13, color=RED, marker="D", linewidths=0, zorder=3)
        ax.set_xlabel(f"{len(rows)} rows, ordered by prediction" if len(rows) > 1 else "one row")
        ax.set_ylabel(name)
        ax.set_xticks([])
        ax.grid(axis="x", visible=False)
        _legend(ax)
    return drawn.svg


def _calibration(cdf: Array) -> Markup:
    levels, n = np.linspace(0, 1, 101), len(cdf)
    observed = np.searchsorted(np.sort(cdf), levels, side="right") / n
    inner = levels[1:-1]
    # what perfect predictions would show in 95 of 100 tables of this size, at each level
    low, high = (stats.binom.ppf(q, n, inner) / n for q in (0.025, 0.975))
    with panel("Calibration curve") as drawn:
        ax = drawn.axes
        ax.fill_between(inner, low, high, color=MUTED, alpha=0.18, linewidth=0, label="chance")
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9)
        ax.plot(levels, observed, color=BLUE, label="observed")
        ax.set_xlabel("predicted probability of a value this low")
        ax.set_ylabel("share of rows that low")
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        _percent(ax, "x")
        _percent(ax, "y")
        _legend(ax)
    return drawn.svg


def _spread(values: Array, label: str) -> Markup:
    with panel(f"Histogram of {label}", height=3.0) as drawn:
        _histogram(drawn.axes, values)
        drawn.axes.set_xlabel(label)
    return drawn.svg


def _shares(uncertainty: Array, ignorance_share: Array, of: str) -> Markup:
    order = np.argsort(uncertainty, kind="stable")
    groups = np.array_split(ignorance_share[order], min(40, len(order)))
    share = np.array([group.mean() for group in groups])
    edges = np.linspace(0, 1, len(share) + 1)
    with panel(f"Shares of noise and ignorance in the {of}", height=3.0) as drawn:
        ax = drawn.axes
        ax.stairs(np.ones_like(share), edges, baseline=share, fill=True, color=MUTED, alpha=0.28)
        ax.stairs(share, edges, fill=True, color=BLUE, alpha=0.6)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        quarter = -(-len(share) // 4)
        left, right = float(share[:quarter].mean()), float(share[-quarter:].mean())
        sides = ((0.03, "left", left), (0.97, "right", right))
        for name, (x, side, part) in zip(("ignorance", "noise"), sides if left > right else sides[::-1], strict=True):
            room, y = (part, part / 2) if name == "ignorance" else (1 - part, 0.5 + part / 2)
            if room > 0.08:
                ax.text(x, y, name, ha=side, va="center")
        ax.set_xticks([0.02, 0.98], ["most certain rows", "least certain rows"])
        first, last = ax.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        ax.set_ylabel(f"share of {of}")
        _percent(ax, "y")
        ax.grid(visible=False)
    return drawn.svg


def _residuals(mean: Array, residual: Array, name: str) -> Markup:
    some = choose(len(mean), SCATTER_POINTS)
    with panel(f"Residuals of {name} against predictions") as drawn:
        ax = drawn.axes
        ax.axhline(0, color=MUTED, linewidth=0.9)
        ax.scatter(mean[some], residual[some], s=11, color=BLUE, alpha=0.55, linewidths=0)
        if len(mean) >= 40:
            groups = np.array_split(np.argsort(mean, kind="stable"), min(12, len(mean) // 10))
            centre = [[mean[g].mean(), residual[g].mean()] for g in groups]
            ax.plot(*np.array(centre).T, color=RED, label="running mean")
            _legend(ax)
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
            ax.hist(np.clip(z, -4, 4), bins=edges, density=True, color=BLUE, alpha=0.75, edgecolor=PAPER, linewidth=0.6)
        ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=RED, label="standard normal")
        ax.set_xlabel("(truth − prediction) / predicted standard deviation")
        ax.set_ylabel("density")
        ax.set_xticks(range(-4, 5), ["≤ −4", *(str(v).replace("-", "−") for v in range(-3, 4)), "≥ 4"])
        ax.grid(axis="x", visible=False)
        _legend(ax)
    return drawn.svg


# -- classification ---------------------------------------------------------------------------------------------------


def classification_figures(contents: ClassificationContents) -> dict[str, Markup]:
    """All panels of a classification; those that need the truth only where it is known."""
    figures = {
        "target": _class_shares(contents),
        "confidence": _confidence(contents),
        "shares": _shares(contents.entropy, contents.ignorance_share, "uncertainty"),
    }
    if contents.scores is not None:
        figures |= {
            "confusion": _confusion(contents),
            "reliability": _reliability(contents),
            "rejection": _rejection(contents),
        }
    return figures


def _rows_height(n: int) -> float:
    return 0.9 + 0.27 * max(n, 2)


def _names(ax: Axes, names: Sequence[str], most: int = 22) -> None:
    """Names down the left side, the first on top."""
    ax.set_yticks(range(len(names)), [short(name, most) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


def _class_shares(contents: ClassificationContents) -> Markup:
    predicted = contents.probabilities.mean(0)
    order = np.argsort(-predicted, kind="stable")[:20]
    with panel("Share of each class", height=max(2.6, _rows_height(len(order)))) as drawn:
        ax = drawn.axes
        place = np.arange(len(order))
        seen = 0.0
        if contents.scores is not None:
            shares = np.bincount(contents.label[contents.known], minlength=len(predicted)) / len(contents.known)
            ax.barh(place, shares[order], height=0.62, color=MUTED, alpha=0.35, label="share of rows")
            seen = float(shares.max())
        ax.scatter(predicted[order], place, s=26, color=BLUE, zorder=3, label="mean predicted probability")
        _names(ax, [contents.classes[k] for k in order])
        ax.set_xlim(0, 1.08 * max(float(predicted.max()), seen))
        _percent(ax, "x")
        _legend(ax)
    return drawn.svg


def _confidence(contents: ClassificationContents) -> Markup:
    top = contents.probabilities.max(1)
    edges = np.linspace(min(0.5, 1 / len(contents.classes)), 1, 26)
    with panel("Histogram of the highest class probability", height=3.0) as drawn:
        ax = drawn.axes
        options: dict[str, Any] = {"bins": edges, "edgecolor": PAPER, "linewidth": 0.6, "stacked": True}
        if contents.scores is None:
            ax.hist(np.clip(top, edges[0], 1), color=BLUE, alpha=0.75, **options)
        else:
            known = np.clip(top[contents.known], edges[0], 1)
            parts = [known[contents.correct], known[~contents.correct]]
            ax.hist(parts, color=[BLUE, RED], alpha=0.75, label=["right", "wrong"], **options)
            _legend(ax)
        ax.set_xlabel("highest class probability")
        ax.set_ylabel("rows")
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.grid(axis="x", visible=False)
        _percent(ax, "x")
    return drawn.svg


def _confusion(contents: ClassificationContents) -> Markup:
    counts = contents.confusion
    kept = np.sort(np.argsort(-counts.sum(1), kind="stable")[:12])
    counts = counts[np.ix_(kept, kept)]
    share = counts / np.maximum(contents.confusion.sum(1)[kept][:, None], 1)
    n = len(kept)
    with panel("Confusion matrix", height=max(3.0, 1.4 + 0.36 * n)) as drawn:
        ax = drawn.axes
        for i, j in np.ndindex(n, n):
            if counts[i, j]:
                # never so dark that ink on it cannot be read
                cell = Rectangle((j - 0.5, i - 0.5), 1, 1, alpha=0.06 + 0.5 * share[i, j], linewidth=0)
                cell.set_facecolor(BLUE if i == j else RED)
                ax.add_patch(cell)
            weight = "bold" if i == j else "normal"
            colour = INK if counts[i, j] else MUTED
            ax.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", weight=weight, color=colour)
        names = [short(contents.classes[k], 16) for k in kept]
        long = max(len(name) for name in names) * n > 60
        ax.set_xticks(range(n), names, rotation=35 if long else 0, ha="right" if long else "center")
        _names(ax, names)
        ax.set_xlim(-0.5, n - 0.5)
        ax.set_ylim(n - 0.5, -0.5)
        ax.set_xlabel("predicted class")
        ax.set_ylabel("true class")
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    return drawn.svg


def _reliability(contents: ClassificationContents) -> Markup:
    bins = contents.reliability
    x, y = np.array([b.confidence for b in bins]), np.array([b.accuracy for b in bins])
    low, high, n = (np.array([getattr(b, name) for b in bins]) for name in ("low", "high", "n_rows"))
    start = min(0.5, float(np.floor(10 * x.min()) / 10))
    with panel("Reliability diagram") as drawn:
        ax = drawn.axes
        ax.plot([start, 1], [start, 1], color=MUTED, linewidth=0.9, label="perfect")
        ax.plot(*_segments(x, low, high), color=BLUE, alpha=0.45, linewidth=2.2)
        ax.scatter(x, y, s=14 + 110 * n / n.sum(), color=BLUE, linewidths=0, zorder=3, label="rows of like probability")
        ax.set_xlim(start, 1.02)
        ax.set_ylim(-0.02, 1.04)
        ax.set_xlabel("highest class probability")
        ax.set_ylabel("share of rows that were right")
        _percent(ax, "x")
        _percent(ax, "y")
        _legend(ax)
    return drawn.svg


def _rejection(contents: ClassificationContents) -> Markup:
    with panel("Accuracy against the share of rows set aside") as drawn:
        ax = drawn.axes
        curves = (
            (contents.entropy, "by all uncertainty (entropy)", *CLASS_STYLES[0]),
            (contents.mutual_information, "by ignorance (mutual information)", *CLASS_STYLES[1]),
        )
        base = float(contents.correct.mean())
        ax.axhline(base, color=MUTED, linewidth=0.9)
        room = max(1 - base, 0.02)
        ax.set_ylim(max(base - 0.15 * room, -0.02), 1 + 0.06 * room)
        for uncertainty, label, colour, dash in curves:
            rejected, accuracy = contents.rejection(uncertainty)
            kept = np.unique(np.linspace(0, len(rejected) - 1, 200).round().astype(int))
            kept = kept[rejected[kept] <= 0.95]
            ax.plot(rejected[kept], accuracy[kept], color=colour, linestyle=dash, label=label)
        ax.set_xlabel("rows set aside, the least certain first")
        ax.set_ylabel("accuracy on the rest")
        _percent(ax, "x")
        _percent(ax, "y")
        _legend(ax)
    return drawn.svg


# -- both -------------------------------------------------------------------------------------------------------------


def shared_figures(influences: list[Influence], curve: TrainingCurve | None, unit: str) -> dict[str, Markup]:
    """Panels that every model has: influence and relevance of columns, the training curve."""
    figures: dict[str, Markup] = {}
    if influences:
        figures |= {"influence": _influence(influences, unit), "relevance": _relevance(influences)}
    if curve is not None:
        figures |= {"training": _training(curve)}
    return figures


def _influence(influences: list[Influence], unit: str) -> Markup:
    with panel("Influence of each column", height=max(2.6, _rows_height(len(influences)))) as drawn:
        ax = drawn.axes
        place = np.arange(len(influences))
        ax.hlines(place, [i.low for i in influences], [i.high for i in influences], color=BLUE, alpha=0.4, linewidth=3)
        ax.scatter([i.mean for i in influences], place, s=24, color=BLUE, zorder=3)
        _names(ax, [i.column for i in influences])
        ax.set_xlim(left=0)
        ax.set_xlabel(unit)
        if unit.startswith("probability"):
            _percent(ax, "x")
    return drawn.svg


def _relevance(influences: list[Influence]) -> Markup:
    with panel("Learned relevance of each column", height=max(2.6, _rows_height(len(influences)))) as drawn:
        ax = drawn.axes
        ax.barh(range(len(influences)), [i.relevance for i in influences], height=0.6, color=BLUE, alpha=0.6)
        _names(ax, [i.column for i in influences])
        ax.set_xlim(0, 1.03)
        ax.set_xlabel("size of its weights in the first layer (largest = 1)")
    return drawn.svg


def _training(curve: TrainingCurve) -> Markup:
    # the first steps fall so far below the rest that nothing else would be seen
    late = curve.bound[len(curve.bound) // 20 :]
    top = float(curve.fit.max())
    bottom = min(float(late.min()), float(curve.bound[-1]))
    margin = 0.06 * max(top - bottom, 1e-3)
    marker = "o" if len(curve.step) < 3 else None
    with panel("Training curve") as drawn:
        ax = drawn.axes
        ax.fill_between(curve.step, curve.bound, curve.fit, color=MUTED, alpha=0.16, linewidth=0, label="complexity")
        ax.plot(curve.step, curve.fit, color=RED, linestyle="--", marker=marker, label="fit")
        ax.plot(curve.step, curve.bound, color=BLUE, marker=marker, label="bound = fit − complexity")
        ax.set_ylim(bottom - margin, top + margin)
        ax.set_xlabel("training step")
        ax.set_ylabel("nats per row")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _legend(ax)
    return drawn.svg


def effect_figures(effects: list[Effect], task: str, target: str, classes: Sequence[int]) -> list[Markup]:
    """One small panel for each effect, all on the same scale; ``classes`` are the columns of the effect to show."""
    if not effects:
        return []
    low = min(float(effect.low[:, classes].min()) for effect in effects)
    high = max(float(effect.high[:, classes].max()) for effect in effects)
    margin = 0.05 * (high - low or 1.0)
    limits = (low - margin, high + margin)
    if task == "classification":
        limits = (max(limits[0], -0.02), min(limits[1], 1.02))
        label = "probability"
    else:
        label = f"predicted {short(target, 24)}"
    return [_effect(effect, label, limits, classes) for effect in effects]


def _effect(effect: Effect, label: str, limits: tuple[float, float], classes: Sequence[int]) -> Markup:
    description = f"Effect of {effect.column}"
    if effect.kind in ("number", "date"):
        with panel(description, 3.7, 2.75) as drawn:
            ax = drawn.axes
            for k, (colour, dash) in zip(classes, CLASS_STYLES, strict=False):
                mean, low, high = effect.mean[:, k], effect.low[:, k], effect.high[:, k]
                if len(effect.values) <= FEW_VALUES:
                    ax.plot(*_segments(effect.values, low, high), color=colour, alpha=0.45, linewidth=2.6)
                    ax.plot(effect.values, mean, "o", color=colour, markersize=4.5)
                else:
                    ax.fill_between(effect.values, low, high, color=colour, alpha=0.2, linewidth=0)
                    ax.plot(effect.values, mean, color=colour, linestyle=dash)
            ax.plot(effect.observed, np.full(len(effect.observed), limits[0]), "|", color=INK, markersize=9, mew=0.8)
            ax.set_ylim(limits)
            ax.set_ylabel(label)
            if effect.kind == "date":
                _date_ticks(ax, effect.values)
            elif len(effect.values) <= FEW_VALUES:
                ax.set_xticks(effect.values)
                ax.margins(x=0.25)
            else:
                whole = bool((effect.observed == np.round(effect.observed)).all())
                ax.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
            if label == "probability":
                _percent(ax, "y")
        return drawn.svg
    with panel(description, 3.7, max(2.75, 0.8 + 0.24 * len(effect.values))) as drawn:
        ax = drawn.axes
        place = np.arange(len(effect.values), dtype=np.float64)
        step = 0.16 if len(classes) > 1 else 0.0
        for order, (k, (colour, _)) in enumerate(zip(classes, CLASS_STYLES, strict=False)):
            shifted = place + step * (order - (len(classes) - 1) / 2)
            ax.hlines(shifted, effect.low[:, k], effect.high[:, k], color=colour, alpha=0.45, linewidth=2.6)
            ax.scatter(effect.mean[:, k], shifted, s=17, color=colour, zorder=3)
        _names(ax, [str(value) for value in effect.values], 18)
        ax.set_xlim(limits)
        ax.set_xlabel(label)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        if label == "probability":
            _percent(ax, "x")
            ax.xaxis.set_major_locator(MaxNLocator(4))
    return drawn.svg


def class_legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """Class names with the CSS colour each has in effects."""
    variable = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return [(name, variable[colour]) for name, (colour, _) in zip(names, CLASS_STYLES, strict=False)]
