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

Small layers run as one call for all replicas. For large ones PyTorch does the matrix products, on all its threads, and
the kernels do what lies between. Both keep what the backward pass needs in one workspace.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.library import LAYER, NOT_FINITE, NOT_POSITIVE, require
from vmg.math.linalg import cholesky, needs_double

__all__ = ["Inputs", "LayerPass", "Plan", "make_plan"]

# Multiply-adds of a forward pass over all replicas below which one call wins: the kernels' own product runs on one
# thread, PyTorch's on all, but its thirty calls from Python cost as much. Measured on two cores, with and without
# replicas: equal at 2.5 million with two threads, at 3.5 million with one.
SMALL = 2_500_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision
MAX_KEPT_SCRATCH = 2**22  # entries; larger scratch memory is made anew for each pass, which takes long enough


class Inputs(NamedTuple):
    """The tensors that a layer's draw depends on; all leading dimensions must be equal."""

    x: Tensor  # inputs [..., B, R], or [..., B, R−1] to have a one appended
    M: Tensor | None  # mean [..., R, C], None for the zero-mean layer
    log_row: Tensor  # log σ_r [..., R]
    log_column: Tensor  # log σ_c [..., C]
    points: Tensor | None  # mean pseudo-inputs and pseudo-outputs side by side [..., P, R+C]
    log_noise: (
        Tensor | None
    )  # log √α of pseudo-inputs and pseudo-outputs [..., 2], or the dimensions' factors [..., R+C]
    log_point_noise: Tensor | None  # the points' factors [..., P]
    point_noise: Tensor | None  # standard normal [..., P, R+C], None to take the points as they are
    noise: Tensor  # standard normal [..., B, C]


class Plan(NamedTuple):
    """Sizes of a layer and where its arrays lie in the workspace."""

    sizes: tuple[int, int, int, int, int, int]  # n, B, I, R, C, P
    shapes: tuple[tuple[int, ...], ...]  # that the inputs must have
    batch: bool  # whether there are leading dimensions
    small: bool
    factored: bool
    offsets: tuple[int, ...]  # of z, u, v, entry_scale, point_scale, outputs, gain, root, scale
    total: int


