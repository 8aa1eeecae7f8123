"""Panels of the report: the house style of its pictures, each as inline SVG, and those that every report has.

Colours become CSS variables of the page, so that one picture serves light, dark and print. Text stays text.
"""

from __future__ import annotations

import io
import os
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
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vmg.prediction import NumberPrediction
from vmg.report.facts import Array, TrainingCurve
from vmg.report.influence import Effect, Influence

__all__ = [
    "CLASS_STYLES",
    "COLOURS",
    "Colour",
    "Panel",
    "class_legend",
    "draw_toy_figure",
    "effect_figures",
    "legend",
    "panel",
    "percent_axis",
    "row_names",
    "rows_height",
    "segments",
    "shared_figures",
    "shares_of_ignorance",
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


class Colour:
    """Colours that a picture asks for by name."""

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
    "axes.edgecolor": Colour.MUTED,
    "axes.labelcolor": Colour.INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": Colour.GRID,
    "grid.linewidth": 0.6,
    "text.color": Colour.INK,
    "text.parse_math": False,  # a column may be called "$ per $"
    "xtick.color": Colour.MUTED,
    "ytick.color": Colour.MUTED,
    "xtick.labelcolor": Colour.INK,
    "ytick.labelcolor": Colour.INK,
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


def segments(x: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Vertical bars as one line with gaps: a single path, however many bars."""
    gap = np.full(len(x), np.nan)
    return np.stack([x, x, gap], 1).ravel(), np.stack([low, high, gap], 1).ravel()


def legend(ax: Axes) -> None:
    """A legend above the axes, where it covers nothing."""
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(loc="outside upper right", ncols=3, columnspacing=1.3, handletextpad=0.5, borderaxespad=0.1)


def percent_axis(ax: Axes, which: str) -> None:
    """Shares on the x or y axis as percents, at round steps."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}\u00a0%"))


def rows_height(n: int) -> float:
    """Inches of a panel with n names down its side."""
    return 0.9 + 0.27 * max(n, 2)


