"""Scores of predictions, as plain NumPy functions that know nothing of models."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]

__all__ = [
    "auroc",
    "brier_score",
    "calibration_curve",
    "confidence_bins",
    "crps_from_samples",
    "debiased_calibration_error",
    "energy_score",
    "error_rate",
    "expected_calibration_error",
    "interval_coverage",
    "interval_score",
    "interval_width",
    "log_likelihood",
    "rejection_curve",
    "rmse",
]


def rmse(y: npt.ArrayLike, mean: npt.ArrayLike) -> float:
    """Root of the mean squared error, √(1/N Σ (y − mean)²)."""
    y = _array(y, "y", "n_data")
    mean = _array(mean, "mean", len(y))
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def log_likelihood(log_prob: npt.ArrayLike) -> float:
    """Mean log density (or probability) of the targets, 1/N Σ log p(y | x)."""
    return float(np.mean(_array(log_prob, "log_prob", "n_data", finite=False)))


def interval_coverage(y: npt.ArrayLike, interval: npt.ArrayLike) -> float:
    """Share of targets inside their intervals [N, 2], ends included."""
    y = _array(y, "y", "n_data")
    lower, upper = _interval(interval, len(y))
    return float(np.mean((lower <= y) & (y <= upper)))


def interval_width(interval: npt.ArrayLike) -> float:
    """Mean width of intervals [N, 2]."""
    lower, upper = _interval(interval)
    return float(np.mean(upper - lower))


def interval_score(y: npt.ArrayLike, interval: npt.ArrayLike, coverage: float) -> float:
    """Mean width of central intervals [N, 2] plus 2/(1 − coverage) times what truths lie outside; lower is better.

    It is least, on average, for the true quantiles (Gneiting & Raftery 2007).
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
    y = _array(y, "y", "n_data")
    lower, upper = _interval(interval, len(y))
    outside = np.maximum(np.maximum(lower - y, y - upper), 0.0)
    return float(np.mean(upper - lower + 2 / (1 - coverage) * outside))