@functools.lru_cache(maxsize=256)
def make_plan(batch_shape: tuple[int, ...], B: int, I: int, R: int, C: int, P: int, factored: bool) -> Plan:  # noqa: E741
    """Lay out the workspace of a layer."""
    n = math.prod(batch_shape)
    trailing = ((B, I), (R, C), (R,), (C,), (P, R + C), (R + C if factored else 2,), (P,), (P, R + C), (B, C))
    shapes = tuple((*batch_shape, *shape) for shape in trailing)
    lengths = (n * (B + P) * R, n * R, n * C, n * (R + C), n * P, n * P * C, n * P * (B + P), n * P * P, n * B)
    offsets, total = [], 0
    for length in lengths:
        offsets.append(total)
        total += -(-length // ALIGNMENT) * ALIGNMENT
    work = n * B * (R * C + P * (R + C))
    return Plan((n, B, I, R, C, P), shapes, bool(batch_shape), work < SMALL, factored, tuple(offsets), total)


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
        self._noises = self._usable(noises)
        own_dtype = torch.float64 if self._in_double else noise.dtype
        self._kernels: Any = library.kernels(own_dtype)
        self._workspace = workspace = torch.empty(plan.total, dtype=own_dtype)
        first, item = workspace.data_ptr(), workspace.element_size()
        self._places = [first + item * offset for offset in plan.offsets]
        if not plan.small:
            self._views = _Views(plan, workspace)

    def _usable(self, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Tensors as the kernels take them: without gaps, and in double where single precision is too little."""
        if self._in_double:
            return tuple([None if t is None else t.double().contiguous() for t in tensors])
        return tuple([t if t is None or t.is_contiguous() else t.contiguous() for t in tensors])

    def _record(self, inputs: Inputs, out: Tensor | None, scratch: Sequence[Tensor | None], gradients: Any) -> bytes:
        """The arguments of the kernels; ``scratch`` is AU, g, g_variance, factors and rows."""
        sizes = self.plan.sizes
        stride = 0 if sizes[0] > 1 and inputs.x.stride(0) == 0 else sizes[1] * sizes[2]  # 0: one x for all replicas
        before = [0 if t is None else t.data_ptr() for t in inputs]
        after = [0 if t is None else t.data_ptr() for t in (out, *scratch, *gradients)]
        return LAYER.pack(*sizes, stride, self.plan.factored, *self._numbers, *before, *self._places, *after)

    def forward(self, x: Tensor, parameters: Sequence[Tensor | None]) -> tuple[Tensor, bool]:
        """Outputs [..., B, C] at x, and whether all inputs were finite."""
        x = x.double() if self._in_double else x
        x = x if _is_shared(x) else x.contiguous()
        inputs = Inputs._make((x, *self._usable(parameters), *self._noises))
        self._require(inputs)
        out = torch.empty(self.plan.shapes[-1], dtype=self._workspace.dtype)
        finite = self._forward(inputs, out)
        return out.to(self._dtype) if self._in_double else out, finite

    def _forward(self, inputs: Inputs, out: Tensor) -> bool:
        kernels, plan = self._kernels, self.plan
        if plan.small:
            record = self._record(inputs, out, _NO_SCRATCH, _NO_GRADIENTS)
            status = kernels.forward(record)
            if status & NOT_POSITIVE:
                self._factorise_with_jitter()
                kernels.finish(record)
            return not status & NOT_FINITE
        views, AU = self._views, _SCRATCH.carve(plan, self._workspace.dtype).AU
        record = self._record(inputs, out, (AU, None, None, None, None), _NO_GRADIENTS)
        add_product = torch.baddbmm if plan.batch else torch.addmm
        M, flat, rows = views.as_matrices(inputs.M), views.as_matrices(out), views.rows
        status = kernels.prepare(record)
        if plan.sizes[-1]:
            add_product(views.kernel, AU, views.z_t, beta=0, out=views.kernel)
            if kernels.factorise(record) & NOT_POSITIVE:
                self._factorise_with_jitter()
            kernels.solve(record)
            add_product(rows, views.gain_t, views.A, alpha=-1, out=rows)
            add_product(flat, views.gain_t, views.B, beta=0, out=flat)
        if M is not None:
            add_product(flat, rows, M, beta=1 if plan.sizes[-1] else 0, out=flat)
        kernels.add_noise(record)
        return not status & NOT_FINITE

    def backward(self, parameters: Sequence[Tensor | None], g: Tensor, *, needs_x: bool) -> list[Tensor | None]:
        """Gradients by x, or None, and by the parameters, from that by the outputs.

        The parameters are those of the forward pass; they may lie elsewhere by now, as those of FSDP2 do.
        """
        dtype, shapes = self._workspace.dtype, self.plan.shapes
        (g,) = self._usable([g])  # type: ignore[assignment]
        require("g", g, shapes[-1], dtype)
        given = [g if needs_x else None, *parameters]
        gradients = [
            None if t is None else torch.empty(shape, dtype=dtype) for t, shape in zip(given, shapes, strict=False)
        ]
        inputs = Inputs._make((g, *self._usable(parameters), *self._noises))  # the kernels no longer read x
        self._require(inputs, but_x=True)
        self._backward(inputs, g, gradients)
        return [None if t is None else t.to(self._dtype) for t in gradients] if self._in_double else gradients

    def _backward(self, inputs: Inputs, g: Tensor, gradients: list[Tensor | None]) -> None:
        kernels, plan = self._kernels, self.plan
        if plan.small:
            kernels.backward(self._record(inputs, None, (None, g, None, None, None), gradients))
            return
        views, scratch = self._views, _SCRATCH.carve(plan, self._workspace.dtype)
        _, D, Q, E, factors, pair, g_variance = scratch
        record = self._record(inputs, None, (None, g, g_variance, factors, pair), gradients)
        _, B, _, _, C, P = plan.sizes
        add_product = torch.baddbmm if plan.batch else torch.addmm
        g, M, g_M, g_points = (views.as_matrices(t) for t in (g, inputs.M, gradients[1], gradients[4]))
        # An input layer needs D = gMᵀ only within gB̃ᵀ − DÃᵀ = g(B̃ − ÃM)ᵀ and GD = (Gg)Mᵀ, where with few pseudo-points
        # the right-hand sides are cheaper
        around_D = M is not None and gradients[0] is None and 2 * P * C < B * (C + P)
        kernels.backward_noise(record)
        if M is None:
            D.zero_()
        else:
            add_product(g_M, views.rows_t, g, beta=0, out=g_M)
            if around_D:
                D.zero_()
            else:
                add_product(D, g, M.mT, beta=0, out=D)
        if g_points is None:
            Q.zero_()
            kernels.backward_inputs(record)
            return
        g_A, g_B = g_points.split_with_sizes(plan.sizes[3:5], -1)
        A, outputs = views.A, views.B
        if around_D:
            outputs = add_product(outputs, A, M, alpha=-1)
        add_product(E, outputs, g.mT, beta=0, out=E)
        if M is not None and not around_D:
            add_product(E, A, D.mT, alpha=-1, out=E)
        kernels.backward_solve(record)
        add_product(Q, E.mT, A, beta=0, out=Q)
        kernels.backward_inputs(record)
        add_product(g_A, factors, pair, beta=0, out=g_A)
        add_product(g_B, views.gain, g, beta=0, out=g_B)
        if around_D:
            add_product(g_A, g_B, M.mT, alpha=-1, out=g_A)
        kernels.backward_points(record)

    def _require(self, inputs: Inputs, *, but_x: bool = False) -> None:
        """Refuse tensors that the kernels would misread: they see addresses and sizes."""
        dtype, skipped = self._workspace.dtype, int(but_x)
        if library.fit(inputs[skipped:], self.plan.shapes[skipped:], dtype):
            return
        for name, tensor, shape in zip(Inputs._fields, inputs, self.plan.shapes, strict=True):
            if tensor is None or (but_x and name == "x"):
                continue
            if name == "x" and len(shape) > 2 and _is_shared(tensor):  # one matrix for all replicas
                tensor, shape = tensor[(0,) * (len(shape) - 2)], shape[-2:]
            require(name, tensor, shape, dtype)

    def _factorise_with_jitter(self) -> None:
        """Factorise Σ₁₁, which is still in place without its damping, with jitter: the kernels found no factor."""
        _, B, _, _, _, P = self.plan.sizes
        *_, gain, root, _ = self.plan.offsets
        S = _view(self.plan, self._workspace, P, P, B + P, gain + B, P * (B + P)).clone()
        S.diagonal(dim1=-2, dim2=-1).add_(self._numbers[1])
        factor = cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I")
        _view(self.plan, self._workspace, P, P, P, root, P * P).copy_(factor.mT)


_NO_SCRATCH, _NO_GRADIENTS = (None,) * 5, (None,) * 7


def _is_shared(x: Tensor) -> bool:
    """Whether x is one contiguous matrix, expanded over all replicas."""
    strides = x.stride()
    return not any(strides[:-2]) and strides[-2:] == (x.shape[-1], 1)


def _view(plan: Plan, workspace: Tensor, rows: int, columns: int, stride: int, offset: int, size: int) -> Tensor:
    """A matrix inside the workspace, one for each replica."""
    if not plan.batch:
        return workspace.as_strided((rows, columns), (stride, 1), offset)
    return workspace.as_strided((plan.sizes[0], rows, columns), (size, stride, 1), offset)


class _Views:
    """The matrices inside a workspace that PyTorch multiplies."""

    def __init__(self, plan: Plan, workspace: Tensor) -> None:
        _, B, _, R, C, P = plan.sizes
        z, _, _, _, _, outputs, gain, _, _ = plan.offsets
        view = functools.partial(_view, plan, workspace)
        self._batch = plan.batch
        self.rows = view(B, R, R, z, (B + P) * R)  # x̂, then x'
        self.rows_t, self.z_t = self.rows.mT, view(B + P, R, R, z, (B + P) * R).mT
        self.A = view(P, R, R, z + B * R, (B + P) * R)
        self.B = view(P, C, C, outputs, P * C)
        self.kernel = view(P, B + P, B + P, gain, P * (B + P))  # Ãu[x̂, Ã]ᵀ, then the gain beside Σ₁₁
        self.gain = view(P, B, B + P, gain, P * (B + P))
        self.gain_t = self.gain.mT

    def as_matrices(self, tensor: Tensor | None) -> Any:
        """A tensor with one leading dimension at most, for the replicas; None where there is none."""
        return tensor.flatten(0, -3) if tensor is not None and self._batch else tensor


class _Scratch(NamedTuple):
    """Intermediate arrays of a pass through a large layer; nothing in them outlasts the pass."""

    AU: Tensor
    D: Tensor
    Q: Tensor
    E: Tensor
    factors: Tensor
    pair: Tensor  # D above Q
    g_variance: Tensor


class _ScratchMemory(threading.local):
    """Memory that the passes of a thread use in turn: making it anew would cost a large layer a tenth of its time."""

    def __init__(self) -> None:
        self._tensors: dict[torch.dtype, Tensor] = {}
        self._carved: dict[Any, _Scratch] = {}

    def carve(self, plan: Plan, dtype: torch.dtype) -> _Scratch:
        """The arrays of a layer; valid until the next call in this thread."""
        key = plan.sizes, plan.batch, dtype
        scratch = self._carved.get(key)
        if scratch is not None:
            return scratch
        n, B, _, R, _, P = plan.sizes
        size = n * max(P * R, B + 2 * B * P + 2 * B * R) + 3 * ALIGNMENT
        memory = self._tensors.get(dtype)
        if size > MAX_KEPT_SCRATCH:
            return _carve(plan, torch.empty(size, dtype=dtype))
        if memory is None or memory.numel() < size or len(self._carved) > 256:
            memory = self._tensors[dtype] = torch.empty(size, dtype=dtype)
            self._carved.clear()
        self._carved[key] = _carve(plan, memory)
        return self._carved[key]


_SCRATCH = _ScratchMemory()


def _carve(plan: Plan, memory: Tensor) -> _Scratch:
    n, B, _, R, _, P = plan.sizes
    lead = (n,) if plan.batch else ()
    arrays, start = [], 0
    for shape in ((n * B,), (*lead, P, 2 * B), (*lead, 2 * B, R)):
        length = math.prod(shape)
        arrays.append(memory[start : start + length].view(shape))
        start += -(-length // ALIGNMENT) * ALIGNMENT
    g_variance, factors, pair = arrays
    AU = memory[: n * P * R].view(*lead, P, R)
    return _Scratch(AU, pair[..., :B, :], pair[..., B:, :], factors[..., B:], factors, pair, g_variance)