def row_names(ax: Axes, names: Sequence[str], most: int = 22) -> None:
    """Names down the left side, the first on top."""
    ax.set_yticks(range(len(names)), [short(name, most) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


# -- pictures that regression and classification share ----------------------------------------------------------------

FEW_VALUES = 6  # of a number, drawn as dots


def shared_figures(influences: list[Influence], curve: TrainingCurve | None, unit: str) -> dict[str, Markup]:
    """Panels that every model has: influence and relevance of columns, the training curve."""
    figures: dict[str, Markup] = {}
    if influences:
        figures |= {"influence": _influence(influences, unit), "relevance": _relevance(influences)}
    if curve is not None:
        figures |= {"training": _training(curve)}
    return figures


def _influence(influences: list[Influence], unit: str) -> Markup:
    with panel("Influence of each column", height=max(2.6, rows_height(len(influences)))) as drawn:
        ax = drawn.axes
        place = np.arange(len(influences))
        ax.hlines(
            place, [i.low for i in influences], [i.high for i in influences], color=Colour.BLUE, alpha=0.4, linewidth=3
        )
        ax.scatter([i.mean for i in influences], place, s=24, color=Colour.BLUE, zorder=3)
        row_names(ax, [i.column for i in influences])
        ax.set_xlim(left=0)
        ax.set_xlabel(unit)
        if unit.startswith("probability"):
            percent_axis(ax, "x")
    return drawn.svg


def _relevance(influences: list[Influence]) -> Markup:
    with panel("Learned relevance of each column", height=max(2.6, rows_height(len(influences)))) as drawn:
        ax = drawn.axes
        ax.barh(range(len(influences)), [i.relevance for i in influences], height=0.6, color=Colour.BLUE, alpha=0.6)
        row_names(ax, [i.column for i in influences])
        ax.set_xlim(0, 1.03)
        ax.set_xlabel("size of its weights in the first layer (largest = 1)")
    return drawn.svg


def _training(curve: TrainingCurve) -> Markup:
    # the first steps fall so far below the rest that nothing else would be seen
    late = curve.objective[len(curve.objective) // 20 :]
    top = float(curve.fit.max())
    bottom = min(float(late.min()), float(curve.objective[-1]))
    margin = 0.06 * max(top - bottom, 1e-3)
    marker = "o" if len(curve.step) < 3 else None
    with panel("Training curve") as drawn:
        ax = drawn.axes
        ax.fill_between(
            curve.step, curve.objective, curve.fit, color=Colour.MUTED, alpha=0.16, linewidth=0, label="complexity"
        )
        ax.plot(curve.step, curve.fit, color=Colour.RED, linestyle="--", marker=marker, label="fit")
        label = "log posterior = fit − complexity"
        ax.plot(curve.step, curve.objective, color=Colour.BLUE, marker=marker, label=label)
        ax.set_ylim(bottom - margin, top + margin)
        ax.set_xlabel("training step")
        ax.set_ylabel("nats per row")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        legend(ax)
    return drawn.svg


def shares_of_ignorance(uncertainty: Array, ignorance_share: Array, of: str) -> Markup:
    """How noise and ignorance share the uncertainty, from the most certain rows to the least."""
    order = np.argsort(uncertainty, kind="stable")
    groups = np.array_split(ignorance_share[order], min(40, len(order)))
    share = np.array([group.mean() for group in groups])
    edges = np.linspace(0, 1, len(share) + 1)
    with panel(f"Shares of noise and ignorance in the {of}", height=3.0) as drawn:
        ax = drawn.axes
        ax.stairs(np.ones_like(share), edges, baseline=share, fill=True, color=Colour.MUTED, alpha=0.28)
        ax.stairs(share, edges, fill=True, color=Colour.BLUE, alpha=0.6)
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
        percent_axis(ax, "y")
        ax.grid(visible=False)
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
                    ax.plot(*segments(effect.values, low, high), color=colour, alpha=0.45, linewidth=2.6)
                    ax.plot(effect.values, mean, "o", color=colour, markersize=4.5)
                else:
                    ax.fill_between(effect.values, low, high, color=colour, alpha=0.2, linewidth=0)
                    ax.plot(effect.values, mean, color=colour, linestyle=dash)
            ax.plot(
                effect.observed, np.full(len(effect.observed), limits[0]), "|", color=Colour.INK, markersize=9, mew=0.8
            )
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
                percent_axis(ax, "y")
        return drawn.svg
    with panel(description, 3.7, max(2.75, 0.8 + 0.24 * len(effect.values))) as drawn:
        ax = drawn.axes
        place = np.arange(len(effect.values), dtype=np.float64)
        step = 0.16 if len(classes) > 1 else 0.0
        for order, (k, (colour, _)) in enumerate(zip(classes, CLASS_STYLES, strict=False)):
            shifted = place + step * (order - (len(classes) - 1) / 2)
            ax.hlines(shifted, effect.low[:, k], effect.high[:, k], color=colour, alpha=0.45, linewidth=2.6)
            ax.scatter(effect.mean[:, k], shifted, s=17, color=colour, zorder=3)
        row_names(ax, [str(value) for value in effect.values], 18)
        ax.set_xlim(limits)
        ax.set_xlabel(label)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        if label == "probability":
            percent_axis(ax, "x")
            ax.xaxis.set_major_locator(MaxNLocator(4))
    return drawn.svg


def _date_ticks(ax: Axes, moments: NDArray[np.datetime64]) -> None:
    """The first, the middle and the last moment, as exactly as they differ."""
    shown = moments[[0, len(moments) // 2, -1]].astype("datetime64[s]")
    days = float((shown[-1] - shown[0]) / np.timedelta64(1, "D"))
    form = "%b %Y" if days > 120 else "%d %b %Y" if days > 3 else "%d %b %H:%M"
    ax.set_xticks(shown, [moment.strftime(form) for moment in shown.tolist()])


def class_legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """Class names with the CSS colour each has in effects."""
    variable = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return [(name, variable[colour]) for name, (colour, _) in zip(names, CLASS_STYLES, strict=False)]


# -- the toy problem --------------------------------------------------------------------------------------------------

TOY_HEIGHT = 160.0  # of the y axis, both ways: the truth leaves it near |x| = 5.4


def draw_toy_figure(
    grid: Array, prediction: NumberPrediction, x: Array, y: Array, path: str | os.PathLike[str]
) -> None:
    """Draw data (x, y), the true x³, and the mean along ``grid`` with ±3 standard deviations [LW16, figure 1]."""
    figure = Figure(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.subplots()
    mean = prediction.mean
    for spread, alpha, label in (
        (prediction.std, 0.15, "±3 std of the target"),
        (prediction.epistemic_std, 0.3, "±3 std of ignorance alone"),
    ):
        axes.fill_between(
            grid, mean - 3 * spread, mean + 3 * spread, color=Colour.BLUE, alpha=alpha, linewidth=0, label=label
        )
    axes.plot(grid, grid**3, color=Colour.INK, linewidth=1.2, linestyle=(0, (5, 3)), label="truth, $x^3$")
    axes.plot(grid, mean, color=Colour.BLUE, linewidth=2, label="mean")
    axes.plot(x, y, "o", color=Colour.RED, markersize=5.5, markeredgecolor="white", markeredgewidth=0.8, label="data")
    axes.set(xlim=(grid[0], grid[-1]), ylim=(-TOY_HEIGHT, TOY_HEIGHT), xlabel="$x$", ylabel="$y$")
    axes.set_title("Sure where there are data, unsure where there are none", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    figure.savefig(path)
