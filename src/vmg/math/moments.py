"""Mean and variance carried through a network instead of draws: the mathematics, without a network.

A diagonal layer's outputs are independent of each other given its input and the pseudo-inputs. So for an input with
independent entries of known mean and variance the mean and variance of each output are exact, whatever the input's
distribution; with x [B, R] the input with its one, v its variance, K = Σ₁₁⁻¹ÃU the gain and x' = x − xKᵀÃ as in
:mod:`vmg.fused.diagonal_draw`,

    mean     = x M_eff
    variance = v M_eff² + σ_c² (Σ_r u_r x'_r² + σ²‖Kxᵀ‖² + Σ_r v_r U'_rr) + ((Kxᵀ)² + K²vᵀ)ᵀ (α B̃²)

where squares are elementwise, U' = U − UÃᵀΣ₁₁⁻¹ÃU, and the last term is the noise of the pseudo-outputs, in which the
output is linear. The activation is then a matter of one dimension: closed form for ReLU and cosine, quadrature for all
others, the pre-activation taken for Gaussian. In a network of one hidden layer it is Gaussian.

The noise of the pseudo-inputs moves all outputs together and is not linear. To second order it moves the mean of M_eff
(:func:`fold_layer`), to first order it adds to the variance of whatever the network ends in (:func:`pull_back`).

Beyond the paper, which draws samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from vmg.math.linalg import cholesky

__all__ = [
    "ActivationMoments",
    "FoldedLayer",
    "LayerMoments",
    "activation_moments",
    "fold_layer",
    "layer_moments",
    "normal_points",
    "pull_back",
    "relu_moments",
]

QUADRATURE_POINTS = 20
"""Nodes of Gauss and Hermite: exact for polynomials of degree 39, and to four digits for tanh of a standard normal."""

WIDE, WIDEST = 1.5, 1e3
"""Standard deviations of a pre-activation beyond which those points lie too far apart, and up to which others serve."""

LEAST_WIDTH = 1e-3
"""Standard deviation below which a slope is that of a pre-activation this wide, relative to 1 + its size."""


class ActivationMoments(NamedTuple):
    """Moments of an activation at a Gaussian pre-activation."""

    mean: Tensor
    variance: Tensor
    slope: Tensor  # of the mean, as the mean of the pre-activation moves


def relu_moments(mean: Tensor, variance: Tensor) -> ActivationMoments:
    """max(0, h) for h ~ N(mean, variance), in closed form.

    With a = μ/σ and q = a(Φ(a) − ½) + φ(a) the mean is σ(a/2 + q) and the variance σ² (Φ(a) + (a/2 + q)(a/2 − q)).
    Where a is large, one of the last two factors is zero and nothing cancels.
    """
    scale = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    a = mean / scale
    above = torch.erf(a * math.sqrt(0.5)).mul_(0.5)  # Φ − ½
    q = a.square().mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi)).addcmul_(a, above)
    above.add_(0.5)
    a.mul_(0.5)
    plus = a + q
    share = torch.addcmul(above, plus, a.sub_(q)).clamp_min_(0)
    return ActivationMoments(plus.mul_(scale), share.mul_(variance), above)


def cosine_moments(mean: Tensor, variance: Tensor) -> ActivationMoments:
    """cos h for h ~ N(mean, variance), in closed form.

    The mean is e^{−σ²/2} cos μ and the variance ½(1 − e^{−σ²})(1 − e^{−σ²} cos 2μ).
    """
    damped = torch.exp(-0.5 * variance)
    loss = -torch.expm1(-variance)  # 1 − e^{−σ²}
    # 1 − e^{−σ²} cos 2μ = (1 − e^{−σ²}) + 2e^{−σ²} sin²μ, where nothing cancels
    spread = 0.5 * loss * (loss + 2 * damped.square() * mean.sin().square())
    return ActivationMoments(damped * mean.cos(), spread, -damped * mean.sin())


def quadrature_moments(
    activation: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, n_points: int = QUADRATURE_POINTS
) -> ActivationMoments:
    """Any elementwise activation, by quadrature; its slope from Stein's identity, E[a(h)(h − μ)]/σ².

    Gauss-Hermite where the standard deviation is at most ``WIDE``, and beyond it a trapezoidal rule with a step of at
    most one. For activations that are smooth over a unit, as tanh and logistic are, the error is below 0.005. One that
    oscillates faster needs a closed form.
    """
    scale = variance.clamp_min(0).sqrt()
    found = _quadrature(activation, mean, scale, *_hermite(n_points))
    wide = scale > WIDE
    if not wide.any():
        return found
    largest = scale.max().item()
    if not largest <= WIDEST:
        raise ValueError(f"pre-activations must have a standard deviation of at most {WIDEST:g}; got {largest:g}")
    beyond = _quadrature(activation, mean[wide], scale[wide], *_trapezoid(math.ceil(TAIL * largest)))
    for values, others in zip(found, beyond, strict=True):
        values[wide] = others
    return found


TAIL = 8.0
"""Standard deviations on either side that the trapezoidal rule covers."""


def _trapezoid(n_half: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of a standard normal, evenly spaced."""
    nodes = np.linspace(-TAIL, TAIL, 2 * n_half + 1)
    weights = np.exp(-0.5 * nodes**2)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def _quadrature(
    activation: Callable[[Tensor], Tensor], mean: Tensor, scale: Tensor, nodes: list[float], weights: list[float]
) -> ActivationMoments:
    width = torch.maximum(scale, LEAST_WIDTH * (1 + mean.abs()))
    first, second, slope = torch.zeros_like(mean), torch.zeros_like(mean), torch.zeros_like(mean)
    centre = activation(mean)
    for node, weight in zip(nodes, weights, strict=True):
        change = activation(torch.add(mean, scale, alpha=node)) - centre  # small numbers, whose squares do not cancel
        first.add_(change, alpha=weight)
        second.addcmul_(change, change, value=weight)
        slope.add_(activation(torch.add(mean, width, alpha=node)) - centre, alpha=weight * node)
    return ActivationMoments(centre + first, (second - first.square()).clamp_min_(0), slope / width)


