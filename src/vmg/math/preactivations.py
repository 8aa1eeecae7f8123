"""The model as pure functions of tensors: four ways to draw pre-activations.

Every function takes inputs that are already augmented and scaled (:func:`augment`) and takes its noise as an argument.
Letters: B rows of a batch, R inputs with bias, C outputs, P pseudo-points; leading dimensions broadcast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.math.covariance import Covariance, damped_root
from vmg.math.linalg import cholesky

__all__ = [
    "DAMPING",
    "Conditional",
    "augment",
    "condition",
    "condition_weights",
    "fold_mean",
    "input_divisor",
    "sample_conditional",
    "sample_joint",
    "sample_marginal",
    "sample_weights",
]

DAMPING = 1e-6
"""σ² added to Σ₁₁. Differs from the paper: 1e-8 is below what float32 resolves; the authors' code uses 1e-6."""


def input_divisor(n_rows: int) -> float:
    """√R, by which a layer divides [x, 1] and its pseudo-inputs: the output's scale is then free of the width."""
    return math.sqrt(n_rows)


def augment(x: Tensor, bias: bool = True) -> Tensor:
    """x̂ = [x, 1]/√R [LW16, §4]."""
    if bias:
        x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
    return x / input_divisor(x.shape[-1])


def _correlate(noise: Tensor, V: Covariance) -> Tensor:
    """Rows of standard noise [..., B, C] given column covariance V."""
    return V.sqrt_matmul(noise.mT).mT


def _mean(x: Tensor, M: Tensor | None) -> Tensor | float:
    """x̂M, or zero for the zero-mean layer."""
    return 0.0 if M is None else x @ M


def sample_weights(x: Tensor, M: Tensor | None, U: Covariance, V: Covariance, noise: Tensor) -> Tensor:
    """x̂W with one weight matrix W = M + U^½ E V^½ᵀ for the whole batch; noise E [..., R, C] [LW16, eq. 3]."""
    return x @ (_correlate(U.sqrt_matmul(noise), V) + (0.0 if M is None else M))


def sample_joint(x: Tensor, M: Tensor | None, U: Covariance, V: Covariance, noise: Tensor) -> Tensor:
    """B | A ~ MN(AM, AUAᵀ, V): rows of the batch correlated, the GP view; noise [..., B, C] [LW16, eq. 5]."""
    root = cholesky(U.gram(x), name="x U xᵀ")
    return _mean(x, M) + _correlate(root @ noise, V)


def sample_marginal(x: Tensor, M: Tensor | None, U: Covariance, V: Covariance, noise: Tensor) -> Tensor:
    """Each row on its own, N(x̂M, (x̂Ux̂ᵀ) V): the local reparametrisation; noise [..., B, C] [LW16, §2.4]."""
    scale = U.quadratic(x).clamp_min(torch.finfo(x.dtype).tiny).sqrt().unsqueeze(-1)  # √ has no slope at 0
    return _mean(x, M) + scale * _correlate(noise, V)


class Conditional(NamedTuple):
    """A layer's output at x given its pseudo-data: MN(mean, row covariance, V)."""

    mean: Tensor  # [..., B, C]
    rest: Tensor  # x' = x̂ − GᵀÃ, the part of the input that pseudo-data do not explain, [..., B, R]
    gain: Tensor  # G = Σ₁₁⁻¹ σ₁₂ [..., P, B]
    damping: float  # σ²

    def row_variance(self, x: Tensor, U: Covariance) -> Tensor:
        """σ₂₂ − σ₁₂ᵀ Σ₁₁⁻¹ σ₁₂ = x'Ux'ᵀ + σ²‖G‖² of each row, [..., B], kept above rounding error."""
        limits = torch.finfo(x.dtype)
        floor = 10 * limits.eps * U.quadratic(x).detach() + limits.tiny
        return torch.maximum(U.quadratic(self.rest) + self.damping * self.gain.square().sum(-2), floor)

    def row_covariance(self, U: Covariance) -> Tensor:
        """The same with the correlations between rows, [..., B, B]."""
        return U.gram(self.rest) + self.damping * self.gain.mT @ self.gain


def condition(
    x: Tensor, M: Tensor | None, U: Covariance, A: Tensor, B: Tensor, damping: float = DAMPING
) -> Conditional:
    """Condition the layer on pseudo-inputs A [..., P, R] and pseudo-outputs B [..., P, C] [LW16, eq. 8 and 9].

    mean = x̂M + σ₁₂ᵀ Σ₁₁⁻¹ (B̃ − ÃM) = x'M + GᵀB̃ with Σ₁₁ = ÃUÃᵀ + σ²I and σ₁₂ = ÃUx̂ᵀ; ``M=None`` is the zero-mean layer.
    """
    gain = torch.cholesky_solve(U.gram(A, x), damped_root(U.gram(A), damping))  # [..., P, B]
    rest = x - gain.mT @ A
    return Conditional(_mean(rest, M) + gain.mT @ B, rest, gain, damping)


def sample_conditional(
    x: Tensor,
    M: Tensor | None,
    U: Covariance,
    V: Covariance,
    A: Tensor,
    B: Tensor,
    noise: Tensor,
    damping: float = DAMPING,
    *,
    joint: bool = False,
) -> Tensor:
    """Each row on its own given the pseudo-data, or all rows together; noise [..., B, C] [LW16, eq. 8]."""
    given = condition(x, M, U, A, B, damping)
    if joint:
        root = cholesky(given.row_covariance(U), name="conditional row covariance")
        return given.mean + _correlate(root @ noise, V)
    return given.mean + given.row_variance(x, U).sqrt().unsqueeze(-1) * _correlate(noise, V)


def fold_mean(M: Tensor | None, U: Covariance, A: Tensor, B: Tensor, damping: float = DAMPING) -> Tensor:
    """M_eff = M + UÃᵀ Σ₁₁⁻¹ (B̃ − ÃM), so that x̂ M_eff is the conditional mean for any x."""
    residual = B if M is None else B - A @ M
    correction = U.matmul(A.mT @ torch.cholesky_solve(residual, damped_root(U.gram(A), damping)))
    return correction if M is None else M + correction


def condition_weights(
    W: Tensor, U: Covariance, V: Covariance, A: Tensor, B: Tensor, noise: Tensor, damping: float = DAMPING
) -> Tensor:
    """Turn a draw W ~ MN(M, U, V) into a draw given the pseudo-data; noise [..., P, C].

    Matheron's rule: W + UÃᵀ Σ₁₁⁻¹ (B̃ − ÃW − σξ), ξ ~ MN(0, I, V), has exactly the conditional mean and covariance.
    One such W is one function, consistent across all inputs.
    """
    observed = B - math.sqrt(damping) * _correlate(noise, V)
    return fold_mean(W, U, A, observed, damping)
