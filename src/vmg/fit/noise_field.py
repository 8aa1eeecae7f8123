"""Noise that depends on the input: a log-linear model of the squared held-out errors, where these ask for one.

log σ²(x) = log σ² + φ(x)ᵀw with random features φ and w ~ N(0, 1/a). The error's density is the Student t of
:mod:`vmg.fit.calibration`; its expected derivatives in log σ² give natural-gradient steps for w (Fisher scoring), with
one Cholesky factor for all of them. Cross-validation among the held-out errors chooses a, or no dependence at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from vmg.fit.calibration import Calibration, HeldOut, t_log_density

__all__ = ["NoiseField", "fit_noise_field"]

Array = NDArray[np.float64]

UNITS = 50
PRECISIONS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
LIMIT = 8.0  # of |log σ²(x) − log σ²|
FOLDS = 4
STEPS, DAMPING, TOLERANCE = 25, 0.7, 1e-3
MIN_ROWS = 40
"""Fewer held-out errors cannot tell noise that changes from noise that does not."""


@dataclass(frozen=True)
class NoiseField:
    """How much larger or smaller the noise's variance is at a row than on average."""

    input_scale: Array  # [D]
    directions: Array  # [D + 1, UNITS]
    weights: Array  # [UNITS + D + 1]

    def factor(self, inputs: Array) -> Array:
        """σ²(x)/σ² at rows of inputs [N, D]."""
        return np.exp(np.clip(_features(inputs, self.input_scale, self.directions) @ self.weights, -LIMIT, LIMIT))


def _features(inputs: Array, scale: Array, directions: Array) -> Array:
    scaled = inputs * scale
    hidden = np.maximum(scaled @ directions[:-1] + directions[-1], 0) / math.sqrt(directions.shape[1])
    return np.concatenate([hidden, scaled, np.ones((len(inputs), 1))], axis=1)


def fit_noise_field(
    inputs: Array, held_out: HeldOut, calibration: Calibration, input_scale: Array, rng: np.random.Generator
) -> NoiseField | None:
    """Fit the field to held-out errors at inputs [n, D]; None where constant noise predicts errors as well.

    A precision is taken only if its gain in cross-validated log density is larger than half its standard error.
    """
    n_rows = len(inputs)
    if n_rows < MIN_ROWS:
        return None
    directions = rng.standard_normal((inputs.shape[1] + 1, UNITS))
    phi = _features(inputs, input_scale, directions)
    fold = rng.permutation(n_rows) % FOLDS
    epistemic = calibration.stretch * held_out.variance
    constant = t_log_density(held_out.error, calibration.noise + epistemic, calibration.degrees)
    best, chosen = 0.0, None
    for precision in PRECISIONS:
        gain = np.empty(n_rows)
        for k in range(FOLDS):
            inside, outside = fold != k, fold == k
            weights = _score(phi[inside], _take(held_out, inside), calibration, precision)
            noise = calibration.noise * np.exp(np.clip(phi[outside] @ weights, -LIMIT, LIMIT))
            density = t_log_density(held_out.error[outside], noise + epistemic[outside], calibration.degrees)
            gain[outside] = density - constant[outside]
        mean = float(np.average(gain, weights=held_out.weight))
        if mean - 0.5 * gain.std() / math.sqrt(n_rows) > best:
            best, chosen = mean - 0.5 * gain.std() / math.sqrt(n_rows), precision
    if chosen is None:
        return None
    return NoiseField(input_scale, directions, _score(phi, held_out, calibration, chosen))


def _take(rows: HeldOut, index: NDArray[np.bool_]) -> HeldOut:
    return HeldOut(*(part[index] for part in rows))


def _score(phi: Array, rows: HeldOut, calibration: Calibration, precision: float) -> Array:
    """Weights of the field at the mode, by Fisher scoring."""
    nu = calibration.degrees
    prior = np.full(phi.shape[1], precision)
    prior[-1] = 1e-3  # the level is free
    information = 0.5 * nu / (nu + 3)  # of log σ² in one error
    A = information * (phi * rows.weight[:, None]).T @ phi + np.diag(prior)
    factor = linalg.cho_factor(A, lower=True)
    w = np.zeros(phi.shape[1])
    squared, epistemic = rows.error**2, calibration.stretch * rows.variance
    for _ in range(STEPS):
        noise = calibration.noise * np.exp(np.clip(phi @ w, -LIMIT, LIMIT))
        total = noise + epistemic
        excess = (nu + 1) / (nu + squared / total) * squared / total - 1
        gradient = phi.T @ (rows.weight * 0.5 * excess * noise / total) - prior * w
        step = DAMPING * linalg.cho_solve(factor, gradient)
        w = w + step
        if np.abs(step).max() < TOLERANCE:
            break
    return w
