"""A diagonal layer's draw on the compiled kernels, forwards and backwards.

With pseudo-inputs Ã, pseudo-outputs B̃, u = σ_r², Σ₁₁ = Ã diag(u) Ãᵀ + σ²I and σ₁₂ = Ã diag(u) x̂ᵀ [LW16, eq. 8] the draw
of :func:`vmg.nn.matrix_gaussian.sample_diagonal` is

    G  = Σ₁₁⁻¹ σ₁₂                     the gain, [P, B]
    x' = x̂ − GᵀÃ                       the part of the input that pseudo-data do not explain, [B, R]
    f  = x'M + GᵀB̃ + √s ∘ ε ∘ σ_c      the mean, x̂M + GᵀB̃ − GᵀÃM, and the noise
    s  = Σ_r u_r x'_r² + σ² Σ_p G_p²   which is σ₂₂ − σ₁₂ᵀ Σ₁₁⁻¹ σ₁₂ without its cancellation

so the pseudo-inputs never meet M, and the only R×C products are those of a deterministic layer: x'M here, gMᵀ and x'ᵀg
below. The gradient is as short. With g that of f, D = gMᵀ, and ṡ = Σ_c (g ∘ ε ∘ σ_c) / 2√s that of s,

    H    = (gB̃ᵀ − DÃᵀ) Σ₁₁⁻¹,  Q = HÃ                     [B, P], [B, R]
    ∂x̂   = D + u ∘ (Q + 2ṡ x')
    ∂Ã   = −G ∂x̂ + u ∘ (Hᵀx'),  ∂B̃ = Gg,  ∂M = x'ᵀg
    ∂log σ_r = 2u ∘ Σ_b x' ∘ (Q + ṡ x'),  ∂log σ_c = Σ_b g ∘ √s ∘ ε ∘ σ_c

and the Cholesky factor needs no gradient of its own. The zero-mean layer drops every term with M, and a layer without
pseudo-data every term with G.

The kernels take one call for all replicas, on as many threads as its work is worth; what the backward pass needs stays
in one workspace.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.library import LAYER, NOT_FINITE, NOT_POSITIVE
from vmg.math.linalg import NotPositiveDefiniteError, needs_double

__all__ = ["Inputs", "LayerPass", "make_plan"]

ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision
THREAD_WORK = 2**21  # multiply-adds that are worth one more thread


class Inputs(NamedTuple):
    """The tensors that a layer's draw depends on; all leading dimensions must be equal."""

    x: Tensor  # inputs [..., B, R], or [..., B, R−1] to have a one appended
    M: Tensor | None  # mean [..., R, C], None for the zero-mean layer
    log_row: Tensor  # log σ_r [..., R]
    log_column: Tensor  # log σ_c [..., C]
    points: Tensor | None  # mean pseudo-inputs and pseudo-outputs side by side [..., P, R+C]
    log_noise: Tensor | None  # log √α of pseudo-inputs and pseudo-outputs [..., 2], or dimensions' factors [..., R+C]
    log_point_noise: Tensor | None  # the points' factors [..., P]
    point_noise: Tensor | None  # standard normal [..., P, R+C], None to take the points as they are
    noise: Tensor  # standard normal [..., B, C]


class Plan(NamedTuple):
    """Sizes of a layer and where its arrays lie in the workspace."""

    sizes: tuple[int, int, int, int, int, int]  # n, B, I, R, C, P
    shapes: tuple[tuple[int, ...], ...]  # that the inputs must have
    most_threads: int
    factored: bool
    offsets: tuple[int, ...]  # of z, u, v, entry_scale, point_scale, outputs, gain, root, scale
    total: int


