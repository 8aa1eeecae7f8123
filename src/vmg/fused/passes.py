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

Most layers run as one call for all replicas. For very large ones, or with many threads, PyTorch does the matrix
products, on all its threads, and the kernels do what lies between. Both keep what the backward pass needs in one
workspace.
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
from vmg.math.linalg import cholesky, needs_double

__all__ = ["Inputs", "LayerPass", "make_plan"]

# Multiply-adds of a forward pass over all replicas, times the threads of PyTorch, up to which one call wins: its
# products run on one thread, PyTorch's on all, but are slower and thirty calls from Python. On two cores one call took
# 0.60 of the time at 66 million with one thread.
SMALL = 160_000_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision


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
    lead: tuple[int, ...]  # (n,) where there are leading dimensions
    work: int  # multiply-adds of a forward pass
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
    return Plan((n, B, I, R, C, P), shapes, (n,) if batch_shape else (), work, factored, tuple(offsets), total)


class LayerPass:
    """One draw of a layer: :meth:`forward`, and then :meth:`backward`, with the workspace that both use.

    Args:
        plan: of the layer and its rows.
        noises: of the pseudo-points, or None, and of the outputs; their dtype is that of all tensors.
        input_scale, damping: as in :func:`vmg.nn.matrix_gaussian.sample_diagonal`.
    """

    def __init__(self, plan: Plan, noises: Sequence[Tensor | None], input_scale: float, damping: float) -> None:
        noise = noises[-1]
        assert noise is not None
        self.plan, self._dtype, self._numbers = plan, noise.dtype, (input_scale, damping)
        self._in_double = needs_double(plan.sizes[5], plan.sizes[3], noise.dtype)
        self._in_one_call = plan.work * torch.get_num_threads() < SMALL
        self._noises = self._usable(noises)
        own_dtype = torch.float64 if self._in_double else noise.dtype
        self._kernels: Any = library.kernels(own_dtype)
        self._workspace = workspace = torch.empty(plan.total, dtype=own_dtype)
        first, item = workspace.data_ptr(), workspace.element_size()
        self._places = [first + item * offset for offset in plan.offsets]

    def _usable(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Tensors as the kernels take them: without gaps, and in double where single precision is too little."""
        if self._in_double:
            tensors = [None if t is None else t.double() for t in tensors]
        return library.packed(tensors)

    def _record(self, inputs: Inputs, out: Tensor | None, scratch: Sequence[Tensor | None], gradients: Any) -> bytes:
        """The arguments of the kernels; ``scratch`` is AU, g, g_variance, factors and rows."""
        sizes = self.plan.sizes
        stride = 0 if sizes[0] > 1 and inputs.x.stride(0) == 0 else sizes[1] * sizes[2]  # 0: one x for all replicas
        before = [0 if t is None else t.data_ptr() for t in inputs]
        after = [0 if t is None else t.data_ptr() for t in (out, *scratch, *gradients)]
        return LAYER.pack(*sizes, stride, self.plan.factored, *self._numbers, *before, *self._places, *after)

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
        status = self._forward(inputs, out)
        return out.to(self._dtype) if self._in_double else out, not status & NOT_FINITE

    def _forward(self, inputs: Inputs, out: Tensor) -> int:
        kernels = self._kernels
        if self._in_one_call:
            record = self._record(inputs, out, _NO_SCRATCH, _NO_GRADIENTS)
            status = kernels.forward(record)
            if status & NOT_POSITIVE:
                self._factorise_with_jitter()
                kernels.finish(record)
            return status
        (_, B, _, R, _, P), (z, outputs, kernel, _) = self.plan.sizes, self._matrices()
        rows, A, gain, add_product = z[..., :B, :], z[..., B:, :], kernel[..., :B], self._add_product
        AU = torch.empty(*self.plan.lead, P, R, dtype=out.dtype)
        record = self._record(inputs, out, (AU, None, None, None, None), _NO_GRADIENTS)
        M, flat = self._as_matrices(inputs.M), self._as_matrices(out)
        status = kernels.prepare(record)
        if P:
            add_product(kernel, AU, z.mT, beta=0, out=kernel)  # Ãu[x̂, Ã]ᵀ, then the gain beside Σ₁₁
            if kernels.factorise(record) & NOT_POSITIVE:
                self._factorise_with_jitter()
            kernels.solve(record)
            add_product(rows, gain.mT, A, alpha=-1, out=rows)  # x̂, then x'
            add_product(flat, gain.mT, outputs, beta=0, out=flat)
        if M is not None:
            add_product(flat, rows, M, beta=1 if P else 0, out=flat)
        kernels.add_noise(record)
        return status

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
        if self._in_one_call:
            self._kernels.backward(self._record(inputs, None, (None, g, None, None, None), gradients))
        else:
            self._backward(inputs, g, gradients)
        return [None if t is None else t.to(self._dtype) for t in gradients] if self._in_double else gradients

    def _backward(self, inputs: Inputs, g: Tensor, gradients: list[Tensor | None]) -> None:
        """The gradients by way of PyTorch's products; ``backward`` of csrc/layer.hpp does the same."""
        n, B, _, R, C, P = self.plan.sizes
        lead, kernels = self.plan.lead, self._kernels
        z, outputs, kernel, _ = self._matrices()
        rows, A, gain, add_product = z[..., :B, :], z[..., B:, :], kernel[..., :B], self._add_product
        g_variance, factors, pair = (g.new_empty(s) for s in ((n * B,), (*lead, P, 2 * B), (*lead, 2 * B, R)))
        D, Q, E = pair[..., :B, :], pair[..., B:, :], factors[..., B:]
        record = self._record(inputs, None, (None, g, g_variance, factors, pair), gradients)
        g, M, g_M, g_points = (self._as_matrices(t) for t in (g, inputs.M, gradients[1], gradients[4]))
        kernels.backward_noise(record)
        if M is None:
            D.zero_()
        else:
            add_product(g_M, rows.mT, g, beta=0, out=g_M)
            add_product(D, g, M.mT, beta=0, out=D)
        if g_points is None:
            Q.zero_()
            kernels.backward_inputs(record)
            return
        g_A, g_B = g_points.split_with_sizes((R, C), -1)
        add_product(E, outputs, g.mT, beta=0, out=E)
        if M is not None:
            add_product(E, A, D.mT, alpha=-1, out=E)
        kernels.backward_solve(record)
        add_product(Q, E.mT, A, beta=0, out=Q)
        kernels.backward_inputs(record)
        add_product(g_A, factors, pair, beta=0, out=g_A)
        add_product(g_B, gain, g, beta=0, out=g_B)
        kernels.backward_points(record)

    @property
    def _add_product(self) -> Any:
        return torch.baddbmm if self.plan.lead else torch.addmm

    def _as_matrices(self, tensor: Tensor | None) -> Any:
        """A tensor with one leading dimension at most, for the replicas; None where there is none."""
        return tensor.flatten(0, -3) if tensor is not None and self.plan.lead else tensor

    def _matrices(self) -> list[Tensor]:
        """The arrays z = [x̂; Ã], B̃, [gain, Σ₁₁] and root of the workspace, one matrix for each replica."""
        n, B, _, R, C, P = self.plan.sizes
        pieces = []
        for place, rows, columns in ((0, B + P, R), (5, P, C), (6, P, B + P), (7, P, P)):
            start = self.plan.offsets[place]
            pieces.append(self._workspace[start : start + n * rows * columns].view(*self.plan.lead, rows, columns))
        return pieces

    def _factorise_with_jitter(self) -> None:
        """Factorise Σ₁₁, which is still in place without its damping, with jitter: the kernels found no factor."""
        _, _, kernel, root = self._matrices()
        S = kernel[..., self.plan.sizes[1] :].clone()
        S.diagonal(dim1=-2, dim2=-1).add_(self._numbers[1])
        root.copy_(cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I").mT)


_NO_SCRATCH, _NO_GRADIENTS = (None,) * 5, (None,) * 7