@cache
def _hermite(n_points: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_points)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def activation_moments(activation: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> ActivationMoments:
    """Moments of an activation at pre-activations N(mean, variance)."""
    if activation is torch.relu:
        return relu_moments(mean, variance)
    if activation is torch.cos:
        return cosine_moments(mean, variance)
    return quadrature_moments(activation, mean, variance)


class FoldedLayer(NamedTuple):
    """A diagonal layer with its pseudo-data folded in: all that does not depend on the rows of data."""

    weight: Tensor  # M_eff [..., R, C] at the pseudo-inputs' mean
    mean_weight: Tensor  # E M_eff [..., R, C] under their noise, to second order
    row_variance: Tensor  # u [..., R]
    column_variance: Tensor  # σ_c² [..., C]
    left_variance: Tensor  # diagonal of U' [..., R], what the pseudo-data leave of u
    damping: float
    inputs: Tensor | None = None  # Ã [..., P, R]
    gain: Tensor | None = None  # K [..., P, R]
    pull: Tensor | None = None  # Σ₁₁⁻¹(B̃ − ÃM) [..., P, C]
    input_noise: Tensor | None = None  # α Ã² [..., P, R], or None to take the pseudo-inputs as they are
    output_noise: Tensor | None = None  # α B̃² [..., P, C]

    def to(self, dtype: torch.dtype) -> FoldedLayer:
        """The same in another precision."""
        tensors: dict[str, Any] = {k: part.to(dtype) for k, part in self._asdict().items() if isinstance(part, Tensor)}
        return self._replace(**tensors)


def fold_layer(
    M: Tensor | None,
    row_variance: Tensor,
    column_variance: Tensor,
    A: Tensor | None,
    B: Tensor | None,
    *,
    input_noise: Tensor | None = None,
    output_noise: Tensor | None = None,
    damping: float,
) -> FoldedLayer:
    """Fold pseudo-inputs A [..., P, R] and pseudo-outputs B [..., P, C], and the variances of their entries.

    With T = Σ₁₁⁻¹(B̃ − ÃM), W = M_eff = M + UÃᵀT and a the variances of Ã's entries, the second order of E M_eff is

        −Y + Kᵀ(ÃY + (a ∘ K)W − (Σ_r a_r U'_rr) ∘ T),  Y = u ∘ ((Σ_p a_p Σ₁₁⁻¹_pp) ∘ W + (a ∘ K)ᵀT)

    from differentiating Σ₁₁T = B̃ − ÃM twice.

    ``M=None`` is the zero-mean layer; without pseudo-data A and B are None. Double precision is advisable: these small
    matrices may be ill-conditioned.
    """
    if A is None or B is None:
        if M is None:
            raise ValueError("M and A must not both be None: nothing would carry the mean")
        return FoldedLayer(M, M, row_variance, column_variance, row_variance, damping)
    AU = A * row_variance.unsqueeze(-2)
    S = AU @ A.mT
    S.diagonal(dim1=-2, dim2=-1).add_(damping)
    root = cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I")
    gain = torch.cholesky_solve(AU, root)
    pull = torch.cholesky_solve(B if M is None else B - A @ M, root)
    weight = AU.mT @ pull if M is None else M + AU.mT @ pull
    left = (row_variance - (AU * gain).sum(-2)).clamp_min(0)
    mean_weight = weight
    if input_noise is not None:
        inverse = torch.cholesky_inverse(root).diagonal(dim1=-2, dim2=-1).unsqueeze(-1)  # [..., P, 1]
        noisy_gain = input_noise * gain
        Y = (input_noise * inverse).sum(-2).unsqueeze(-1) * weight + noisy_gain.mT @ pull
        Y = row_variance.unsqueeze(-1) * Y
        rest = (input_noise @ left.unsqueeze(-1)) * pull
        mean_weight = weight - Y + gain.mT @ (A @ Y + noisy_gain @ weight - rest)
    small = (weight, mean_weight, row_variance, column_variance, left, damping)
    return FoldedLayer(*small, A, gain, pull, input_noise, output_noise)


class LayerMoments(NamedTuple):
    """Moments of a layer's outputs, with what :func:`pull_back` needs."""

    mean: Tensor  # [..., B, C]
    variance: Tensor  # [..., B, C]
    left: Tensor  # x' [..., B, R], what of the input the pseudo-data do not explain
    gain: Tensor | None  # G = xKᵀ [..., B, P]
    lever: Tensor | None  # Σ_r a_r u_r² x'_r² [..., B, P], a the variances of the pseudo-inputs' entries


def layer_moments(layer: FoldedLayer, x: Tensor, variance: Tensor | None = None) -> LayerMoments:
    """Mean and variance of every output at inputs of mean x [..., B, R] and ``variance`` [..., B, D], D <= R.

    The inputs' entries are independent; those from D on, such as the one of the bias, and all of them without
    ``variance``, are certain.
    """
    u, left, gain, lever = layer.row_variance.unsqueeze(-1), x, None, None
    if layer.gain is None or layer.inputs is None:
        mean = _times(x, layer.mean_weight)
    else:
        mean, gain = _times_all(x, layer.mean_weight, layer.gain.mT)
        left = x - _times(gain, layer.inputs)
    if layer.input_noise is None:
        row = _times(left.square(), u)  # [..., B, 1]
    else:
        row, lever = _times_all(left.square(), u, u.square() * layer.input_noise.mT)
    power = None if gain is None else gain.square()
    if power is not None:
        row = row + layer.damping * power.sum(-1, keepdim=True)
    out: Tensor | float = 0.0
    if variance is not None:
        D = variance.shape[-1]
        squares = [layer.weight[..., :D, :].square(), layer.left_variance[..., :D].unsqueeze(-1)]
        if power is None or layer.gain is None:
            out, extra = _times_all(variance, *squares)
        else:
            out, extra, more = _times_all(variance, *squares, layer.gain[..., :D].square().mT)
            power = power + more
        row = row + extra
    out = out + row * layer.column_variance.unsqueeze(-2)
    if power is not None and layer.output_noise is not None:
        out = out + _times(power, layer.output_noise)
    return LayerMoments(mean, out, left, gain, lever)


def _times(x: Tensor, W: Tensor) -> Tensor:
    """x W, laid out with the rows of data along memory: products with narrow matrices are much faster so."""
    return (W.mT @ x.mT).mT


def _times_all(x: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """x W for several W, as one product."""
    return _times(x, torch.cat(matrices, dim=-1)).split([W.shape[-1] for W in matrices], dim=-1)


def pull_back(layer: FoldedLayer, at: LayerMoments, slope: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the noise of the pseudo-inputs adds to the variance of a scalar, to first order, and its slope at x.

    With g the scalar's ``slope`` at the layer's outputs, H = g (B̃ − ÃM)ᵀΣ₁₁⁻¹ and ∂x = g M_effᵀ, its derivative with
    respect to Ã_pr is H_p u_r x'_r − G_p ∂x_r (see :mod:`vmg.fused.diagonal_draw`). The squares are summed without
    forming it.

    Args:
        layer, at: the layer, and its moments at the rows of data.
        slope: g [..., B, C], or [..., 1, C] if all rows share it.

    Returns:
        The variance [..., B], or None where pseudo-inputs have no noise, and ∂x [..., B, R].
    """
    if layer.input_noise is None or layer.pull is None or at.gain is None or at.lever is None:
        return None, _times(slope, layer.weight.mT)
    slope_x, H = _times_all(slope, layer.weight.mT, layer.pull.mT)
    noise = layer.input_noise.mT  # [..., R, P]
    lean = layer.row_variance.unsqueeze(-1) * noise
    across = _times(at.left, slope_x.mT * lean) if slope.shape[-2] == 1 else _times(at.left * slope_x, lean)
    terms = H.square() * at.lever + at.gain * (at.gain * _times(slope_x.square(), noise) - 2 * H * across)
    return terms.sum(-1).clamp_min(0), slope_x


def normal_points(n_points: int, n_dims: int) -> Tensor:
    """Equally likely points [n_points, n_dims] that stand for a standard normal: mean 0 and variance 1 in each.

    The middles of as many equally likely intervals, in the order of a Sobol sequence, so that dimensions are hardly
    correlated. ``n_points`` must be a power of two.
    """
    if n_points < 2 or n_points & (n_points - 1):
        raise ValueError(f"n_points must be a power of two, at least 2; got {n_points}")
    middles = SobolEngine(n_dims).draw(n_points, dtype=torch.float64) + 0.5 / n_points
    points = torch.special.ndtri(middles)
    return points / points.std(0, correction=0)
