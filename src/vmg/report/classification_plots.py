"""Pictures of a classification: each function draws one panel and gives it as inline SVG."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vmg.report.classification import ClassificationContents
from vmg.report.panel import (
    CLASS_STYLES,
    Colour,
    legend,
    panel,
    percent_axis,
    row_names,
    rows_height,
    segments,
    shares_of_ignorance,
    short,
)

__all__ = ["classification_figures"]


def classification_figures(contents: ClassificationContents) -> dict[str, Markup]:
    """All panels of a classification; those that need the truth only where it is known."""
    figures = {
        "target": _class_shares(contents),
        "confidence": _confidence(contents),
        "shares": shares_of_ignorance(contents.entropy, contents.ignorance_share, "uncertainty"),
    }
    if contents.scores is not None:
        figures |= {
            "confusion": _confusion(contents),
            "reliability": _reliability(contents),
            "rejection": _rejection(contents),
        }
    return figures


def _class_shares(contents: ClassificationContents) -> Markup:
    predicted = contents.probabilities.mean(0)
    order = np.argsort(-predicted, kind="stable")[:20]
    with panel("Share of each class", height=max(2.6, rows_height(len(order)))) as drawn:
        ax = drawn.axes
        place = np.arange(len(order))
        seen = 0.0
        if contents.scores is not None:
            shares = np.bincount(contents.label[contents.known], minlength=len(predicted)) / len(contents.known)
            ax.barh(place, shares[order], height=0.62, color=Colour.MUTED, alpha=0.35, label="share of rows")
            seen = float(shares.max())
        ax.scatter(predicted[order], place, s=26, color=Colour.BLUE, zorder=3, label="mean predicted probability")
        row_names(ax, [contents.classes[k] for k in order])
        ax.set_xlim(0, 1.08 * max(float(predicted.max()), seen))
        percent_axis(ax, "x")
        legend(ax)
    return drawn.svg


def _confidence(contents: ClassificationContents) -> Markup:
    top = contents.probabilities.max(1)
    edges = np.linspace(min(0.5, 1 / len(contents.classes)), 1, 26)
    with panel("Histogram of the highest class probability", height=3.0) as drawn:
        ax = drawn.axes
        options: dict[str, Any] = {"bins": edges, "edgecolor": Colour.PAPER, "linewidth": 0.6, "stacked": True}
        if contents.scores is None:
            ax.hist(np.clip(top, edges[0], 1), color=Colour.BLUE, alpha=0.75, **options)
        else:
            known = np.clip(top[contents.known], edges[0], 1)
            parts = [known[contents.correct], known[~contents.correct]]
            ax.hist(parts, color=[Colour.BLUE, Colour.RED], alpha=0.75, label=["right", "wrong"], **options)
            legend(ax)
        ax.set_xlabel("highest class probability")
        ax.set_ylabel("rows")
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.grid(axis="x", visible=False)
        percent_axis(ax, "x")
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
                cell.set_facecolor(Colour.BLUE if i == j else Colour.RED)
                ax.add_patch(cell)
            weight = "bold" if i == j else "normal"
            colour = Colour.INK if counts[i, j] else Colour.MUTED
            ax.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", weight=weight, color=colour)
        names = [short(contents.classes[k], 16) for k in kept]
        long = max(len(name) for name in names) * n > 60
        ax.set_xticks(range(n), names, rotation=35 if long else 0, ha="right" if long else "center")
        row_names(ax, names)
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
        ax.plot([start, 1], [start, 1], color=Colour.MUTED, linewidth=0.9, label="perfect")
        ax.plot(*segments(x, low, high), color=Colour.BLUE, alpha=0.45, linewidth=2.2)
        ax.scatter(
            x, y, s=14 + 110 * n / n.sum(), color=Colour.BLUE, linewidths=0, zorder=3, label="rows of like probability"
        )
        ax.set_xlim(start, 1.02)
        ax.set_ylim(-0.02, 1.04)
        ax.set_xlabel("highest class probability")
        ax.set_ylabel("share of rows that were right")
        percent_axis(ax, "x")
        percent_axis(ax, "y")
        legend(ax)
    return drawn.svg


def _rejection(contents: ClassificationContents) -> Markup:
    with panel("Accuracy against the share of rows set aside") as drawn:
        ax = drawn.axes
        curves = (
            (contents.entropy, "by all uncertainty (entropy)", *CLASS_STYLES[0]),
            (contents.mutual_information, "by ignorance (mutual information)", *CLASS_STYLES[1]),
        )
        base = float(contents.correct.mean())
        ax.axhline(base, color=Colour.MUTED, linewidth=0.9)
        room = max(1 - base, 0.02)
        ax.set_ylim(max(base - 0.15 * room, -0.02), 1 + 0.06 * room)
        for uncertainty, label, colour, dash in curves:
            rejected, accuracy = contents.rejection(uncertainty)
            kept = np.unique(np.linspace(0, len(rejected) - 1, 200).round().astype(int))
            kept = kept[rejected[kept] <= 0.95]
            ax.plot(rejected[kept], accuracy[kept], color=colour, linestyle=dash, label=label)
        ax.set_xlabel("rows set aside, the least certain first")
        ax.set_ylabel("accuracy on the rest")
        percent_axis(ax, "x")
        percent_axis(ax, "y")
        legend(ax)
    return drawn.svg
