"""The noise: how its size depends on the input, and what shape it has.

**Size.** log σ²(x) = log σ² + φ(x)ᵀw with random features φ and w ~ N(0, 1/a), where held-out errors ask for it. The
error's density is the Student t of :mod:`vmg.fit.calibration`; its expected derivatives in log σ² give natural-gradient
steps for w (Fisher scoring), with one Cholesky factor for all of them. Cross-validation among the held-out errors
chooses a, or no dependence at all.

**Shape.** Held-out errors over their scale, r, have some distribution around zero. Instead of a Student t it may be a
mixture of normal distributions, skewed, with two humps or with a spike,

    p(r) = Σ_k w_k N(r; m_k, s_k²),

fitted by expectation maximisation. Location and scale of a row stay what they are for the Student t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special
from scipy.linalg import lapack
from torch import Tensor

from vmg.fit.calibration import Calibration, HeldOut
from vmg.math.distributions import find_quantiles, student_log_density
from vmg.model_file import require_shapes

__all__ = ["NoiseField", "NoiseShape", "choose_shape", "fit_noise_field", "fit_noise_shape"]

Array = NDArray[np.float64]

UNITS = 50
PRECISIONS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
LIMIT = 8.0  # of |log σ²(x) − log σ²|
FOLDS = 4
STEPS, DAMPING, TOLERANCE = 25, 0.7, 1e-3
MIN_ROWS = 40
"""Fewer held-out errors cannot tell noise that changes from noise that does not."""

COMPONENTS = 3
SHAPE_STEPS = 200
PRIOR_ROWS = 2.0  # that each component has beside its own, with the variance of all errors
SHAPE_ROWS = 60  # fewer errors say little of a shape
LEAST_SCALE = 0.02
MARGIN = 2.0  # standard errors


@dataclass(frozen=True)
class NoiseField:
    """How much larger or smaller the noise's variance is at a row than on average."""

    input_scale: Array  # [D]
    directions: Array  # [D + 1, UNITS]
    weights: Array  # [UNITS + D + 1]

    def factor(self, inputs: Array) -> Array:
        """σ²(x)/σ² at rows of inputs [N, D]."""
        return np.exp(np.clip(_features(inputs, self.input_scale, self.directions) @ self.weights, -LIMIT, LIMIT))

    @classmethod
    def from_tensors(cls, start: str, in_features: int, tensors: Mapping[str, Tensor]) -> NoiseField:
        """The field in a model file, whose tensors' names have this start."""
        units, size = tensors[f"{start}directions"].shape[-1], in_features + 1  # inputs and the mean
        shapes = {"input_scale": (size,), "directions": (size + 1, units), "weights": (units + size + 1,)}
        require_shapes({f"{start}{part}": shape for part, shape in shapes.items()}, tensors)
        return cls(**{part: tensors[f"{start}{part}"].double().numpy().copy() for part in shapes})


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


