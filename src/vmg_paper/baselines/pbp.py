"""Probabilistic backpropagation [HA15]: assumed density filtering of the weights of a ReLU network.

Hernández-Lobato & Adams (2015), *Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks*.
Weights have independent Gaussian posteriors N(m, v). A row is taken in by passing means and variances forward to
log Z = log N(y; m_out, v_out + noise), and its gradients back. Shapes: n replicas, one after another in the leading
dimension; a layer's weights are [n, R, C], R inputs with the bias, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vmg.math.preactivations import input_divisor
from vmg.prediction import Prediction
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows

__all__ = [
    "GaussianPrediction",
    "Moments",
    "PBPRegressor",
    "WeightPrior",
    "filter_rows",
    "forward",
    "gaussian_update",
    "refine_prior",
    "tilted_gamma",
]

Integers = NDArray[np.int64]

SMALLEST_VARIANCE = 1e-100  # an update below it is not made, as in the authors' code
LARGEST_CAVITY_VARIANCE = 1e6  # a prior factor whose cavity is wider is not refined, as in the authors' code


class Moments(NamedTuple):
    """Mean and variance of each entry."""

    mean: Array
    variance: Array


class Rectified(NamedTuple):
    """Moments of max(0, a) for a ~ N(m, v), with Φ(m/√v) and φ(m/√v)/√v, of which their derivatives are made."""

    mean: Array
    variance: Array
    cdf: Array
    density: Array


def rectify(m: Array, v: Array) -> Rectified:
    """Moments of max(0, a) [HA15, equations 9 to 12], in a form that does not cancel where m/√v is large."""
    s = np.sqrt(v)
    a = m / s
    above, below = 0.5 * special.erfc(-a * math.sqrt(0.5)), 0.5 * special.erfc(a * math.sqrt(0.5))
    phi = np.exp(-0.5 * a**2) / math.sqrt(2 * math.pi)
    unit = above * (1 + a**2 * below) + a * phi * (below - above) - phi**2
    return Rectified(np.maximum(0, m * above + s * phi), np.maximum(0, unit) * v, above, phi / s)


def split_layers(flat: Array, sizes: Sequence[int]) -> list[Array]:
    """Views [n, R, C] of each layer's part of flat [n, W]."""
    layers, start = [], 0
    for n_in, n_out in pairwise(sizes):
        stop = start + (n_in + 1) * n_out
        layers.append(flat[:, start:stop].reshape(len(flat), n_in + 1, n_out))
        start = stop
    return layers


def _t(matrices: Array) -> Array:
    return np.swapaxes(matrices, -1, -2)


def _with_bias(z: Moments) -> Moments:
    ones = np.ones((*z.mean.shape[:-1], 1))
    return Moments(np.concatenate([z.mean, ones], -1), np.concatenate([z.variance, 0 * ones], -1))


def _linear(z: Moments, m: Array, v: Array) -> Moments:
    """Moments of zW/√R for independent z and W [HA15, equations 13 and 14]."""
    R = m.shape[-2]
    return Moments(z.mean @ m / input_divisor(R), ((z.mean**2 + z.variance) @ v + z.variance @ m**2) / R)  # [n, N, C]


def forward(m: Sequence[Array], v: Sequence[Array], x: Array) -> Moments:
    """Mean and variance of the network's output at x [n, N, D]: [n, N, C]."""
    z = Moments(x, np.zeros_like(x))
    for position, (m_l, v_l) in enumerate(zip(m, v, strict=True)):
        if position:
            z = Moments(*rectify(*z)[:2])
        z = _linear(_with_bias(z), m_l, v_l)
    return z


