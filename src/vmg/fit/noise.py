"""The noise: how its size depends on the input.

log σ²(x) = log σ² + φ(x)ᵀw with random features φ and w ~ N(0, 1/a), where held-out errors ask for it. The error's
density is the Student t of :mod:`vmg.fit.calibration`; its expected derivatives in log σ² give natural-gradient steps
for w (Fisher scoring), with one Cholesky factor for all of them. Cross-validation among the held-out errors chooses a,
or no dependence at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from vmg.fit.calibration import Calibration, HeldOut
from vmg.math.distributions import Array, student_log_density
from vmg.model_file import require_shapes

__all__ = ["NoiseField", "fit_noise_field"]

UNITS = 50
PRECISIONS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
LIMIT = 8.0  # of |log σ²(x) − log σ²|
FOLDS = 4
STEPS, DAMPING, TOLERANCE = 25, 0.7, 1e-3
MIN_ROWS = 40  # fewer held-out errors cannot tell noise that changes from noise that does not


@dataclass(frozen=True)
class NoiseField:
    """How much larger or smaller the noise's variance is at a row than on average."""

    input_scale: Array  # [D]
    directions: Array  # [D + 1, UNITS]
    weights: Array  # [UNITS + D + 1]

    def factor(self, inputs: Array) -> Array:
        """σ²(x)/σ² at rows of inputs [N, D]."""
        return np.exp(np.clip(_features(inputs, self.input_scale, self.directions) @ self.weights, -LIMIT, LIMIT))

    def check(self, n_inputs: int) -> None:
        """Raise a ValueError unless arrays fit together and are of so many inputs, to which the mean is added."""
        units, size = self.directions.shape[-1], n_inputs + 1
        shapes = {"input_scale": (size,), "directions": (size + 1, units), "weights": (units + size + 1,)}
        require_shapes(shapes, vars(self))


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
    phi, basis = _spanned(_features(inputs, input_scale, directions))
    fold = rng.permutation(n_rows) % FOLDS
    epistemic = calibration.inflation * held_out.variance
    constant = student_log_density(held_out.error, calibration.noise + epistemic, calibration.degrees)
    inside = fold != np.arange(FOLDS)[:, None]
    weights = _fit_fields(phi, held_out, calibration, PRECISIONS, inside)  # [precisions, folds, F]
    logs = (phi * weights[:, fold]).sum(-1)  # each row by the field that has not seen it, [precisions, n]
    noise = calibration.noise * np.exp(np.clip(logs, -LIMIT, LIMIT))
    gain = student_log_density(held_out.error, noise + epistemic, calibration.degrees) - constant
    sure = np.average(gain, axis=1, weights=held_out.weight) - 0.5 * gain.std(1) / math.sqrt(n_rows)
    best = int(np.argmax(sure))
    if not sure[best] > 0:
        return None
    everywhere = np.ones((1, n_rows), dtype=np.bool_)
    weights = _fit_fields(phi, held_out, calibration, PRECISIONS[best : best + 1], everywhere)
    return NoiseField(input_scale, directions, basis @ weights[0, 0])


def _spanned(phi: Array) -> tuple[Array, Array]:
    """Features [n, F] along a basis [F, K] of what rows differ in, and the basis; the last feature stays.

    Fewer rows than features say nothing of weights across all rows, which stay at their prior's mean, zero.
    """
    n_rows, n_features = phi.shape
    if n_features <= n_rows + 1:
        return phi, np.eye(n_features)
    basis = linalg.block_diag(linalg.qr(phi[:, :-1].T, mode="economic")[0], 1.0)
    return phi @ basis, basis


def _fit_fields(
    phi: Array, rows: HeldOut, calibration: Calibration, precisions: Sequence[float], inside: NDArray[np.bool_]
) -> Array:
    """Weights of fields at their modes [P, S, F], by Fisher scoring: for P precisions and S sets of rows [S, n]."""
    n_features, nu = phi.shape[1], calibration.degrees
    prior = np.repeat(np.asarray(precisions), len(inside))[:, None] * np.ones(n_features)  # [P·S, F]
    prior[:, -1] = 1e-3  # the level is free
    information = 0.5 * nu / (nu + 3)  # of log σ² in one error
    grams = [information * (phi * (rows.weight * some)[:, None]).T @ phi for some in inside]
    factors = [linalg.cholesky(grams[k % len(grams)] + np.diag(one), lower=True) for k, one in enumerate(prior)]
    weight = np.tile(rows.weight * inside, (len(precisions), 1))  # [P·S, n]
    w = np.zeros_like(prior)
    squared, epistemic = rows.error**2, calibration.inflation * rows.variance
    moving = np.arange(len(w))
    for _ in range(STEPS):
        noise = calibration.noise * np.exp(np.clip(w[moving] @ phi.T, -LIMIT, LIMIT))
        total = noise + epistemic
        ratio = squared / total
        excess = (nu + 1) / (nu + ratio) * ratio - 1
        gradient = (0.5 * weight[moving] * excess * noise / total) @ phi - prior[moving] * w[moving]
        step = np.stack([lapack.dpotrs(factors[k], one, lower=1)[0] for k, one in zip(moving, gradient, strict=True)])
        w[moving] += DAMPING * step
        moving = moving[DAMPING * np.abs(step).max(1) >= TOLERANCE]
        if not len(moving):
            break
    return w.reshape(len(precisions), len(inside), n_features)
