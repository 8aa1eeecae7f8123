"""Scores of predictions of rows whose target is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg import metrics
from vmg.prediction import ClassPrediction
from vmg.prediction.conformal import conformal_interval

__all__ = ["base_rate", "base_rate_scores", "class_scores", "label_log_prob", "number_scores"]

Array = NDArray[np.float64]


def number_scores(parts: list[tuple[Any, Array]], conformal: Array | None, coverage: float) -> dict[str, float]:
    """Scores of pieces of rows, each a prediction and the truth."""
    truth = np.concatenate([y for _, y in parts])
    mean = np.concatenate([prediction.mean for prediction, _ in parts])
    log_prob = np.concatenate([prediction.log_prob(y) for prediction, y in parts])
    interval = np.concatenate([conformal_interval(prediction, conformal, coverage) for prediction, _ in parts])
    crps = sum(len(y) * float(prediction.crps(y).mean()) for prediction, y in parts) / len(truth)
    error, spread = metrics.rmse(truth, mean), float(np.std(truth))
    return {
        "rmse": error,
        "r2": 1 - (error / spread) ** 2 if spread > 0 else float("nan"),
        "log_likelihood": metrics.log_likelihood(log_prob),
        "crps": crps,
        "coverage": metrics.interval_coverage(truth, interval),
        "width": metrics.interval_width(interval),
    }


def label_log_prob(probabilities: Array, labels: NDArray[Any]) -> Array:
    """Log probability of each row's true class, bounded below."""
    return np.log(np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


def base_rate(values: NDArray[Any]) -> tuple[float, ...]:
    """Mean and standard deviation of numbers, or the share of each class in their order."""
    if values.dtype.kind == "f":
        scale = float(np.abs(values).max()) or 1.0
        return float((values / scale).mean() * scale), float((values / scale).std() * scale)
    return tuple((np.unique(values, return_counts=True)[1] / len(values)).tolist())


def base_rate_scores(base: tuple[float, ...], truth: NDArray[Any], classes: NDArray[Any] | None) -> dict[str, float]:
    """Scores of the same guess for every row: a normal distribution of training targets, or their shares of classes."""
    if classes is None:
        mean, std = base
        error = truth - mean
        log_prob = -0.5 * (error / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return {"rmse": float(np.sqrt(np.mean(error**2))), "log_likelihood": float(log_prob.mean())}
    labels = np.searchsorted(classes, truth)
    p = np.repeat(np.asarray(base)[None], len(labels), axis=0)
    return {
        "accuracy": float((labels == p[0].argmax()).mean()),
        "log_likelihood": float(label_log_prob(p, labels).mean()),
        "brier": metrics.brier_score(p, labels),
    }


def class_scores(parts: list[tuple[ClassPrediction, NDArray[Any]]]) -> dict[str, float]:
    """Scores of pieces of rows, each a prediction and the true classes."""
    probabilities = np.concatenate([prediction.probabilities for prediction, _ in parts])
    labels = np.searchsorted(parts[0][0].classes, np.concatenate([y for _, y in parts]))
    return {
        "accuracy": 1 - metrics.error_rate(probabilities, labels),
        "log_likelihood": metrics.log_likelihood(label_log_prob(probabilities, labels)),
        "brier": metrics.brier_score(probabilities, labels),
        "ece": metrics.expected_calibration_error(probabilities, labels),
    }
