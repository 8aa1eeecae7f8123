"""Contents of a classification report as numbers, apart from pictures and words, so that each can be tested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from vmg import metrics
from vmg.estimators.table_model import TableModel
from vmg.prediction import ClassPrediction
from vmg.report.table_facts import Array, Positions, extremes, scored_rows
from vmg.tables.cells import Cells, to_texts
from vmg.tables.target import label_positions

__all__ = ["Bin", "ClassificationContents", "ClassificationScores", "classification_contents"]


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
