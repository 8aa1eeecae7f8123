"""A diagonal layer's passes on the compiled kernels: the formulas of :mod:`vmg.fused.diagonal_draw`.

Small layers run as one call for all replicas; for large ones PyTorch does the matrix products, on all its threads, and
the kernels do what lies between. Both keep what the backward pass needs in one workspace.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.fused.library import LAYER, NOT_FINITE, NOT_POSITIVE, address, require
from vmg.math.linalg import cholesky

__all__ = ["Backward", "Forward", "Inputs", "Plan", "is_shared", "make_plan", "scratch_size"]

# Multiply-adds of a forward pass over all replicas below which one call wins: the kernels' own product runs on one
# thread, PyTorch's on all, but its thirty calls from Python cost as much. Measured on two cores, with and without
# replicas: equal at 2.5 million with two threads, at 3.5 million with one.
SMALL = 2_500_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision


class Inputs(NamedTuple):
    """The tensors a layer's draw depends on, as documented in :func:`vmg.fused.diagonal_draw.sample_diagonal`."""

    x: Tensor
    M: Tensor | None
    log_row: Tensor
    log_column: Tensor
    points: Tensor | None
    log_noise: Tensor | None
    log_point_noise: Tensor | None
    point_noise: Tensor | None
    noise: Tensor


class Plan(NamedTuple):
    """Sizes of a layer and where its arrays lie in the workspace."""

    sizes: tuple[int, int, int, int, int, int]  # n, B, I, R, C, P
    shapes: tuple[tuple[int, ...], ...]  # that the inputs must have
    batch: bool  # whether there are leading dimensions
    small: bool
    offsets: tuple[int, ...]  # of z, u, v, entry_scale, point_scale, outputs, gain, root, scale
    total: int

    def view(self, workspace: Tensor, which: int, rows: int, columns: int, stride: int, start: int = 0) -> Tensor:
        """A matrix (for each replica) inside array number ``which``, from its entry ``start`` on."""
        n, B, _, R, _, P = self.sizes
        offset = self.offsets[which] + start
        if not self.batch:
            return workspace.as_strided((rows, columns), (stride, 1), offset)
        sizes = {_Z: (B + P) * R, _OUTPUTS: P * stride, _GAIN: P * (B + P), _ROOT: P * P}
        return workspace.as_strided((n, rows, columns), (sizes[which], stride, 1), offset)


_Z, _OUTPUTS, _GAIN, _ROOT = 0, 5, 6, 7  # numbers of the arrays that PyTorch multiplies


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
    return Plan((n, B, I, R, C, P), shapes, bool(batch_shape), work < SMALL, tuple(offsets), total)


def scratch_size(plan: Plan) -> int:
    """Entries of the memory that a large layer's passes need while they run."""
    n, B, _, R, _, P = plan.sizes
    return 0 if plan.small else n * max(P * R, B + 2 * B * P + 2 * B * R) + 3 * ALIGNMENT


