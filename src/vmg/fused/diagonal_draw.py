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
(:mod:`vmg.fused.layer_passes`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.fused.layer_passes import Backward, Forward, Inputs, is_shared, make_plan
from vmg.math.linalg import cholesky, is_recorded, may_look
from vmg.math.preactivations import DAMPING, multiplicative_noise

__all__ = ["draw", "needs_double", "sample_diagonal"]


def needs_double(n_points: int, n_rows: int, dtype: torch.dtype) -> bool:
    """Whether single precision is too little for a layer of P pseudo-points and R rows: where P >= R.

    Σ₁₁ = ÃUÃᵀ + σ²I then has directions in which σ² alone is left. Single precision rounds ÃUÃᵀ by as much as 6 % of
    σ² = 1e-6, and the gain in these directions meets pseudo-outputs and gradients that are not small: values and
    gradients come out wrong by 2 to 50 %. A larger σ² would be another model, so such layers compute in double.
    """
    return n_points >= n_rows and dtype is torch.float32


def sample_diagonal(
    x: Tensor,
    M: Tensor | None,
    log_row_scale: Tensor,
    log_column_scale: Tensor,
    points: Tensor | None,
    log_noise: Tensor | None = None,
    log_point_noise: Tensor | None = None,
    point_noise: Tensor | None = None,
    *,
    noise: Tensor,
    input_scale: float,
    damping: float = DAMPING,
    check_finite: bool = False,
) -> Tensor:
    """Draw each row, from the layer's raw quantities: augmentation, scaling and the noise of pseudo-data are inside.

    Args:
        x: inputs [..., B, R], or [..., B, R−1] to have a one appended.
        M: mean [..., R, C], or None for the zero-mean layer.
        log_row_scale, log_column_scale: log σ_r [..., R] and log σ_c [..., C].
        points: mean pseudo-inputs and pseudo-outputs side by side [..., P, R+C], or None.
        log_noise: log √α of pseudo-inputs and pseudo-outputs [..., 2]; or the dimensions' factors [..., R+C], if
            ``log_point_noise`` has the points' factors [..., P].
        point_noise: standard normal [..., P, R+C], or None to take the points as they are.
        noise: standard normal [..., B, C].
        input_scale: factor of [x, 1] and of the pseudo-inputs, 1/√R in a network [LW16, §4].
        damping: σ² of Σ₁₁.
        check_finite: refuse NaN and infinity in x, at no cost where there are none.

    All leading dimensions must be equal; nothing is broadcast.
    """
    if M is None and points is None:
        raise ValueError("M and points must not both be None: nothing would carry the mean")
    if (log_noise is None) != (point_noise is None) or (log_noise is None and log_point_noise is not None):
        raise ValueError("log_noise and point_noise must be given together, log_point_noise with them only")
    R, C = log_row_scale.shape[-1], log_column_scale.shape[-1]
    if R - x.shape[-1] not in (0, 1):
        raise ValueError(f"x must have {R - 1} or {R} columns; got {x.shape[-1]}")
    P = 0 if points is None else points.shape[-2]
    inputs = Inputs(x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, point_noise, noise)
    if needs_double(P, R, log_row_scale.dtype):
        *wide, wide_noise = [None if t is None else t.double() for t in inputs]
        options: dict[str, Any] = {"input_scale": input_scale, "damping": damping, "check_finite": check_finite}
        return sample_diagonal(*wide, noise=wide_noise, **options).to(log_row_scale.dtype)  # type: ignore[arg-type]
    if is_recorded(x, log_row_scale):  # sizes may be symbols, and nothing is there for kernels to read
        return draw(inputs, input_scale, damping)
    plan = make_plan(log_row_scale.shape[:-1], *x.shape[-2:], R, C, P, log_point_noise is not None)
    native = library.native(*inputs)
    if native is not None:
        return _CompiledDraw.apply(*inputs, native, plan, input_scale, damping, check_finite)
    for name, tensor, shape in zip(Inputs._fields, inputs, plan.shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}")
    if check_finite and may_look(x):
        _require_finite(x)
    return draw(inputs, input_scale, damping)


def _require_finite(x: Tensor) -> None:
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite; got NaN or infinite values")


class _CompiledDraw(Function):
    """:func:`draw` and its gradient on the kernels."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        inputs, (native, plan, input_scale, damping, check_finite) = Inputs(*arguments[:9]), arguments[9:]
        run = Forward(native, plan, _packed(inputs), input_scale, damping)
        if not run.run() and check_finite:
            _require_finite(inputs.x)
        ctx.native, ctx.plan, ctx.input_scale, ctx.damping = native, plan, input_scale, damping
        ctx.save_for_backward(*inputs, run.workspace)
        return run.out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *saved, workspace = ctx.saved_tensors  # once: checkpointing forgets them as they are read
        inputs, needed = Inputs(*saved), ctx.needs_input_grad
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            out = draw(inputs, ctx.input_scale, ctx.damping)
            wanted = [t for t, need in zip(saved, needed, strict=False) if need]
            found = iter(torch.autograd.grad(out, wanted, g, create_graph=True, materialize_grads=True))
            return tuple(next(found) if need else None for need in needed)
        inputs = _packed(inputs)
        gradients = [
            torch.empty(inputs.x.shape, dtype=g.dtype) if needed[0] else None,  # contiguous, even if x is expanded
            *(None if tensor is None else torch.empty_like(tensor) for tensor in inputs[1:7]),
        ]
        memory = inputs, workspace, ctx.input_scale, ctx.damping, g.contiguous(), gradients
        Backward(ctx.native, ctx.plan, *memory).run()
        return (*gradients, *[None] * 7)


def _packed(inputs: Inputs) -> Inputs:
    """All contiguous, but for one matrix x that is expanded over all replicas, which needs no copies."""
    x = inputs.x if is_shared(inputs.x) else inputs.x.contiguous()
    return Inputs._make([x, *library.packed(inputs[1:])])


def draw(inputs: Inputs, input_scale: float, damping: float) -> Tensor:
    """The draw in PyTorch, on any device and to any order of differentiation."""
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