@functools.lru_cache(maxsize=256)
def make_plan(batch_shape: tuple[int, ...], B: int, I: int, R: int, C: int, P: int, factored: bool) -> Plan:  # noqa: E741
    """Lay out the workspace of a layer."""
    if R - I not in (0, 1):
        raise ValueError(f"x must have {R - 1} or {R} columns; got {I}")
    n = math.prod(batch_shape)
    trailing = ((B, I), (R, C), (R,), (C,), (P, R + C), (R + C if factored else 2,), (P,), (P, R + C), (B, C))
    shapes = tuple((*batch_shape, *shape) for shape in trailing)
    lengths = (n * (B + P) * R, n * R, n * C, n * (R + C), n * P, n * P * C, n * P * (B + P), n * P * P, n * B)
    offsets, total = [], 0
    for length in lengths:
        offsets.append(total)
        total += -(-length // ALIGNMENT) * ALIGNMENT
    work = n * B * (R * C + P * (R + C))
    return Plan((n, B, I, R, C, P), shapes, 1 + work // THREAD_WORK, factored, tuple(offsets), total)


class LayerPass:
    """One draw of a layer: :meth:`forward`, and then :meth:`backward`, with the workspace that both use.

    ``noises`` are those of the pseudo-points, or None, and of the outputs; their dtype is that of all tensors.
    """

    def __init__(self, plan: Plan, noises: Sequence[Tensor | None], damping: float) -> None:
        noise = noises[-1]
        assert noise is not None
        _, _, _, R, _, P = plan.sizes
        self.plan, self._dtype, self._numbers = plan, noise.dtype, (R**-0.5, damping)
        self._in_double = needs_double(P, R, noise.dtype)
        self._noises = self._usable(noises)
        own_dtype = torch.float64 if self._in_double else noise.dtype
        self._kernels: Any = library.kernels(own_dtype)
        self._workspace = torch.empty(plan.total, dtype=own_dtype)

    def _usable(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Tensors as the kernels take them: without gaps, and in double where single precision is too little."""
        if self._in_double:
            tensors = [None if t is None else t.double() for t in tensors]
        return library.packed(tensors)

    def _run(self, kernel: Any, inputs: Inputs, out: Tensor | None, g: Tensor | None, gradients: Any) -> int:
        """Call a kernel; its status."""
        plan = self.plan
        n, B, I, *_ = plan.sizes  # noqa: E741
        stride = 0 if n > 1 and inputs.x.stride(0) == 0 else B * I  # 0: one x for all replicas
        first, item = self._workspace.data_ptr(), self._workspace.element_size()
        places = [first + item * offset for offset in plan.offsets]
        before = [0 if t is None else t.data_ptr() for t in inputs]
        after = [0 if t is None else t.data_ptr() for t in (out, None, g, None, None, None, *gradients)]
        record = LAYER.pack(*plan.sizes, stride, plan.factored, *self._numbers, *before, *places, *after)
        status: int = kernel(record, min(plan.most_threads, torch.get_num_threads()))
        return status

    def forward(self, x: Tensor, parameters: Sequence[Tensor | None]) -> tuple[Tensor, bool]:
        """Outputs [..., B, C] at x, and whether all inputs were finite."""
        shapes, dtype = self.plan.shapes, self._workspace.dtype
        x = x.double() if self._in_double else x
        shared = self.plan.sizes[0] > 1 and not any(x.stride()[:-2]) and x.stride()[-2:] == (x.shape[-1], 1)
        x = x if shared else x.contiguous()  # shared: one matrix, expanded over all replicas
        inputs = Inputs._make((x, *self._usable(parameters), *self._noises))
        if shared:
            library.require(("x",), (x.flatten(0, -3)[0],), (shapes[0][-2:],), dtype)
        library.require(Inputs._fields[shared:], inputs[shared:], shapes[shared:], dtype)
        out = torch.empty(shapes[-1], dtype=dtype)
        status = self._run(self._kernels.forward, inputs, out, None, [None] * 7)
        if status & NOT_POSITIVE:
            raise NotPositiveDefiniteError(
                "Σ₁₁ = ÃUÃᵀ + σ²I is not finite, or not positive definite even with jitter; check the input for NaN or "
                "infinite values, lower the learning rate, raise the damping or use fewer pseudo-points"
            )
        return out.to(self._dtype) if self._in_double else out, not status & NOT_FINITE

    def backward(self, parameters: Sequence[Tensor | None], g: Tensor, *, needs_x: bool) -> list[Tensor | None]:
        """Gradients by x, or None, and by the parameters, from that by the outputs.

        The parameters are those of the forward pass; they may lie elsewhere by now, as those of FSDP2 do.
        """
        dtype, shapes = self._workspace.dtype, self.plan.shapes
        (g,) = self._usable([g])  # type: ignore[assignment]
        library.require(("g",), (g,), shapes[-1:], dtype)
        given = [g if needs_x else None, *parameters]
        gradients = [
            None if t is None else torch.empty(shape, dtype=dtype) for t, shape in zip(given, shapes, strict=False)
        ]
        inputs = Inputs._make((g, *self._usable(parameters), *self._noises))  # the kernels no longer read x
        library.require(Inputs._fields[1:], inputs[1:], shapes[1:], dtype)
        self._run(self._kernels.backward, inputs, None, g, gradients)
        return [None if t is None else t.to(self._dtype) for t in gradients] if self._in_double else gradients
