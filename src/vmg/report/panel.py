"""Panels of the report: the house style of its pictures, each as inline SVG, and those that every report has.

Colours become CSS variables of the page, so that one picture serves light, dark and print. Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, ScalarFormatter

from vmg.report.facts import Array
from vmg.report.influence import Effect, Influence

__all__ = [
    "CLASS_STYLES",
    "COLOURS",
    "Colour",
    "Picture",
    "class_legend",
    "difference_figure",
    "effect_frame",
    "effect_picture",
    "influence_figure",
    "picture",
    "row_names",
    "rows_height",
    "segments",
    "shares_of_ignorance",
    "short",
]

P = ParamSpec("P")

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
OWN_FIGURE = "vmg: a picture of its own"  # the label of a figure whose height may be changed
LARGE = 10_000  # numbers from here on have their thousands apart


class Picture(Generic[P]):
    """A function that draws on axes; called without them, it gives its picture as SVG in the house style."""

    def __init__(
        self, draw: Callable[Concatenate[Axes, P], None], description: str, size: tuple[float, float], **axes: Any
    ) -> None:
        self._draw, self._description, self._size = draw, description, size
        self._percent, self._axes = axes.pop("percent", ""), axes

    def on(self, ax: Axes, *args: P.args, **kwargs: P.kwargs) -> Axes:
        """Draw on axes."""
        ax.set(**self._axes)
        self._draw(ax, *args, **kwargs)
        for letter in self._percent:
            percent_axis(ax.xaxis if letter == "x" else ax.yaxis)
        for axis in (ax.xaxis, ax.yaxis):
            _write_out(axis)
        return ax

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Markup:
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
            figure = Figure(figsize=self._size, label=OWN_FIGURE)
            ax = self.on(figure.add_subplot(), *args, **kwargs)
            if ax.get_legend_handles_labels()[0]:  # above the axes, where it covers nothing
                spaces = {"columnspacing": 1.3, "handletextpad": 0.5, "borderaxespad": 0.1}
                figure.legend(loc="outside upper right", ncols=3, **spaces)
            text = io.StringIO()
            FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})  # savefig draws twice
        return _inline(text.getvalue(), self._description)


def picture(
    description: str, *, width: float = WIDE, height: float = TALL, **axes: Any
) -> Callable[[Callable[Concatenate[Axes, P], None]], Picture[P]]:
    """Make a picture of a function that draws on axes.

    Args:
        description: read out where the picture is not seen.
        axes: properties of the axes, such as ``ylabel``; ``percent`` names axes of shares by the letters x and y.
    """
    return lambda draw: Picture(draw, description, (width, height), **axes)


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


def _write_out(axis: Axis) -> None:
    """Write large numbers with thousands apart, and those of logarithmic axes as numbers, not as formulas."""
    logarithmic, large = axis.get_scale() == "log", max(map(abs, axis.get_view_interval())) >= LARGE
    if logarithmic or (large and isinstance(axis.get_major_formatter(), ScalarFormatter)):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    if large and not logarithmic:
        axis.set_major_locator(MaxNLocator(5))


def percent_axis(axis: Axis, most: int = 6) -> None:
    """Shares as percents, at round steps."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}\u00a0%"))


def rows_height(ax: Axes, n: int, each: float = 0.27, least: float = 2.6) -> None:
    """Make a panel as high as n names down its side need; the figure of a user stays as it is."""
    if isinstance(ax.figure, Figure) and ax.figure.get_label() == OWN_FIGURE:
        ax.figure.set_figheight(max(least, 0.9 + each * n))


def row_names(ax: Axes, names: Sequence[str], most: int = 22) -> None:
    """Names down the left side, the first on top."""
    ax.set_yticks(range(len(names)), [short(name, most) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)


# -- pictures that regression and classification share ----------------------------------------------------------------

FEW_VALUES = 6  # of a number, drawn as dots
PROBABILITY = "probability"  # the label of effects on classes


@picture("Influence of each column")
def influence_figure(ax: Axes, influences: list[Influence], unit: str) -> None:
    """How far each column moves predictions."""
    place = np.arange(len(influences))
    rows_height(ax, len(influences))
    low, mean, high = np.array([[i.low, i.mean, i.high] for i in influences]).T
    ax.hlines(place, low, high, color=Colour.BLUE, alpha=0.4, linewidth=3)
    ax.scatter(mean, place, s=24, color=Colour.BLUE, zorder=3)
    row_names(ax, [i.column for i in influences])
    ax.set_xlim(left=0)
    ax.set_xlabel(unit)
    if unit.startswith("probability"):
        percent_axis(ax.xaxis)


@picture("Differences from other methods", xlabel="difference")
def difference_figure(ax: Axes, gains: Mapping[str, tuple[float, float]]) -> None:
    """Intervals of paired differences between methods, the one that is best in the picture first."""
    kept = {
        name: ends for name, ends in sorted(gains.items(), key=lambda item: sum(item[1])) if np.isfinite(ends).all()
    }
    rows_height(ax, len(kept))
    ax.axvline(0, color=Colour.MUTED, linewidth=0.9)
    for place, (low, high) in enumerate(kept.values()):
        colour = Colour.BLUE if low > 0 else Colour.RED if high < 0 else Colour.MUTED
        ax.hlines(place, low, high, color=colour, alpha=0.5, linewidth=3)
        ax.scatter((low + high) / 2, place, s=24, color=colour, zorder=3)
    row_names(ax, list(kept))


@picture("Shares of noise and ignorance", height=3.0, percent="y", xlim=(0, 1), ylim=(0, 1))
def shares_of_ignorance(ax: Axes, uncertainty: Array, ignorance_share: Array, of: str) -> None:
    """How noise and ignorance share the uncertainty, from the most certain rows to the least."""
    order = np.argsort(uncertainty, kind="stable")
    groups = np.array_split(ignorance_share[order], min(40, len(order)))
    share = np.array([group.mean() for group in groups])
    edges = np.linspace(0, 1, len(share) + 1)
    ax.stairs(np.ones_like(share), edges, baseline=share, fill=True, color=Colour.MUTED, alpha=0.28)
    ax.stairs(share, edges, fill=True, color=Colour.BLUE, alpha=0.6)
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
        ax.hlines(shifted, effect.low[:, k], effect.high[:, k], color=colour, alpha=0.45, linewidth=2.6)
        ax.scatter(effect.mean[:, k], shifted, s=17, color=colour, zorder=3)
    row_names(ax, [str(value) for value in effect.values], 18)
    ax.set(xlim=limits, xlabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    if label == PROBABILITY:
        percent_axis(ax.xaxis, 4)


def class_legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """Class names with the CSS colour each has in effects."""
    variable = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
    return [(name, variable[colour]) for name, (colour, _) in zip(names, CLASS_STYLES, strict=False)]