@dataclass(frozen=True)
class NoiseShape:
    """Weights, means and scales of the components, [K] each; errors are in units of a row's scale."""

    weights: Array
    means: Array
    scales: Array

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NoiseShape:
        """The shape in a model file; a ValueError where it is none."""
        parts = {part.name: np.array(document[part.name], dtype=np.float64) for part in fields(cls)}
        sound = all(part.shape == (COMPONENTS,) and np.isfinite(part).all() for part in parts.values())
        if not (sound and (parts["scales"] > 0).all() and (parts["weights"] > 0).all()):
            raise ValueError(f"a shape of noise must have {COMPONENTS} components; got {document!r:.60}")
        return cls(**parts)

    @property
    def mean(self) -> float:
        return float(self.weights @ self.means)

    @property
    def std(self) -> float:
        return float(np.sqrt(self.weights @ (self.scales**2 + self.means**2) - self.mean**2))

    def log_density(self, r: Array) -> Array:
        """log p(r)."""
        z = (r[..., None] - self.means) / self.scales
        parts = -0.5 * z**2 - np.log(self.scales) - 0.5 * np.log(2 * np.pi)
        return special.logsumexp(parts, axis=-1, b=self.weights)

    def cdf(self, r: Array) -> Array:
        """P(error <= r)."""
        return special.ndtr((r[..., None] - self.means) / self.scales) @ self.weights

    def quantile(self, q: Array) -> Array:
        """The r that errors stay below with probability q, between those of the components."""
        levels = np.asarray(q, dtype=np.float64)
        ends = self.means + self.scales * special.ndtri(levels[..., None])
        return find_quantiles(self.cdf, levels, ends.min(-1), ends.max(-1))

    def crps(self, r: Array) -> Array:
        """Continuous ranked probability score, in closed form (Grimit et al. 2006)."""

        def part(mean: Array, scale: Array) -> Array:
            z = mean / scale
            return 2 * scale * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) + mean * (2 * special.ndtr(z) - 1)

        first = part(r[..., None] - self.means, self.scales) @ self.weights
        between = part(self.means[:, None] - self.means, np.hypot(self.scales[:, None], self.scales))
        return first - 0.5 * float(self.weights @ between @ self.weights)

    def sample(self, size: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Draws of errors."""
        which = rng.choice(len(self.weights), size=size, p=self.weights / self.weights.sum())
        return self.means[which] + self.scales[which] * rng.standard_normal(size)


def fit_noise_shape(r: Array, weight: Array) -> NoiseShape:
    """Fit to errors over their scale [n] with weights [n]."""
    share = weight / weight.sum()
    centre = float(share @ r)
    variance = float(share @ (r - centre) ** 2)
    order = np.argsort(r)
    thirds = np.searchsorted(np.cumsum(share[order]), (np.arange(COMPONENTS) + 0.5) / COMPONENTS)
    means = r[order][np.minimum(thirds, len(r) - 1)]
    scales = np.full(COMPONENTS, np.sqrt(variance / 2))
    weights = np.full(COMPONENTS, 1 / COMPONENTS)
    for _ in range(SHAPE_STEPS):
        z = (r[:, None] - means) / scales
        log_parts = np.log(weights) - np.log(scales) - 0.5 * z**2
        belongs = special.softmax(log_parts, axis=1) * weight[:, None]
        mass = belongs.sum(0)
        before = means
        means = (belongs.T @ r + PRIOR_ROWS * centre) / (mass + PRIOR_ROWS)
        spread = (belongs * (r[:, None] - means) ** 2).sum(0) + PRIOR_ROWS * variance
        scales = np.sqrt(np.maximum(spread / (mass + PRIOR_ROWS), (LEAST_SCALE**2) * variance))
        weights = (mass + PRIOR_ROWS) / (mass + PRIOR_ROWS).sum()
        if np.abs(means - before).max() < 1e-6:
            break
    return NoiseShape(weights, means, scales)


def choose_shape(
    held_out: HeldOut, noise: Array | float, calibration: Calibration, seed: int, *, asked: bool
) -> NoiseShape | None:
    """The shape of held-out errors whose noise has the variance ``noise`` [n]; None where a Student t is as good.

    A mixture that was not ``asked`` for must have the higher cross-validated log density by two standard errors.
    """
    squared = noise + calibration.inflation * held_out.variance
    r, weight = held_out.error / np.sqrt(squared), held_out.weight
    if asked:
        return fit_noise_shape(r, weight)
    if len(r) < SHAPE_ROWS:
        return None
    student = student_log_density(r, np.ones(1), calibration.degrees)
    fold = np.random.default_rng(seed).permutation(len(r)) % FOLDS
    gain = np.empty(len(r))
    for k in range(FOLDS):
        one = fit_noise_shape(r[fold != k], weight[fold != k])
        gain[fold == k] = one.log_density(r[fold == k]) - student[fold == k]
    error = float(gain.std() / np.sqrt(len(r)))
    return fit_noise_shape(r, weight) if float(np.average(gain, weights=weight)) > MARGIN * error else None
