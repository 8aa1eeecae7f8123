"""A panel of the report: the house style of its pictures, and a picture as inline SVG.

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
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

__all__ = [
    "BLUE",
    "CLASS_STYLES",
    "COLOURS",
    "INK",
    "MUTED",
    "PAPER",
    "RED",
    "Panel",
    "legend",
    "panel",
    "percent_axis",
    "row_names",
    "rows_height",
    "segments",
    "short",
]

Array = NDArray[np.float64]

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
