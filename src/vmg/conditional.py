"""The pseudo-data conditional of a diagonal layer as one differentiable operation with a hand-written gradient.

Data and pseudo-inputs are stacked, z = [x̂; Ã], so that one product zM serves both. The backward pass needs only
G⁺ = Σ₁₁⁻¹σ₁₂ and T⁺ = Σ₁₁⁻¹(B̃ − ÃM), which the forward pass already solved for; the Cholesky factor needs no
gradient of its own. :func:`vmg.functional.sample_conditional` is the plain version, equal in value and gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx, once_differentiable

from vmg.functional import DAMPING
from vmg.linalg import cholesky

__all__ = ["sample_conditional_diagonal"]


def sample_conditional_diagonal(
    x: Tensor,
    M: Tensor | None,
    log_row_scale: Tensor,
    log_column_scale: Tensor,
    A: Tensor,
    B: Tensor,
    noise: Tensor,
    damping: float = DAMPING,
) -> Tensor:
    """Draw each row given the pseudo-data, for diagonal U and V [LW16, eq. 8].

    Args:
        x: augmented inputs x̂ [..., B, R].
        M: mean [..., R, C], or None for the zero-mean layer, which never forms an R×C product.
        log_row_scale, log_column_scale: log σ_r [..., R] and log σ_c [..., C].
        A, B: augmented pseudo-inputs [..., P, R] and pseudo-outputs [..., P, C].
        noise: standard normal [..., B, C].
        damping: σ² of Σ₁₁.

    All leading dimensions must be equal; nothing is broadcast.
    """
    return _SampleConditionalDiagonal.apply(x, M, log_row_scale, log_column_scale, A, B, noise, damping)


class _SampleConditionalDiagonal(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        M: Tensor | None,
        log_row_scale: Tensor,
        log_column_scale: Tensor,
        A: Tensor,
        B: Tensor,
        noise: Tensor,
        damping: float,
    ) -> Tensor:
        n = x.shape[-2]
        z = torch.cat([x, A], dim=-2)  # [..., B+P, R]
        u = torch.exp(2 * log_row_scale).unsqueeze(-2)  # variances of the rows, [..., 1, R]
        AU = A * u
        F = z @ AU.mT  # [σ₁₂ᵀ; Σ₁₁], [..., B+P, P]
        F[..., n:, :].diagonal(dim1=-2, dim2=-1).add_(damping)
        L = cholesky(F[..., n:, :], name="Σ₁₁ = ÃUÃᵀ + σ²I")
        Gt = F[..., :n, :]  # [..., B, P]
        if M is None:
            residual = B
        else:
            zM = z @ M  # the one stacked product, [..., B+P, C]
            residual = B - zM[..., n:, :]
        solved = torch.cholesky_solve(torch.cat([Gt.mT, residual], dim=-1), L)  # [..., P, B+C]
        gain, weight = solved[..., :n], solved[..., n:]  # G⁺ [..., P, B] and T⁺ [..., P, C]

        out = Gt @ weight
        if M is not None:
            out += zM[..., :n, :]
        x2 = x.square()
        prior = (x2 @ u.mT).squeeze(-1)  # σ₂₂, [..., B]
        limits = torch.finfo(x.dtype)
        floor = prior * (10 * limits.eps) + limits.tiny
        variance = prior - (Gt * gain.mT).sum(-1)
        free = variance > floor  # a clamped variance passes no gradient
        scale = torch.maximum(variance, floor).sqrt().unsqueeze(-1)  # [..., B, 1]
        spread = noise * log_column_scale.exp().unsqueeze(-2)  # [..., B, C]
        torch.addcmul(out, scale, spread, out=out)

        ctx.n = n
        ctx.save_for_backward(z, M, u, AU, gain, weight, x2, scale, free, spread)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor | None, ...]:
        z, M, u, AU, gain, weight, x2, scale, free, spread = ctx.saved_tensors  # type: ignore[attr-defined]
        n: int = ctx.n  # type: ignore[attr-defined]
        needs_x, needs_M = ctx.needs_input_grad[0], ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        x, A = z[..., :n, :], z[..., n:, :]

        g_spread = g * spread  # [..., B, C]
        g_variance = g_spread.sum(-1, keepdim=True).div_(2 * scale).mul_(free.unsqueeze(-1))  # [..., B, 1]
        g_log_column = (scale.mT @ g_spread).squeeze(-2)  # [..., C]

        g_residual = gain @ g  # [..., P, C]; also the gradient of B̃
        g_cross = g @ weight.mT - 2 * g_variance * gain.mT  # of σ₁₂ᵀ, [..., B, P]
        g_sigma = (gain * g_variance.mT) @ gain.mT - g_residual @ weight.mT  # of Σ₁₁, [..., P, P]
        g_F = torch.cat([g_cross, g_sigma], dim=-2)  # [..., B+P, P]
        g_AU = g_F.mT @ z  # [..., P, R]

        first = 0 if needs_x else n  # the input layer has no use for the rows of x
        g_z = g_F[..., first:, :] @ AU
        g_M = None
        if M is not None:
            g_zM = torch.cat([g, -g_residual], dim=-2)  # [..., B+P, C]
            g_z += g_zM[..., first:, :] @ M.mT
            if needs_M:
                g_M = z.mT @ g_zM
        g_A = g_z[..., n - first :, :] + g_AU * u
        g_x = None
        if needs_x:
            g_x = g_z[..., :n, :] + (2 * g_variance) * (x * u)
        g_u = (g_AU * A).sum(-2) + (g_variance.mT @ x2).squeeze(-2)  # [..., R]
        g_log_row = 2 * u.squeeze(-2) * g_u
        return g_x, g_M, g_log_row, g_log_column, g_A, g_residual, None, None
