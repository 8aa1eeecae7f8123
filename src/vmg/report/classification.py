"""Contents of a classification report as numbers, apart from its words, and its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy import special

from vmg import metrics
from vmg.estimators import TableModel
from vmg.prediction import ClassPrediction
from vmg.report.facts import Array, Positions, extremes, scored_rows
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
from vmg.tables.cells import Cells, to_texts
from vmg.tables.target import label_positions

__all__ = ["Bin", "ClassificationContents", "ClassificationScores", "classification_contents", "classification_figures"]


@dataclass(frozen=True)
class Bin:
    """Rows whose highest probability lies in one range."""

    confidence: float
    accuracy: float
    low: float  # what chance leaves possible for the true share
    high: float
    n_rows: int


@dataclass(frozen=True)
class ClassificationScores:
    """Headline numbers, each beside that of a guess that knows only how frequent the classes are."""

    n_rows: int
    accuracy: float
    accuracy_guess: float
    log_likelihood: float
    log_likelihood_guess: float
    brier: float
    brier_guess: float
    calibration_error: float
    calibration_error_by_chance: float


@dataclass(frozen=True)
class ClassificationContents:
    """Class probabilities of the rows that the page is about, and their scores where the truth is known."""

    classes: tuple[str, ...]
    position: Positions
    probabilities: Array  # [N, K]
    entropy: Array  # [N], all uncertainty
    mutual_information: Array  # [N], its part that is ignorance
    certain: Positions  # indices of the most and the least certain rows
    uncertain: Positions
    known: Positions  # [M], rows whose class is known
    label: Positions  # [N], -1 where unknown
    n_unknown_classes: int  # rows with a class the model has never seen
    scores: ClassificationScores | None
    confusion: NDArray[np.int64]  # [K, K], rows are the truth
    reliability: tuple[Bin, ...]

    @property
    def predicted(self) -> Positions:
        """The most probable class, [N]."""
        return np.asarray(self.probabilities.argmax(1))

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Whether each known row has its true class predicted, [M]."""
        return np.equal(self.predicted[self.known], self.label[self.known])

    @property
    def ignorance_share(self) -> Array:
        """Share of ignorance in each row's entropy, [N]."""
        return np.divide(self.mutual_information, self.entropy, out=np.zeros_like(self.entropy), where=self.entropy > 0)

    def rejection(self, uncertainty: Array) -> tuple[Array, Array]:
        """Share of rows set aside, and accuracy on the rest."""
        return metrics.rejection_curve(uncertainty[self.known], self.correct)


def classification_contents(model: TableModel, frame: pd.DataFrame) -> ClassificationContents:
    """Predict and score the rows of a frame with a classifier."""
    position = scored_rows(model, frame)
    rows = frame.iloc[position]
    prediction = model.pred_dist(rows)
    assert isinstance(prediction, ClassPrediction)
    probabilities = prediction.probabilities
    n_classes = probabilities.shape[1]
    label, n_unknown = np.full(len(rows), -1), 0
    if model.target in frame.columns:
        label = label_positions(Cells(rows[model.target]), prediction.classes)
        n_unknown = int(((label < 0) & to_texts(rows[model.target]).notna().to_numpy()).sum())
    known = np.flatnonzero(label >= 0)
    scores: ClassificationScores | None = None
    reliability: tuple[Bin, ...] = ()
    certain, uncertain = extremes(prediction.predictive_entropy)
    confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
    if len(known):
        scores = _classification_scores(probabilities[known], label[known])
        reliability = _reliability(probabilities[known], label[known])
        np.add.at(confusion, (label[known], probabilities[known].argmax(1)), 1)
    return ClassificationContents(
        classes=tuple(str(name) for name in prediction.classes),
        position=position,
        probabilities=probabilities,
        entropy=prediction.predictive_entropy,
        mutual_information=prediction.mutual_information,
        certain=certain,
        uncertain=uncertain,
        known=known,
        label=label,
        n_unknown_classes=n_unknown,
        scores=scores,
        confusion=confusion,
        reliability=reliability,
    )


def _classification_scores(probs: Array, labels: Positions) -> ClassificationScores:
    share = np.bincount(labels, minlength=probs.shape[1]) / len(labels)
    of_truth = np.maximum(probs[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    return ClassificationScores(
        n_rows=len(labels),
        accuracy=1 - metrics.error_rate(probs, labels),
        accuracy_guess=float(share.max()),
        log_likelihood=metrics.log_likelihood(np.log(of_truth)),
        log_likelihood_guess=float(-special.entr(share).sum()),
        brier=metrics.brier_score(probs, labels),
        brier_guess=float(1 - np.sum(share**2)),
        calibration_error=metrics.expected_calibration_error(probs, labels),
        calibration_error_by_chance=_calibration_error_by_chance(probs.max(1)),
    )


def _calibration_error_by_chance(confidence: Array, n_bins: int = 15) -> float:
    """The calibration error to expect of perfect probabilities: Σ_b (n_b/N) E|accuracy_b − confidence_b|."""
    bins = metrics.confidence_bins(confidence, n_bins)
    variance = np.bincount(bins, weights=confidence * (1 - confidence), minlength=n_bins)  # of a bin's count of hits
    return float(np.sqrt(2 / np.pi * variance).sum() / len(confidence))  # E|z| of a normal is √(2/π)


def _reliability(probs: Array, labels: Positions, n_bins: int = 10) -> tuple[Bin, ...]:
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    bins = metrics.confidence_bins(confidence, n_bins)
    filled: list[Bin] = []
    for b in np.unique(bins):
        inside = bins == b
        n, hits = int(inside.sum()), int(correct[inside].sum())
        # shares of hits that would not have been surprising, at 95 % (Clopper & Pearson 1934)
        low = float(special.betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
        high = float(special.betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
        filled.append(Bin(float(confidence[inside].mean()), hits / n, low, high, n))
    return tuple(filled)


# -- pictures ----------------------------------------------------------------------------------------------------------


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
            "reliability": _reliability_diagram(contents),
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


def _reliability_diagram(contents: ClassificationContents) -> Markup:
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