def log_evidence_gradients(
    m: Sequence[Array], v: Sequence[Array], x: Array, y: Array, noise_variance: Array
) -> tuple[Array, Moments, list[Moments]]:
    """log Z of one row for each replica, the output's moments, and d log Z/dm, d log Z/dv of every layer.

    x is [n, D], y and noise_variance [n].
    """
    inputs, rectified = [], []
    z = Moments(x[:, None], np.zeros_like(x)[:, None])  # [n, 1, D]
    for position, (m_l, v_l) in enumerate(zip(m, v, strict=True)):
        if position:
            rectified.append(rectify(*z))
            z = Moments(*rectified[-1][:2])
        inputs.append(_with_bias(z))
        z = _linear(inputs[-1], m_l, v_l)
    out = Moments(z.mean[:, 0, 0], z.variance[:, 0, 0])
    r, total = y - out.mean, out.variance + noise_variance
    log_z = -0.5 * (np.log(2 * math.pi * total) + r**2 / total)

    g_m, g_v = (r / total)[:, None, None], (0.5 * (r**2 / total - 1) / total)[:, None, None]  # [n, 1, C]
    gradients = []
    for position in reversed(range(len(m))):
        m_l, v_l, z = m[position], v[position], inputs[position]
        R = m_l.shape[-2]
        mean, variance = _t(z.mean), _t(z.variance)  # [n, R, 1]
        gradients.append(
            Moments(
                mean * g_m / input_divisor(R) + 2 * variance * m_l * g_v / R,
                (mean**2 + variance) * g_v / R,
            )
        )
        if position:
            back_m = g_m @ _t(m_l) / input_divisor(R) + 2 * z.mean * (g_v @ _t(v_l)) / R  # [n, 1, R]
            back_v = g_v @ _t(v_l + m_l**2) / R
            back_m, back_v = back_m[..., :-1], back_v[..., :-1]  # not of the bias
            z_mean, _, cdf, density = rectified[position - 1]
            g_m = back_m * cdf + 2 * back_v * z_mean * (1 - cdf)
            g_v = 0.5 * back_m * density + back_v * (cdf - z_mean * density)
    return log_z, out, gradients[::-1]


def gaussian_update(m: Array, v: Array, d_m: Array, d_v: Array) -> Moments:
    """Moments of N(w; m, v) p(y | w) from the gradients of its log normaliser [HA15, equations 5 and 6]."""
    new_m, new_v = m + v * d_m, v - v**2 * (d_m**2 - 2 * d_v)
    good = (new_v > SMALLEST_VARIANCE) & ~np.isnan(new_m)
    return Moments(np.where(good, new_m, m), np.where(good, new_v, v))


def _log_ratio(r: Array, v: Array, step: Array) -> Array:
    """log N(r; 0, v + step) − log N(r; 0, v), accurate for small steps."""
    return -0.5 * np.log1p(step / v) + 0.5 * r**2 * step / (v * (v + step))


