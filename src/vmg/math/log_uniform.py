"""The divergence of multiplicative Gaussian noise from the log-uniform prior, and that of a layer's pseudo-data.

−KL ≈ const + ½ log α + c₁α + c₂α² + c₃α³ for the posterior mean·(1 + √α ε), α <= 1 (Kingma et al. 2015, eq. 14). The
true divergence is known up to a constant only; here it is zero at the largest α allowed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["PseudoNoise", "log_uniform_at_bound", "log_uniform_kl", "pseudo_data_kl"]

_C1, _C2, _C3 = 1.16145124, -1.50204118, 0.58629921  # as in csrc/divergence.hpp


def log_uniform_kl(log_scale: Tensor, max_scale: float | Tensor) -> Tensor:
    """KL of one entry's multiplicative Gaussian to the log-uniform prior, zero at √α = ``max_scale``.

    Args:
        log_scale: log √α, any shape.
        max_scale: the bound on √α, at most 1, where the cubic fit ends; one number or broadcastable to log_scale.
    """
    alpha = torch.exp(2 * log_scale)
    return log_uniform_at_bound(max_scale) - (alpha * (_C1 + alpha * (_C2 + alpha * _C3)) + log_scale)


def log_uniform_at_bound(max_scale: float | Tensor) -> Any:
    """The constant that makes the divergence zero at √α = ``max_scale``, of the same kind as this."""
    alpha = max_scale**2
    log_scale = max_scale.log() if isinstance(max_scale, Tensor) else math.log(max_scale)
    return alpha * (_C1 + alpha * (_C2 + alpha * _C3)) + log_scale


class PseudoNoise(NamedTuple):
    """The noise of a layer's pseudo-data, as in :class:`vmg.nn.PseudoData`."""

    n_points: int
    log_noise: Tensor  # log √α [..., 2], or the dimensions' factors [..., R+C]
    log_point_noise: Tensor | None  # the points' factors [..., P]
    max_noise: float | Tensor  # bound on √α, [*batch_shape] where replicas differ


def pseudo_data_kl(noise: PseudoNoise, n_rows: int, n_columns: int) -> Tensor:
    """KL of q(Ã) and q(B̃) to their log-uniform priors, summed over entries; [*batch_shape]."""
    log_noise, bound = noise.log_noise, noise.max_noise
    if isinstance(bound, Tensor):
        bound = bound.to(log_noise)
    if noise.log_point_noise is None:
        inputs, outputs = log_uniform_kl(log_noise, _after(bound, 1)).unbind(-1)
        return noise.n_points * (n_rows * inputs + n_columns * outputs)
    log_scale = noise.log_point_noise.unsqueeze(-1) + log_noise.unsqueeze(-2)  # [..., P, R+C]
    return log_uniform_kl(log_scale, _after(bound, 2)).sum((-2, -1))


def _after(bound: float | Tensor, n_dims: int) -> float | Tensor:
    """The bound of each replica, for a tensor with ``n_dims`` more dimensions."""
    return bound[(..., *[None] * n_dims)] if isinstance(bound, Tensor) else bound
