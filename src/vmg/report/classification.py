"""Reliability and pictures of a classification report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from scipy import special

from vmg import metrics
from vmg.report.facts import Array, Contents
from vmg.report.panel import CLASS_STYLES, Colour, picture, row_names, rows_height, segments, shares_of_ignorance, short

__all__ = ["Bin", "calibration_error_by_chance", "classification_figures", "read_reliability", "reliability_diagram"]

MOST_CONFUSED = 12  # classes in the confusion matrix


@dataclass(frozen=True)
class Bin:
    """Rows whose highest probability lies in one range."""

    confidence: float
    accuracy: float
    low: float  # what chance leaves possible for the true share
    high: float
    n_rows: int


def read_reliability(contents: Contents, n_bins: int = 10) -> list[Bin]:
    """Shown rows whose class is known, by the probability of their likeliest class."""
    confidence, correct = _confidence(contents)
    bins = metrics.confidence_bins(confidence, n_bins)
    filled: list[Bin] = []
    for b in np.unique(bins):
        inside = bins == b
        n, hits = int(inside.sum()), int(correct[inside].sum())
        # shares of hits that would not have been surprising, at 95 % (Clopper & Pearson 1934)
        low = float(special.betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
        high = float(special.betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
        filled.append(Bin(float(confidence[inside].mean()), hits / n, low, high, n))
    return filled


def _confidence(contents: Contents) -> tuple[Array, NDArray[np.bool_]]:
    """The highest probability of each shown row whose class is known, [K], and whether it is that of the true one."""
    probabilities = contents.prediction.probabilities[contents.known]
    return probabilities.max(1), probabilities.argmax(1) == contents.truth[contents.known]


def calibration_error_by_chance(confidence: Array, n_bins: int = 15) -> float:
    """The calibration error to expect of perfect probabilities: Σ_b (n_b/N) E|accuracy_b − confidence_b|."""
    bins = metrics.confidence_bins(confidence, n_bins)
    variance = np.bincount(bins, weights=confidence * (1 - confidence), minlength=n_bins)  # of a bin's count of hits
    return float(np.sqrt(2 / np.pi * variance).sum() / len(confidence))  # E|z| of a normal is √(2/π)


# -- pictures ----------------------------------------------------------------------------------------------------------


def classification_figures(contents: Contents, reliability: list[Bin]) -> dict[str, Markup]:
    """All panels of a classification; those that need the truth only where it is known."""
    classes = [str(name) for name in contents.prediction.classes]
    figures = {
        "target": _class_shares(contents, classes),
        "shares": shares_of_ignorance(contents.uncertainty, contents.ignorance_share, "uncertainty"),
    }
    if contents.scores is None:
        return figures
    return figures | {
        "confusion": _confusion(contents, classes),
        "reliability": reliability_diagram(reliability),
        "rejection": _rejection(contents),
    }


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
            cell = Rectangle((j - 0.5, i - 0.5), 1, 1, alpha=0.06 + 0.5 * share[i, j], linewidth=0)
            cell.set_facecolor(Colour.BLUE if i == j else Colour.RED)
            ax.add_patch(cell)
        weight = "bold" if i == j else "normal"
        colour = Colour.INK if counts[i, j] else Colour.MUTED
        ax.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", weight=weight, color=colour)
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
    x, y, low, high, n = np.array([[b.confidence, b.accuracy, b.low, b.high, b.n_rows] for b in bins]).T
    start = min(0.5, float(np.floor(10 * x.min()) / 10))
    ax.plot([start, 1], [start, 1], color=Colour.MUTED, linewidth=0.9, label="perfect")
    ax.plot(*segments(x, low, high), color=Colour.BLUE, alpha=0.45, linewidth=2.2)
    label = "rows of like probability"
    ax.scatter(x, y, s=14 + 110 * n / n.sum(), color=Colour.BLUE, linewidths=0, zorder=3, label=label)
    ax.set(xlim=(start, 1.02), xlabel="highest class probability")


@picture("Accuracy against the share of rows set aside", percent="xy", ylabel="accuracy on the rest")
def _rejection(ax: Axes, contents: Contents) -> None:
    correct, known = _confidence(contents)[1], contents.known
    curves = (
        (contents.uncertainty, "by all uncertainty (entropy)", *CLASS_STYLES[0]),
        (contents.prediction.mutual_information, "by ignorance (mutual information)", *CLASS_STYLES[1]),
    )
    base = float(correct.mean())
    ax.axhline(base, color=Colour.MUTED, linewidth=0.9)
    room = max(1 - base, 0.02)
    ax.set_ylim(max(base - 0.15 * room, -0.02), 1 + 0.06 * room)
    for uncertainty, label, colour, dash in curves:
        rejected, accuracy = metrics.rejection_curve(uncertainty[known], correct)
        kept = np.unique(np.linspace(0, len(rejected) - 1, 200).round().astype(int))
        kept = kept[rejected[kept] <= 0.95]
        ax.plot(rejected[kept], accuracy[kept], color=colour, linestyle=dash, label=label)
    ax.set_xlabel("rows set aside, the least certain first")
