"""The house style of pictures, as inline SVG of a report or on axes of a user.

Colours become CSS variables of the page, so that one picture serves light, dark and print. Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, ScalarFormatter

from vmg.math.distributions import Array

__all__ = [
    *("CLASS_STYLES", "COLOURS", "Colour", "Picture"),
    *("percent_axis", "picture", "row_names", "rows_height", "segments", "short"),
]

P = ParamSpec("P")


class Colour:
    """Okabe and Ito's colours, which the colour-blind tell apart; the page has lighter ones for dark screens."""

    INK = "#23282f"
    MUTED = "#68707a"
    GRID = "#dfe3e8"
    PAPER = "#fffffe"
    BLUE = "#0072b2"
    RED = "#d55e00"
    GREEN = "#009e73"
    PURPLE = "#b0578d"
    AMBER = "#c98a00"
    SKY = "#3d9fd6"


COLOURS = {value: f"var(--{name.lower()})" for name, value in vars(Colour).items() if name.isupper()}
"""The CSS variable of each colour."""

CLASS_STYLES = (
    (Colour.BLUE, "-"),
    (Colour.RED, "--"),
    (Colour.GREEN, "-."),
    (Colour.PURPLE, ":"),
    (Colour.AMBER, (0, (5, 1, 1, 1, 1, 1))),
    (Colour.SKY, (0, (8, 2))),
)
"""Colour and dash of each class: as many classes as a picture can show."""

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": Colour.GRID,
    "grid.linewidth": 0.6,
    "text.parse_math": False,  # a column may be called "$ per $"
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "butt",
    "svg.fonttype": "none",
    "svg.hashsalt": "vmg",
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), Colour.MUTED),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), Colour.INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
}
WIDE, TALL = 5.0, 3.5  # inches of a panel
OWN_FIGURE = "vmg: a picture of its own"  # the label of a figure whose height may be changed
LARGE = 10_000  # numbers from here on have their thousands apart


@dataclass(frozen=True)
class Picture(Generic[P]):
    """A function that draws on axes; called without them, it gives its picture as SVG in the house style."""

    draw: Callable[Concatenate[Axes, P], None]
    description: str
    size: tuple[float, float]  # inches
    percent: str
    axes: dict[str, Any]

    def on(self, ax: Axes, *args: P.args, **kwargs: P.kwargs) -> Axes:
        """Draw on axes."""
        ax.set(**self.axes)
        self.draw(ax, *args, **kwargs)
        for letter in self.percent:
            percent_axis(ax.xaxis if letter == "x" else ax.yaxis)
        for axis in (ax.xaxis, ax.yaxis):
            _write_out(axis)
        return ax

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Markup:
        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has other fonts
            figure = Figure(figsize=self.size, label=OWN_FIGURE)
            ax = self.on(figure.add_subplot(), *args, **kwargs)
            if ax.get_legend_handles_labels()[0]:  # above the axes, where it covers nothing
                spaces = {"columnspacing": 1.3, "handletextpad": 0.5, "borderaxespad": 0.1}
                figure.legend(loc="outside upper right", ncols=3, **spaces)
            text = io.StringIO()
            FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})  # savefig draws twice
        return _inline(text.getvalue(), self.description)


def picture(
    description: str, *, width: float = WIDE, height: float = TALL, percent: str = "", **axes: Any
) -> Callable[[Callable[Concatenate[Axes, P], None]], Picture[P]]:
    """Make a picture of a function that draws on axes.

    Args:
        description: read out where the picture is not seen.
        percent: the axes of shares, by the letters x and y.
        axes: properties of the axes, such as ``ylabel``.
    """
    return lambda draw: Picture(draw, description, (width, height), percent, axes)


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
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, variable)
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
