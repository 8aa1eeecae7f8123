"""The shape of the noise as a mixture of normal distributions: skewed, with two humps or with a spike.

Held-out errors over their scale, r, have some distribution around zero. Instead of a Student t it may be

    p(r) = Σ_k w_k N(r; m_k, s_k²),

found by expectation maximisation. Location and scale of a row stay what they are for the Student t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vmg.fit.calibration import Calibration, HeldOut, t_log_density
from vmg.prediction.quantile_search import find_quantiles

__all__ = ["COMPONENTS", "NoiseShape", "choose_shape", "fit_noise_shape"]

Array = NDArray[np.float64]

COMPONENTS = 3
STEPS = 200
PRIOR_ROWS = 2.0  # that each component has beside its own, with the variance of all errors
FEWEST_ROWS = 60  # fewer errors say little of a shape
LEAST_SCALE = 0.02
FOLDS = 4
MARGIN = 2.0  # standard errors


@dataclass(frozen=True)
class NoiseShape:
    """Weights, means and scales of the components, [K] each; errors are in units of a row's scale."""

    weights: Array
    means: Array
    scales: Array

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
    for _ in range(STEPS):
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
    squared = noise + calibration.stretch * held_out.variance
    r, weight = held_out.error / np.sqrt(squared), held_out.weight
    if asked:
        return fit_noise_shape(r, weight)
    if len(r) < FEWEST_ROWS:
        return None
    student = t_log_density(r, np.ones(1), calibration.degrees)
    fold = np.random.default_rng(seed).permutation(len(r)) % FOLDS
    gain = np.empty(len(r))
    for k in range(FOLDS):
        one = fit_noise_shape(r[fold != k], weight[fold != k])
        gain[fold == k] = one.log_density(r[fold == k]) - student[fold == k]
    error = float(gain.std() / np.sqrt(len(r)))
    return fit_noise_shape(r, weight) if float(np.average(gain, weights=weight)) > MARGIN * error else None
