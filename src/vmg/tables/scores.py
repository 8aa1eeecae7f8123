"""Scores of predictions of rows whose target is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg import metrics
from vmg.prediction import ClassPrediction
from vmg.prediction.conformal import conformal_interval

__all__ = ["class_scores", "label_log_prob", "mean_crps", "number_scores"]

Array = NDArray[np.float64]

CRPS_DRAWS = 200


def mean_crps(prediction: Any, y: NDArray) -> float:
    """Mean continuous ranked probability score of one output: exact where the prediction knows it, else by draws."""
    if hasattr(prediction, "crps"):
        return float(prediction.crps(y).mean())
    return metrics.crps_from_samples(prediction.sample(CRPS_DRAWS, 0), y)


def number_scores(parts: list[tuple[Any, Array]], conformal: Array | None, coverage: float) -> dict[str, float]:
    """Scores of pieces of rows, each a prediction and the truth."""
    truth = np.concatenate([y for _, y in parts])
    mean = np.concatenate([prediction.mean for prediction, _ in parts])
    log_prob = np.concatenate([prediction.log_prob(y) for prediction, y in parts])
    interval = np.concatenate([conformal_interval(prediction, conformal, coverage) for prediction, _ in parts])
    crps = sum(len(y) * mean_crps(prediction, y) for prediction, y in parts) / len(truth)
    error, spread = metrics.rmse(truth, mean), float(np.std(truth))
    return {
        "rmse": error,
        "r2": 1 - (error / spread) ** 2 if spread > 0 else float("nan"),
        "log_likelihood": metrics.log_likelihood(log_prob),
        "crps": crps,
        "coverage": metrics.interval_coverage(truth, interval),
        "width": metrics.interval_width(interval),
    }


def label_log_prob(probabilities: Array, labels: NDArray) -> Array:
    """Log probability of each row's true class, bounded below."""
    return np.log(np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


def class_scores(parts: list[tuple[ClassPrediction, NDArray]]) -> dict[str, float]:
    """Scores of pieces of rows, each a prediction and the true classes."""
    probabilities = np.concatenate([prediction.probabilities for prediction, _ in parts])
    labels = np.searchsorted(parts[0][0].classes, np.concatenate([y for _, y in parts]))
    return {
        "accuracy": 1 - metrics.error_rate(probabilities, labels),
        "log_likelihood": metrics.log_likelihood(label_log_prob(probabilities, labels)),
        "brier": metrics.brier_score(probabilities, labels),
        "ece": metrics.expected_calibration_error(probabilities, labels),
    }