def crps_from_samples(samples: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Mean continuous ranked probability score of samples [S, N] as distributions; lower is better.

    CRPS = 1/S Σ_i |s_i − y| − 1/(2S²) Σ_ij |s_i − s_j|. This scores the samples as they are, it is not the "fair"
    estimate (with S(S − 1) for S²) for the distribution they were drawn from.
    """
    y = _array(y, "y", "n_data")
    return float(np.mean(row_crps(_array(samples, "samples", "n_samples", len(y)), y)))


def row_crps(samples: Floats, y: Floats) -> Floats:
    """The CRPS of samples [S, ...] at each y [...]; over sorted ones the double sum is 2 Σ_i (2i − S − 1) s_(i)."""
    errors = np.sort(samples - y, axis=0)  # differences between samples do not feel the shift by y
    n_samples = len(errors)
    weights = 2 * np.arange(1, n_samples + 1) - n_samples - 1
    spread: Floats = np.tensordot(weights, errors, 1) / n_samples**2
    distance: Floats = np.abs(errors).mean(0)
    return distance - spread


def energy_score(samples: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Mean energy score of samples [S, N, C] as distributions of vectors y [N, C]; lower is better.

    ES = 1/S Σ_i ‖s_i − y‖ − 1/(2S²) Σ_ij ‖s_i − s_j‖, the CRPS where C is 1. It sees how outputs go together, which
    scores of one output at a time do not.
    """
    y = _array(y, "y", "n_data", "n_outputs")
    samples = _array(samples, "samples", "n_samples", *y.shape)
    error = np.linalg.norm(samples - y, axis=-1).mean()
    spread = np.mean([np.linalg.norm(samples - sample, axis=-1).mean() for sample in samples])
    return float(error - spread / 2)


def calibration_curve(cdf_values: npt.ArrayLike, levels: npt.ArrayLike) -> Floats:
    """Share of targets whose predictive cdf (the PIT) is at most each level: the levels themselves when calibrated."""
    cdf_values = _array(cdf_values, "cdf_values", "n_data", shares=True)
    levels = _array(levels, "levels", "n_data", shares=True)
    return np.searchsorted(np.sort(cdf_values), levels, side="right") / len(cdf_values)


def expected_calibration_error(probs: npt.ArrayLike, labels: npt.ArrayLike, n_bins: int = 15) -> float:
    """Σ_b (n_b/N) |accuracy_b − confidence_b| over bins of equal width in the largest probability."""
    n, hits, confidence = _bin_sums(probs, labels, n_bins)
    return float(np.abs(hits - confidence).sum() / n.sum())


def debiased_calibration_error(probs: npt.ArrayLike, labels: npt.ArrayLike, n_bins: int = 15) -> float:
    """Root of Σ_b (n_b/N) [(accuracy_b − confidence_b)² − accuracy_b (1 − accuracy_b)/(n_b − 1)], at least zero.

    The last term is what chance alone adds to the squared gap of a bin (Kumar, Liang & Ma 2019). Without it, few rows
    or many bins make a calibrated model look uncalibrated. Bins of one row are left out.
    """
    sums = _bin_sums(probs, labels, n_bins)
    n, hits, confidence = sums[:, sums[0] > 1]
    chance = hits * (n - hits) / (n * (n - 1))
    return float(np.sqrt(max(((hits - confidence) ** 2 / n - chance).sum() / max(n.sum(), 1), 0.0)))


def _bin_sums(probs: npt.ArrayLike, labels: npt.ArrayLike, n_bins: int) -> Floats:
    """Rows of each bin, right ones and the sum of their largest probabilities, [3, n_bins]."""
    probs, labels = _classification(probs, labels)
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1; got {n_bins}")
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    bins = confidence_bins(confidence, n_bins)
    return np.stack([np.bincount(bins, part, n_bins) for part in (np.ones(len(labels)), correct, confidence)])


def confidence_bins(confidence: Floats, n_bins: int) -> npt.NDArray[np.int64]:
    """The bin of equal width that each largest probability lies in, upper ends included."""
    return (np.ceil(confidence * n_bins).astype(np.int64) - 1).clip(0, n_bins - 1)


def brier_score(probs: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean over data of Σ_c (probs_c − [label = c])², from 0 (best) to 2."""
    probs, labels = _classification(probs, labels)
    one_hot = np.eye(probs.shape[1])[labels]
    return float(np.mean(np.sum((probs - one_hot) ** 2, axis=1)))


def error_rate(probs: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of data whose most probable class is not the label."""
    probs, labels = _classification(probs, labels)
    return float(np.mean(probs.argmax(axis=1) != labels))


def rejection_curve(uncertainty: npt.ArrayLike, correct: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Rejected share (0, 1/N, ..., 1 − 1/N) and accuracy on the rest, the most uncertain rejected first.

    Among equal uncertainties the accuracy is the one expected if they are rejected in random order.
    """
    uncertainty = _array(uncertainty, "uncertainty", "n_data")
    correct = _among(_array(correct, "correct", len(uncertainty)), range(2), "correct")
    _, group = np.unique(uncertainty, return_inverse=True)
    group_accuracy = np.bincount(group, weights=correct) / np.bincount(group)
    kept_correct = np.cumsum(group_accuracy[np.sort(group)])
    n_kept = np.arange(1, len(correct) + 1)
    return (1 - n_kept / len(correct))[::-1], (kept_correct / n_kept)[::-1]


def auroc(scores_negative: npt.ArrayLike, scores_positive: npt.ArrayLike) -> float:
    """Probability that a positive (out-of-distribution) score exceeds a negative one, ties counting half."""
    negative = _array(scores_negative, "scores_negative", "n_data")
    positive = _array(scores_positive, "scores_positive", "n_data")
    pairs = stats.mannwhitneyu(positive, negative, method="asymptotic").statistic
    return float(pairs / (len(positive) * len(negative)))


def number_scores(y: Floats, mean: Floats, log_prob: Floats, interval: Floats, crps: Floats) -> dict[str, float]:
    """All scores of predicted numbers; ``crps`` are those of rows."""
    error, spread = rmse(y, mean), float(np.std(y))
    return {
        "rmse": error,
        "r2": 1 - (error / spread) ** 2 if spread > 0 else float("nan"),
        "log_likelihood": log_likelihood(log_prob),
        "crps": float(np.mean(crps)),
        "coverage": interval_coverage(y, interval),
        "width": interval_width(interval),
    }


def class_scores(probs: Floats, labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """All scores of predicted classes."""
    return {
        "accuracy": 1 - error_rate(probs, labels),
        "log_likelihood": log_likelihood(label_log_prob(probs, labels)),
        "brier": brier_score(probs, labels),
        "ece": expected_calibration_error(probs, labels),
    }


def label_log_prob(probs: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Log probability of each row's true class, bounded below."""
    return np.log(np.maximum(probs[np.arange(len(labels)), labels], np.finfo(np.float64).tiny))


def base_rate(values: npt.NDArray[Any]) -> tuple[float, ...]:
    """Mean and standard deviation of numbers, or the share of each class in their order."""
    if values.dtype.kind == "f":
        scale = float(np.abs(values).max()) or 1.0
        return float((values / scale).mean() * scale), float((values / scale).std() * scale)
    return tuple((np.unique(values, return_counts=True)[1] / len(values)).tolist())


def base_rate_scores(
    base: tuple[float, ...], truth: npt.NDArray[Any], *, classes: bool, coverage: float = 0.9
) -> dict[str, float]:
    """Scores of the same guess for every row: a normal distribution of numbers, or the shares of classes."""
    if classes:
        shares = np.repeat(np.asarray(base)[None], len(truth), axis=0)
        return {name: score for name, score in class_scores(shares, truth).items() if name != "ece"}
    mean, std = (np.full(len(truth), part) for part in base)
    log_prob, crps, interval = normal_scores(truth, mean, std, coverage)
    return number_scores(truth, mean, log_prob, interval, crps)


def normal_scores(y: Floats, mean: Floats, std: Floats, coverage: float) -> tuple[Floats, Floats, Floats]:
    """Log density and CRPS of each target under its own normal distribution, and central intervals [N, 2]."""
    z, normal = (y - mean) / std, stats.norm(mean, std)
    crps = std * (z * (2 * normal.cdf(y) - 1) + 2 * std * normal.pdf(y) - 1 / np.sqrt(np.pi))
    return normal.logpdf(y), crps, np.column_stack(normal.interval(coverage))


def _array(values: npt.ArrayLike, name: str, *shape: int | str, finite: bool = True, shares: bool = False) -> Floats:
    """Numbers of a shape, in which a dimension of any size has a name; ``shares`` are from 0 to 1."""
    array = np.asarray(values, dtype=np.float64)
    expected = [m if isinstance(n, str) else n for n, m in zip(shape, array.shape, strict=False)]
    if array.ndim != len(shape) or array.shape != tuple(expected) or array.size == 0:
        form = ", ".join(map(str, shape))
        raise ValueError(f"{name} must have shape ({form}) and not be empty; got shape {array.shape}")
    if np.isnan(array).any() or (finite and np.isinf(array).any()):
        raise ValueError(f"{name} must not hold NaN{' or infinity' if finite else ''}")
    if shares and (array.min() < 0 or array.max() > 1):
        raise ValueError(f"{name} must be from 0 to 1; got values from {array.min():g} to {array.max():g}")
    return array


def _interval(interval: npt.ArrayLike, length: int | str = "n_data") -> tuple[Floats, Floats]:
    array = _array(interval, "interval", length, 2, finite=False)
    lower, upper = array.T
    if (lower > upper).any():
        row = int(np.argmax(lower > upper))
        raise ValueError(f"interval must have its lower end first; got {array[row].tolist()} in row {row}")
    return lower, upper


def _classification(probs: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.int64]]:
    probs = _array(probs, "probs", "n_data", "n_classes", shares=True)
    totals = probs.sum(axis=1)
    # Softmax in float32 over many classes misses 1 by less than this; logits or counts by far more.
    if not np.allclose(totals, 1, rtol=0, atol=1e-3):
        raise ValueError(f"each row of probs must sum to 1; got sums from {totals.min():g} to {totals.max():g}")
    given = _array(labels, "labels", len(probs))
    return probs, _among(given, range(probs.shape[1]), "labels").astype(np.int64)


def _among(values: Floats, allowed: range, name: str) -> Floats:
    strange = np.unique(values[~np.isin(values, allowed)])
    if len(strange):
        got = ", ".join(f"{value:g}" for value in strange[:3])
        raise ValueError(f"{name} must be whole numbers from 0 to {allowed.stop - 1}; got {got}")
    return values