def _carve(like: Tensor, scratch: Tensor | None, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Arrays one after the other in ``scratch``, or in memory of their own."""
    if scratch is None:
        return [like.new_empty(shape) for shape in shapes]
    arrays, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        arrays.append(scratch[start : start + size].view(shape))
        start += -(-size // ALIGNMENT) * ALIGNMENT
    return arrays


def _record(
    plan: Plan,
    inputs: Inputs,
    input_scale: float,
    damping: float,
    workspace: Tensor,
    out: Tensor | None,
    scratch: Sequence[Tensor | None] = (None,) * 5,
    gradients: Sequence[Tensor | None] = (None,) * 7,
) -> bytes:
    """The arguments of the kernels; ``scratch`` is AU, g, g_variance, factors and rows."""
    base, item = workspace.data_ptr(), workspace.element_size()
    shared = plan.sizes[0] > 1 and inputs.x.stride(0) == 0  # one x for all replicas
    return LAYER.pack(
        *plan.sizes,
        0 if shared else plan.sizes[1] * plan.sizes[2],
        inputs.log_point_noise is not None,
        input_scale,
        damping,
        *[address(tensor) for tensor in inputs],
        *[base + item * offset for offset in plan.offsets],
        *[address(tensor) for tensor in (out, *scratch, *gradients)],
    )


def _require(plan: Plan, inputs: Inputs) -> None:
    """Refuse what the kernels would misread: they see addresses and sizes."""
    dtype = inputs.log_row.dtype
    for name, tensor, shape in zip(Inputs._fields, inputs, plan.shapes, strict=True):
        if tensor is None:
            continue
        if name == "x" and len(shape) > 2 and is_shared(tensor):  # one matrix for all replicas
            tensor, shape = tensor[(0,) * (len(shape) - 2)], shape[-2:]
        require(name, tensor, shape, dtype)


def is_shared(x: Tensor) -> bool:
    """Whether x is one contiguous matrix, expanded over all replicas."""
    strides = x.stride()
    return not any(strides[:-2]) and strides[-2:] == (x.shape[-1], 1)


class Forward:
    """The draw of a layer, bound to memory: each :meth:`run` reads the inputs where they are and rewrites ``out``.

    ``scratch`` is memory that layers share, see :func:`scratch_size`; nothing in it outlasts a run.
    """

    def __init__(
        self,
        kernels: SimpleNamespace,
        plan: Plan,
        inputs: Inputs,
        input_scale: float,
        damping: float,
        scratch: Tensor | None = None,
    ) -> None:
        n, B, _, R, C, P = plan.sizes
        lead = (n,) if plan.batch else ()
        _require(plan, inputs)
        self._kernels, self._plan, self._damping = kernels, plan, damping
        self._inputs = inputs  # the record has addresses only
        self.workspace = inputs.x.new_empty(plan.total)
        self.out = torch.empty_like(inputs.noise)
        AU = None if plan.small else _carve(inputs.x, scratch, [(*lead, P, R)])[0]
        arrays = (AU, None, None, None, None)
        self._record = _record(plan, inputs, input_scale, damping, self.workspace, self.out, arrays)
        if AU is None:
            return
        self._AU = AU
        self._M = None if inputs.M is None else inputs.M.view(*lead, R, C)
        self._flat = self.out.view(*lead, B, C)
        self._rows = plan.view(self.workspace, _Z, B, R, R)  # x̂, then x'
        self._z_t = plan.view(self.workspace, _Z, B + P, R, R).mT
        self._A = plan.view(self.workspace, _Z, P, R, R, B * R)
        self._kernel = plan.view(self.workspace, _GAIN, P, B + P, B + P)  # Ãu[x̂, Ã]ᵀ, then the gain beside Σ₁₁
        self._gain_t = plan.view(self.workspace, _GAIN, P, B, B + P).mT
        self._B = plan.view(self.workspace, _OUTPUTS, P, C, C)

    def run(self) -> bool:
        """Draw; say whether all inputs were finite."""
        kernels, record = self._kernels, self._record
        if self._plan.small:
            status = kernels.forward(record)
            if status & NOT_POSITIVE:
                _factorise_with_jitter(self._plan, self.workspace, self._damping)
                kernels.finish(record)
            return not status & NOT_FINITE

        P, rows, flat = self._plan.sizes[-1], self._rows, self._flat
        add_product = torch.baddbmm if self._plan.batch else torch.addmm
        status = kernels.prepare(record)
        if P:
            add_product(self._kernel, self._AU, self._z_t, beta=0, out=self._kernel)
            if kernels.factorise(record) & NOT_POSITIVE:
                _factorise_with_jitter(self._plan, self.workspace, self._damping)
            kernels.solve(record)
            add_product(rows, self._gain_t, self._A, alpha=-1, out=rows)
            add_product(flat, self._gain_t, self._B, beta=0, out=flat)
        if self._M is not None:
            add_product(flat, rows, self._M, beta=1 if P else 0, out=flat)
        kernels.add_noise(record)
        return not status & NOT_FINITE


def _factorise_with_jitter(plan: Plan, workspace: Tensor, damping: float) -> None:
    """The kernels found a pivot that is not positive; Σ₁₁ is still there, so do it again the careful way."""
    _, B, _, _, _, P = plan.sizes
    S = plan.view(workspace, _GAIN, P, P, B + P, B).clone()
    S.diagonal(dim1=-2, dim2=-1).add_(damping)
    plan.view(workspace, _ROOT, P, P, P).copy_(cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I").mT)


class Backward:
    """The gradients of a layer, bound to memory: each :meth:`run` reads ``g`` and rewrites ``gradients``.

    ``inputs`` and ``workspace`` are those of a :class:`Forward`, which has checked them. ``gradients`` are those of the
    first seven inputs; the first is None where x needs none. A large layer can add to
    what stands in the gradient of M (``add_to_M``) at no cost. ``scratch`` as in :class:`Forward`.
    """

    def __init__(
        self,
        kernels: SimpleNamespace,
        plan: Plan,
        inputs: Inputs,
        workspace: Tensor,
        input_scale: float,
        damping: float,
        g: Tensor,
        gradients: Sequence[Tensor | None],
        *,
        add_to_M: bool = False,
        scratch: Tensor | None = None,
    ) -> None:
        n, B, _, R, C, P = plan.sizes
        lead = (n,) if plan.batch else ()
        if add_to_M and plan.small:
            raise ValueError("add_to_M needs a large layer; got a small one, whose kernel overwrites")
        for name, gradient, shape in zip(Inputs._fields, gradients, plan.shapes, strict=False):
            if gradient is not None:
                require(f"the gradient of {name}", gradient, shape, inputs.log_row.dtype)
        require("g", g, plan.shapes[-1], inputs.log_row.dtype)
        require("the workspace", workspace, (plan.total,), inputs.log_row.dtype)
        self._kernels, self._plan, self._keep_M = kernels, plan, int(add_to_M)
        self._memory = inputs, workspace, gradients  # the record has addresses only
        arrays: list[Tensor | None] = [None, g, None, None, None]
        if not plan.small:
            shapes = [(n * B,), (*lead, P, 2 * B), (*lead, 2 * B, R)]
            g_variance, self._factors, self._rows = _carve(g, scratch, shapes)
            arrays[2:] = g_variance, self._factors, self._rows
        self._arrays = arrays
        self._record = _record(plan, inputs, input_scale, damping, workspace, None, arrays, gradients)
        if plan.small:
            return
        g_x, g_M, _, _, g_points, _, _ = gradients
        self._g = g.view(*lead, B, C)
        self._M = None if inputs.M is None else inputs.M.view(*lead, R, C)
        self._g_M = None if g_M is None else g_M.view(*lead, R, C)
        self._D, self._Q = self._rows[..., :B, :], self._rows[..., B:, :]
        self._residual_t = plan.view(workspace, _Z, B, R, R).mT  # x'
        # An input layer needs D = gMᵀ only within gB̃ᵀ − DÃᵀ = g(B̃ − ÃM)ᵀ and GD = (Gg)Mᵀ, where with few pseudo-points
        # the right-hand sides are cheaper
        self._around_D = inputs.M is not None and g_x is None and 2 * P * C < B * (C + P)
        self._A = plan.view(workspace, _Z, P, R, R, B * R)
        self._B = plan.view(workspace, _OUTPUTS, P, C, C)
        self._gain = plan.view(workspace, _GAIN, P, B, B + P)
        self._E = self._factors[..., B:]
        self._g_A = self._g_B = None
        if g_points is not None:
            flat = g_points.view(*lead, P, R + C)
            self._g_A, self._g_B = flat[..., :R], flat[..., R:]

    def run(self) -> None:
        """Compute the gradients."""
        kernels, record = self._kernels, self._record
        if self._plan.small:
            kernels.backward(record)
            return
        add_product = torch.baddbmm if self._plan.batch else torch.addmm
        g, M, D, Q, around_D = self._g, self._M, self._D, self._Q, self._around_D
        kernels.backward_noise(record)
        if M is None or self._g_M is None:
            D.zero_()
        else:
            add_product(self._g_M, self._residual_t, g, beta=self._keep_M, out=self._g_M)
            if around_D:
                D.zero_()
            else:
                add_product(D, g, M.mT, beta=0, out=D)
        if self._g_A is None or self._g_B is None:
            Q.zero_()
            kernels.backward_inputs(record)
            return
        A, E, outputs = self._A, self._E, self._B
        if M is not None and around_D:
            outputs = add_product(outputs, A, M, alpha=-1)
        add_product(E, outputs, g.mT, beta=0, out=E)
        if M is not None and not around_D:
            add_product(E, A, D.mT, alpha=-1, out=E)
        kernels.backward_solve(record)
        add_product(Q, E.mT, A, beta=0, out=Q)
        kernels.backward_inputs(record)
        add_product(self._g_A, self._factors, self._rows, beta=0, out=self._g_A)
        add_product(self._g_B, self._gain, g, beta=0, out=self._g_B)
        if M is not None and around_D:
            add_product(self._g_A, self._g_B, M.mT, alpha=-1, out=self._g_A)
        kernels.backward_points(record)