def matched_gamma(a: Array, b: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """The Gamma with the first two moments of Gamma(γ; a, b) p(y | γ), whose normaliser is Z(a) [HA15, equations 7, 8].

    ``first`` is log Z(a + 1)/Z(a) and ``second`` log Z(a + 2)/Z(a + 1): E γ = (a/b) Z(a + 1)/Z(a), and so on.
    """
    new_a = 1 / np.expm1(second - first + np.log1p(1 / a))
    new_b = b / (1 + (a + 1) * np.expm1(second) - a * np.expm1(first))
    return new_a, new_b


def tilted_gamma(a: Array, b: Array, r: Array, v: Array) -> tuple[Array, Array]:
    """The Gamma with the first two moments of Gamma(γ; a, b) N(r; 0, v + 1/γ), with Z(a) ≈ N(r; 0, v + b/(a − 1))."""
    with np.errstate(all="ignore"):
        now, once = v + b / (a - 1), v + b / a
        first, second = _log_ratio(r, now, -b / (a * (a - 1))), _log_ratio(r, once, -b / (a * (a + 1)))
        new_a, new_b = matched_gamma(a, b, first, second)
        good = (new_a > 1) & (new_b > 0) & np.isfinite(new_a) & np.isfinite(new_b)
    return np.where(good, new_a, a), np.where(good, new_b, b)


def filter_rows(
    sizes: Sequence[int],
    n_rows: Integers,
    x: Array,
    y: Array,
    order: Integers,
    m: Array,
    v: Array,
    noise: Array,
    *,
    known: bool = False,
) -> Array:
    """One pass over all rows, one at a time, changing m, v [n, W] and noise [n, 2] in place; the sum of log Z, [n].

    Args:
        sizes: inputs, units of each hidden layer, and 1.
        n_rows: how many entries of ``order`` count for each replica, [n].
        x, y: rows of each replica, [n, N, D] and [n, N].
        order: the order in which the rows come, [n, N].
        noise: concentration and rate of the noise precision's Gamma; where ``known``, nothing and the variance.
    """
    m_layers, v_layers = split_layers(m, sizes), split_layers(v, sizes)
    replicas, total = np.arange(len(x)), np.zeros(len(x))
    for step in range(int(n_rows.max())):
        active = step < n_rows
        a, b = noise[:, 0], noise[:, 1]
        row = order[:, step]
        target = y[replicas, row]
        variance = b if known else b / (a - 1)
        log_z, out, gradients = log_evidence_gradients(m_layers, v_layers, x[replicas, row], target, variance)
        for m_l, v_l, (d_m, d_v) in zip(m_layers, v_layers, gradients, strict=True):
            updated = gaussian_update(m_l, v_l, d_m, d_v)
            m_l[active], v_l[active] = updated.mean[active], updated.variance[active]
        if not known:
            updated_noise = np.stack(tilted_gamma(a, b, target - out.mean, out.variance), -1)
            noise[active] = updated_noise[active]
        total += np.where(active, log_z, 0)
    return total


@dataclass
class WeightPrior:
    """N(w; 0, 1/λ) for every weight with λ ~ Gamma: the approximate factors, in natural parameters, and q(λ)."""

    precision: Array  # 1/variance of each weight's factor, [n, W]
    shift: Array  # mean/variance, [n, W]
    a: Array  # natural parameters of each factor's part of q(λ), [n, W]
    b: Array
    concentration: Array  # of q(λ), [n]
    rate: Array

    @classmethod
    def start(cls, n: int, n_weights: int, concentration: float, rate: float) -> WeightPrior:
        """Factors N(w; 0, b/(a − 1)), which is the prior's variance, and nothing yet said about λ."""
        shape = (n, n_weights)
        zeros = np.zeros(shape)
        return cls(
            np.full(shape, (concentration - 1) / rate),
            zeros,
            zeros.copy(),
            zeros.copy(),
            np.full(n, float(concentration)),
            np.full(n, float(rate)),
        )


def refine_prior(prior: WeightPrior, m: Array, v: Array) -> None:
    """One expectation-propagation sweep over the prior's factors, one weight after another [HA15, §3.3]; in place."""
    with np.errstate(all="ignore"):
        for k in range(m.shape[1]):
            cavity_precision = 1 / v[:, k] - prior.precision[:, k]
            cavity_shift = m[:, k] / v[:, k] - prior.shift[:, k]
            cavity_v, cavity_m = 1 / cavity_precision, cavity_shift / cavity_precision
            a, b = prior.concentration - prior.a[:, k], prior.rate - prior.b[:, k]
            good = (cavity_v > 0) & (cavity_v < LARGEST_CAVITY_VARIANCE) & (a > 1) & (b > 0)

            total = cavity_v + b / (a - 1)
            d_m, d_v = -cavity_m / total, 0.5 * (cavity_m**2 / total - 1) / total
            new_m, new_v = gaussian_update(cavity_m, cavity_v, d_m, d_v)
            new_a, new_b = tilted_gamma(a, b, cavity_m, cavity_v)
            for array, value in (
                (prior.precision, 1 / new_v - cavity_precision),
                (prior.shift, new_m / new_v - cavity_shift),
                (prior.a, new_a - a),
                (prior.b, new_b - b),
                (m, new_m),
                (v, new_v),
            ):
                array[:, k] = np.where(good, value, array[:, k])
            prior.concentration[good], prior.rate[good] = new_a[good], new_b[good]


class Weights(NamedTuple):
    """Mean and variance of each layer's weights, [1, R, C], and of the noise."""

    mean: list[Array]
    variance: list[Array]
    noise_variance: float


@dataclass(frozen=True, repr=False)
class GaussianPrediction(Prediction):
    """One Gaussian for each row, of which ``function_share`` of the variance is ignorance [N]."""

    function_share: Array = field(default_factory=lambda: np.zeros(1))

    @property
    def _aleatoric(self) -> Array:
        return self.scale[0] * np.sqrt(1 - self.function_share)[:, None]

    @property
    def _epistemic(self) -> Array:
        return self.scale[0] * np.sqrt(self.function_share)[:, None]


@dataclass(eq=False)
class PBPRegressor(BatchedRegressor):
    """A ReLU network whose weights are independent Gaussians, found by assumed density filtering.

    Every pass takes in the rows one at a time, in a new order, and then refines the factors of the prior. As in the
    paper rows are taken in anew in every pass, so the posterior is that of as many copies of the table.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int
        Units of each hidden layer; none for a linear model.
    n_epochs : int
        Passes over the data, 40 in the paper.
    weight_prior, noise_prior : (float, float)
        Gamma(concentration, rate) of the precision of the weights, and of the noise in standardised units.
    noise_scale : float, optional
        Standard deviation of the noise in the target's own units, where it is known.
    n_starts : int
        Fits from different first means, of which that with the largest log evidence in the last pass is kept: on a
        handful of rows one start may end far from the data. 1 in the paper.
    random_state : int
        Of the first means and of the rows' order.
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    n_epochs: int = 40
    weight_prior: tuple[float, float] = (6.0, 6.0)
    noise_prior: tuple[float, float] = (6.0, 6.0)
    noise_scale: float | None = None
    n_starts: int = 1
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[Weights], int]:
        for name, count in (("n_epochs", self.n_epochs), ("n_starts", self.n_starts)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1; got {count}")
        for name, (concentration, rate) in (("weight_prior", self.weight_prior), ("noise_prior", self.noise_prior)):
            if not (concentration > 1 and rate > 0):
                raise ValueError(f"{name} must have concentration > 1 and rate > 0; got {concentration} and {rate}")
        sets = [rows for rows in sets for _ in range(self.n_starts)]
        n, n_rows = len(sets), np.array([len(rows.y) for rows in sets])
        x, y = (np.zeros((n, n_rows.max(), *tail)) for tail in ((sets[0].x.shape[1],), ()))
        for k, rows in enumerate(sets):
            x[k, : n_rows[k]], y[k, : n_rows[k]] = rows.x, rows.y
        sizes = [x.shape[2], *self.hidden_layer_sizes, 1]
        known = self.noise_scale is not None
        if self.noise_scale is not None:
            noise = np.array([[np.nan, (self.noise_scale / rows.unit) ** 2] for rows in sets])
        else:
            noise = np.tile(np.array(self.noise_prior, dtype=np.float64), (n, 1))

        # a generator for each replica, so that its numbers do not depend on the others
        generators = [np.random.default_rng([self.random_state, k % self.n_starts]) for k in range(n)]
        m = np.stack([_initial_means(sizes, generator) for generator in generators])
        prior = WeightPrior.start(n, m.shape[1], *self.weight_prior)
        v = 1 / prior.precision
        for _ in range(self.n_epochs):
            order = np.zeros((n, n_rows.max()), dtype=np.int64)
            for k, generator in enumerate(generators):
                order[k, : n_rows[k]] = generator.permutation(n_rows[k])
            log_evidence = filter_rows(sizes, n_rows, x, y, order, m, v, noise, known=known)
            refine_prior(prior, m, v)
        variance = noise[:, 1] if known else noise[:, 1] / (noise[:, 0] - 1)
        log_evidence = np.where(np.isnan(log_evidence), -np.inf, log_evidence)
        best = log_evidence.reshape(-1, self.n_starts).argmax(1) + np.arange(0, n, self.n_starts)
        kept = [
            Weights(split_layers(m[k : k + 1], sizes), split_layers(v[k : k + 1], sizes), float(variance[k]))
            for k in best
        ]
        return kept, self.n_epochs * int(n_rows.max())

    def _predict_standard(self, x: Array) -> GaussianPrediction:
        """N(y; m, v + b/(a − 1)), the Gaussian that the paper scores."""
        weights: Weights = self.posterior_
        mean, variance = forward(weights.mean, weights.variance, x[None])  # [1, N, 1]
        total = variance + weights.noise_variance
        share = (variance / total)[0, :, 0]
        return GaussianPrediction(mean, np.sqrt(total), np.full((1, 1, 1), np.inf), function_share=share)


def _initial_means(sizes: Sequence[int], generator: np.random.Generator) -> Array:
    """N(0, 1/R) for every weight, which breaks the symmetry between hidden units [the authors' code]."""
    layers = [generator.normal(0, (n_in + 1) ** -0.5, size=(n_in + 1) * n_out) for n_in, n_out in pairwise(sizes)]
    return np.concatenate(layers)
