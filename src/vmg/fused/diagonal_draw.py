"""A draw from a diagonal layer, with the gradient that the compiled kernels take.

With pseudo-inputs Ã, pseudo-outputs B̃, u = σ_r², Σ₁₁ = Ã diag(u) Ãᵀ + σ²I and σ₁₂ = Ã diag(u) x̂ᵀ [LW16, eq. 8]:

    G  = Σ₁₁⁻¹ σ₁₂                     the gain, [P, B]
    x' = x̂ − GᵀÃ                       what of the input the pseudo-data do not explain, [B, R]
    f  = x'M + GᵀB̃ + √s ∘ ε ∘ σ_c      the mean, x̂M + GᵀB̃ − GᵀÃM, and the noise
    s  = Σ_r u_r x'_r² + σ² Σ_p G_p²   which is σ₂₂ − σ₁₂ᵀ Σ₁₁⁻¹ σ₁₂ without its cancellation

so the pseudo-inputs never meet M, and the only R×C products are those of a deterministic layer: x'M here, gMᵀ and x'ᵀg
below. The gradient is as short. With g that of f, D = gMᵀ, and ṡ = Σ_c (g ∘ ε ∘ σ_c) / 2√s that of s,

    H    = (gB̃ᵀ − DÃᵀ) Σ₁₁⁻¹,  Q = HÃ                     [B, P], [B, R]
    ∂x̂   = D + u ∘ (Q + 2ṡ x')
    ∂Ã   = −G ∂x̂ + u ∘ (Hᵀx'),  ∂B̃ = Gg,  ∂M = x'ᵀg
    ∂log σ_r = 2u ∘ Σ_b x' ∘ (Q + ṡ x'),  ∂log σ_c = Σ_b g ∘ √s ∘ ε ∘ σ_c

and the Cholesky factor needs no gradient of its own. The zero-mean layer drops every term with M, and a layer without
pseudo-data every term with G. :func:`vmg.math.preactivations.sample_conditional` states the same for any covariances.

:func:`draw` is the first half in PyTorch, whose gradient is autograd's. On the CPU the kernels take both halves
(:mod:`vmg.fused.layer_passes`, and :mod:`vmg.fused.stack` for layers one after the other).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vmg.fused.layer_passes import Inputs
from vmg.math.linalg import cholesky
from vmg.math.preactivations import multiplicative_noise

__all__ = ["draw", "needs_double"]


def needs_double(n_points: int, n_rows: int, dtype: torch.dtype) -> bool:
    """Whether single precision is too little for a layer of P pseudo-points and R rows: where P >= R.

    Σ₁₁ = ÃUÃᵀ + σ²I then has directions in which σ² alone is left. Single precision rounds ÃUÃᵀ by as much as 6 % of
    σ² = 1e-6, and the gain in these directions meets pseudo-outputs and gradients that are not small: values and
    gradients come out wrong by 2 to 50 %. A larger σ² would be another model, so such layers compute in double.
    """
    return n_points >= n_rows and dtype is torch.float32


def draw(inputs: Inputs, input_scale: float, damping: float) -> Tensor:
    """The draw in PyTorch, on any device and to any order of differentiation, in double where single is too little."""
    points, log_row = inputs.points, inputs.log_row
    if points is not None and needs_double(points.shape[-2], log_row.shape[-1], log_row.dtype):
        wide = Inputs._make([None if t is None else t.double() for t in inputs])
        return draw(wide, input_scale, damping).to(log_row.dtype)
    x, M, log_row, log_column, points, _, _, point_noise, noise = inputs
    R = log_row.shape[-1]
    u, v = torch.exp(2 * log_row).unsqueeze(-2), log_column.exp().unsqueeze(-2)
    if x.shape[-1] < R:
        x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
    x = x * input_scale
    limits = torch.finfo(x.dtype)
    floor = ((x.square() @ u.mT) * (10 * limits.eps) + limits.tiny).detach()  # the rounding of σ₂₂, [..., B, 1]
    out: Tensor | float = 0.0
    variance: Tensor | float = 0.0
    if points is not None:
        drawn = points if point_noise is None else multiplicative_noise(points, _entry_scale(inputs), point_noise)
        A, B = drawn[..., :R] * input_scale, drawn[..., R:]
        AU = A * u
        S = AU @ A.mT
        S.diagonal(dim1=-2, dim2=-1).add_(damping)
        gain = torch.cholesky_solve(AU @ x.mT, cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I"))  # G
        x = x - gain.mT @ A  # x'
        out = gain.mT @ B
        variance = damping * gain.square().sum(-2).unsqueeze(-1)
    variance = variance + x.square() @ u.mT  # s, [..., B, 1]
    scale = torch.maximum(variance, floor).sqrt()  # a variance at the floor passes no gradient
    return out + (0.0 if M is None else x @ M) + scale * (noise * v)


def _entry_scale(inputs: Inputs) -> Tensor:
    """√α, broadcastable to the points."""
    assert inputs.log_noise is not None
    if inputs.log_point_noise is not None:
        return (inputs.log_point_noise.unsqueeze(-1) + inputs.log_noise.unsqueeze(-2)).exp()
    R, C = inputs.log_row.shape[-1], inputs.log_column.shape[-1]
    kinds = inputs.log_noise.exp().unsqueeze(-2).split(1, -1)
    return torch.cat([kind.expand(*kind.shape[:-1], n) for kind, n in zip(kinds, (R, C), strict=True)], dim=-1)
