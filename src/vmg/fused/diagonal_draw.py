"""A draw from a diagonal layer as one differentiable operation with a hand-written gradient.

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
pseudo-data every term with G. :func:`vmg.math.preactivations.sample_conditional` is the plain version, equal in value
and gradient; the passes below run in PyTorch on any device, those of :mod:`vmg.fused.layer_passes` on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.fused.layer_passes import Backward, Forward, Inputs, is_shared, make_plan
from vmg.math.linalg import cholesky
from vmg.math.preactivations import DAMPING
from vmg.math.tracing import is_recorded

__all__ = ["needs_double", "sample_conditional_diagonal", "sample_diagonal"]


def needs_double(n_points: int, n_rows: int, dtype: torch.dtype) -> bool:
    """Whether single precision is too little for a layer of P pseudo-points and R rows: where P >= R.

    Σ₁₁ = ÃUÃᵀ + σ²I then has directions in which σ² alone is left. Single precision rounds ÃUÃᵀ by as much as 6 % of
    σ² = 1e-6, and the gain in these directions meets pseudo-outputs and gradients that are not small: values and
    gradients come out wrong by 2 to 50 %. A larger σ² would be another model, so such layers compute in double.
    """
    return n_points >= n_rows and dtype is torch.float32


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
    points = torch.cat([A, B], dim=-1)
    return sample_diagonal(x, M, log_row_scale, log_column_scale, points, noise=noise, input_scale=1.0, damping=damping)


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
    if needs_double(P, R, log_row_scale.dtype):
        drawn = sample_diagonal(
            x.double(),
            _double(M),
            log_row_scale.double(),
            log_column_scale.double(),
            _double(points),
            _double(log_noise),
            _double(log_point_noise),
            _double(point_noise),
            noise=noise.double(),
            input_scale=input_scale,
            damping=damping,
            check_finite=check_finite,
        )
        return drawn.to(log_row_scale.dtype)
    if is_recorded(x, log_row_scale):  # sizes may be symbols, and nothing is there for kernels to read
        recorded = (x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, point_noise, noise)
        return _forward(Inputs._make(recorded), input_scale, damping)[0]
    plan = make_plan(log_row_scale.shape[:-1], *x.shape[-2:], R, C, P, log_point_noise is not None)
    inputs = Inputs(x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, point_noise, noise)
    for name, tensor, shape in zip(Inputs._fields, inputs, plan.shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}")
    return _SampleDiagonal.apply(*inputs, plan, input_scale, damping, check_finite)


def _double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


class _SampleDiagonal(Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        inputs, (plan, input_scale, damping, check_finite) = Inputs(*arguments[:9]), arguments[9:]
        native = library.native(*inputs)
        if native is None:
            out, kept, finite = _forward(inputs, input_scale, damping)
        else:
            draw = Forward(native, plan, _packed(inputs), input_scale, damping)
            finite, out, kept = draw.run(), draw.out, (draw.workspace,)
        if check_finite and not finite and inputs.x.is_cpu and not torch.isfinite(inputs.x).all():
            raise ValueError("x must be finite; got NaN or infinite values")
        ctx.native, ctx.plan, ctx.input_scale, ctx.damping = native, plan, input_scale, damping
        ctx.save_for_backward(*inputs, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
        inputs, kept = Inputs(*saved[:9]), saved[9:]
        needs_x: bool = ctx.needs_input_grad[0]
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            gradients = _differentiable_backward(inputs, ctx.input_scale, ctx.damping, ctx.needs_input_grad, g)
        elif ctx.native is None:
            gradients = _backward(inputs, kept, ctx.input_scale, g)
        else:
            inputs = _packed(inputs)
            gradients = [
                torch.empty(inputs.x.shape, dtype=g.dtype) if needs_x else None,  # contiguous, even if x is expanded
                *(None if tensor is None else torch.empty_like(tensor) for tensor in inputs[1:7]),
            ]
            memory = inputs, kept[0], ctx.input_scale, ctx.damping, g.contiguous(), gradients
            Backward(ctx.native, ctx.plan, *memory).run()
        return (*gradients, *[None] * 6)


def _packed(inputs: Inputs) -> Inputs:
    """All contiguous, but for one matrix x that is expanded over all replicas, which needs no copies."""
    x = inputs.x if is_shared(inputs.x) else inputs.x.contiguous()
    return Inputs._make([x, *library.packed(inputs[1:])])


def _differentiable_backward(
    inputs: Inputs, input_scale: float, damping: float, needed: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """Gradients of the first seven inputs, through the graph of the plain version."""
    wanted = [t for t, need in zip(inputs[:7], needed, strict=False) if t is not None and need]
    out = _forward(inputs, input_scale, damping)[0]
    found = iter(torch.autograd.grad(out, wanted, g, create_graph=True, materialize_grads=True))
    return [next(found) if t is not None and need else None for t, need in zip(inputs[:7], needed, strict=False)]


def _entry_scale(inputs: Inputs) -> Tensor:
    """√α, broadcastable to the points."""
    assert inputs.log_noise is not None
    if inputs.log_point_noise is not None:
        return (inputs.log_point_noise.unsqueeze(-1) + inputs.log_noise.unsqueeze(-2)).exp()
    R, C = inputs.log_row.shape[-1], inputs.log_column.shape[-1]
    kinds = inputs.log_noise.exp().unsqueeze(-2).split(1, -1)
    return torch.cat([kind.expand(*kind.shape[:-1], n) for kind, n in zip(kinds, (R, C), strict=True)], dim=-1)


def _forward(inputs: Inputs, input_scale: float, damping: float) -> tuple[Tensor, tuple[Tensor | None, ...], bool]:
    """The draw, what the backward pass needs, and False: whether x is finite was not looked at."""
    x, R, M, points = inputs.x, inputs.log_row.shape[-1], inputs.M, inputs.points
    u, v = torch.exp(2 * inputs.log_row).unsqueeze(-2), inputs.log_column.exp().unsqueeze(-2)
    if x.shape[-1] < R:
        x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
    x = x * input_scale
    limits = torch.finfo(x.dtype)
    floor = ((x.square() @ u.mT) * (10 * limits.eps) + limits.tiny).detach()  # the rounding of σ₂₂, [..., B, 1]
    A = B = L = gain = change = None
    out = variance = x.new_zeros(())
    if points is not None:
        drawn = points
        if inputs.point_noise is not None:
            change = _entry_scale(inputs) * inputs.point_noise
            drawn = points * (1 + change)
        A, B = drawn[..., :R] * input_scale, drawn[..., R:]
        AU = A * u
        S = AU @ A.mT
        S.diagonal(dim1=-2, dim2=-1).add_(damping)
        L = cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I")
        gain = torch.cholesky_solve(AU @ x.mT, L)
        x = x - gain.mT @ A
        out = gain.mT @ B
        variance = damping * gain.square().sum(-2).unsqueeze(-1)
    variance = variance + x.square() @ u.mT  # [..., B, 1]
    free = variance > floor  # a variance at the floor passes no gradient
    scale = torch.maximum(variance, floor).sqrt()
    spread = inputs.noise * v
    if M is not None:
        out = out + x @ M
    return out + scale * spread, (x, u, A, B, L, gain, change, scale, free, spread), False


def _backward(inputs: Inputs, kept: tuple[Any, ...], input_scale: float, g: Tensor) -> list[Tensor | None]:
    """Gradients of the first seven inputs; the letters are those of the module's docstring."""
    x, u, A, B, L, gain, change, scale, free, spread = kept
    M, points, R = inputs.M, inputs.points, inputs.log_row.shape[-1]
    g_spread = g * spread
    g_variance = g_spread.sum(-1, keepdim=True) / (2 * scale) * free  # [..., B, 1]
    g_log_column = (scale * g_spread).sum(-2)
    g_M = None if M is None else x.mT @ g
    g_points = g_log_noise = g_log_point_noise = None

    g_x = x.new_zeros(()) if M is None else g @ M.mT  # D
    q = g_variance * x
    H = None
    if points is not None:
        H = torch.cholesky_solve(B @ g.mT - (0 if M is None else A @ g_x.mT), L).mT  # [..., B, P]
        q = q + H @ A
    g_log_row = 2 * u.squeeze(-2) * (x * q).sum(-2)
    g_x = g_x + u * (q + g_variance * x)
    if points is not None and H is not None:
        g_A = u * (H.mT @ x) - gain @ g_x
        g_points = torch.cat([g_A * input_scale, gain @ g], dim=-1)
        if change is not None:
            g_log = g_points * points * change
            g_points = g_points * (1 + change)
            if inputs.log_point_noise is not None:
                g_log_noise, g_log_point_noise = g_log.sum(-2), g_log.sum(-1)
            else:
                g_log_noise = torch.stack([g_log[..., :R].sum((-2, -1)), g_log[..., R:].sum((-2, -1))], dim=-1)
    g_x = (g_x * input_scale)[..., : inputs.x.shape[-1]]
    return [g_x, g_M, g_log_row, g_log_column, g_points, g_log_noise, g_log_point_noise]
