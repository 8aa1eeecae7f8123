"""A diagonal layer's passes on the compiled kernels: the formulas of :mod:`vmg.fused.diagonal_draw`.

Small layers run as one call for all replicas; for large ones PyTorch does the matrix products, on all its threads, and
the kernels do what lies between. Both keep what the backward pass needs in one workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.fused.library import LAYER, NOT_FINITE, NOT_POSITIVE, require
from vmg.fused.pass_memory import PassMemory, Plan
from vmg.math.linalg import cholesky

__all__ = ["Backward", "Forward", "Inputs", "Operands", "bind_operands", "fits", "is_shared"]


class Inputs(NamedTuple):
    """The tensors a layer's draw depends on, as documented in :func:`vmg.fused.stack.sample_diagonal`."""

    x: Tensor
    M: Tensor | None
    log_row: Tensor
    log_column: Tensor
    points: Tensor | None
    log_noise: Tensor | None
    log_point_noise: Tensor | None
    point_noise: Tensor | None
    noise: Tensor


class Operands(NamedTuple):
    """A layer's inputs and workspace, and their addresses, with which all its records begin."""

    kernels: SimpleNamespace
    memory: PassMemory
    inputs: Inputs
    damping: float
    addresses: tuple[float, ...]

    def record(
        self,
        out: Tensor | None,
        scratch: Sequence[Tensor | None] = (None,) * 5,
        gradients: Sequence[Tensor | None] = (None,) * 7,
    ) -> bytes:
        """The arguments of the kernels; ``scratch`` is AU, g, g_variance, factors and rows."""
        return LAYER.pack(*self.addresses, *[0 if t is None else t.data_ptr() for t in (out, *scratch, *gradients)])

    def at(self, x: Tensor) -> Operands:
        """The same layer at other rows of the same kind."""
        addresses = list(self.addresses)
        addresses[_X_STRIDE], addresses[_X] = _stride(self.memory.plan, x), x.data_ptr()
        return self._replace(addresses=tuple(addresses))


_X_STRIDE, _X = LAYER.names.index("x_stride"), LAYER.names.index("x")


def _stride(plan: Plan, x: Tensor) -> int:
    """Entries of x from one replica to the next: 0 where all share one x."""
    n, B, I, *_ = plan.sizes  # noqa: E741
    return 0 if n > 1 and x.stride(0) == 0 else B * I


def bind_operands(
    kernels: SimpleNamespace,
    memory: PassMemory,
    inputs: Inputs,
    input_scale: float,
    damping: float,
    *,
    checked: bool = False,
) -> Operands:
    """Take the addresses of a layer's inputs; ``checked`` says that these are known to fit (:func:`fits`)."""
    if not checked:
        _require(memory.plan, inputs)
    addresses = (
        *memory.plan.sizes,
        _stride(memory.plan, inputs.x),
        inputs.log_point_noise is not None,
        input_scale,
        damping,
        *[0 if t is None else t.data_ptr() for t in inputs],
        *memory.addresses,
    )
    return Operands(kernels, memory, inputs, damping, addresses)


def fits(plan: Plan, tensors: Sequence[Tensor | None], dtype: torch.dtype) -> bool:
    """Whether the kernels can take the last of a layer's inputs as they are: all of :class:`Inputs`, or all but x."""
    for tensor, shape in zip(reversed(tensors), reversed(plan.shapes), strict=False):
        if tensor is not None and not (
            tensor.dtype is dtype and tensor.is_cpu and tensor.is_contiguous() and tensor.shape == shape
        ):
            return False
    return True


def _require(plan: Plan, inputs: Inputs) -> None:
    """Refuse what the kernels would misread: they see addresses and sizes."""
    dtype = inputs.log_row.dtype
    if fits(plan, inputs, dtype):
        return
    for name, tensor, shape in zip(Inputs._fields, inputs, plan.shapes, strict=True):
        if tensor is None:
            continue
        if name == "x" and len(shape) > 2 and is_shared(tensor):  # one matrix for all replicas
            tensor, shape = tensor[(0,) * (len(shape) - 2)], shape[-2:]
        require(name, tensor, shape, dtype)


def _require_gradients(memory: PassMemory, dtype: torch.dtype, g: Tensor, gradients: Sequence[Tensor | None]) -> None:
    shapes = memory.plan.shapes
    for name, gradient, shape in zip(Inputs._fields, gradients, shapes, strict=False):
        if gradient is not None:
            require(f"the gradient of {name}", gradient, shape, dtype)
    require("g", g, shapes[-1], dtype)
    require("the workspace", memory.workspace, (memory.plan.total,), dtype)


def is_shared(x: Tensor) -> bool:
    """Whether x is one contiguous matrix, expanded over all replicas."""
    strides = x.stride()
    return not any(strides[:-2]) and strides[-2:] == (x.shape[-1], 1)


class Forward:
    """The draw of a layer, bound to memory: each :meth:`run` reads the operands where they are and rewrites ``out``."""

    def __init__(self, operands: Operands, out: Tensor | None = None) -> None:
        memory, inputs = operands.memory, operands.inputs
        self.out = torch.empty_like(inputs.noise) if out is None else out
        self._operands = operands
        self._AU = None if memory.plan.small else memory.carve_scratch().AU
        self._x = 0, 0  # where it is, and how far one replica's is from the next
        if self._AU is not None:
            self._M, self._flat = memory.as_matrices(inputs.M), memory.as_matrices(self.out)

    def run(self, x: Tensor) -> bool:
        """Draw at x, rows of the same kind as those bound; say whether all inputs were finite."""
        kernels, memory, _, damping, _ = self._operands
        place = x.data_ptr(), x.stride(0)
        if place != self._x:
            self._x, self._record = place, self._operands.at(x).record(self.out, (self._AU, None, None, None, None))
        record = self._record
        plan, AU = memory.plan, self._AU
        if AU is None:
            status = kernels.forward(record)
            if status & NOT_POSITIVE:
                _factorise_with_jitter(memory, damping)
                kernels.finish(record)
            return not status & NOT_FINITE

        add_product = torch.baddbmm if plan.batch else torch.addmm
        P, M, rows, flat = plan.sizes[-1], self._M, memory.rows, self._flat
        status = kernels.prepare(record)
        if P:
            add_product(memory.kernel, AU, memory.z_t, beta=0, out=memory.kernel)
            if kernels.factorise(record) & NOT_POSITIVE:
                _factorise_with_jitter(memory, damping)
            kernels.solve(record)
            add_product(rows, memory.gain_t, memory.A, alpha=-1, out=rows)
            add_product(flat, memory.gain_t, memory.B, beta=0, out=flat)
        if M is not None:
            add_product(flat, rows, M, beta=1 if P else 0, out=flat)
        kernels.add_noise(record)
        return not status & NOT_FINITE


def _factorise_with_jitter(memory: PassMemory, damping: float) -> None:
    """The kernels found a pivot that is not positive; Σ₁₁ is still there, so do it again the careful way."""
    S = memory.covariance().clone()
    S.diagonal(dim1=-2, dim2=-1).add_(damping)
    memory.root().copy_(cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I").mT)


class Backward:
    """The gradients of a layer, bound to memory: each :meth:`run` reads ``g`` and rewrites ``gradients``.

    The operands are those of a :class:`Forward`. ``gradients`` are those of the first seven inputs; the first is None
    where x needs none. ``checked`` says that the gradients were made to fit, and ``g`` too.
    """

    def __init__(
        self, operands: Operands, g: Tensor, gradients: Sequence[Tensor | None], *, checked: bool = False
    ) -> None:
        memory, inputs = operands.memory, operands.inputs
        plan = memory.plan
        if not checked:
            _require_gradients(memory, inputs.log_row.dtype, g, gradients)
        self._operands = operands
        self._g, self._gradients = g, gradients  # the record has addresses only
        arrays: tuple[Tensor | None, ...] = (None, g, None, None, None)
        self._scratch = None if plan.small else memory.carve_scratch()
        if self._scratch is not None:
            arrays = (None, g, self._scratch.g_variance, self._scratch.factors, self._scratch.pair)
        self._record = operands.record(None, arrays, gradients)
        if self._scratch is None:
            return
        g_points = memory.as_matrices(gradients[4])
        self._flat, self._M, self._g_M = (memory.as_matrices(t) for t in (g, inputs.M, gradients[1]))
        self._g_A: Tensor | None = None
        self._g_B: Tensor | None = None
        if g_points is not None:
            self._g_A, self._g_B = g_points.split_with_sizes(plan.sizes[3:5], -1)

    def run(self) -> None:
        """Compute the gradients."""
        kernels, memory, *_ = self._operands
        plan, record = memory.plan, self._record
        if self._scratch is None:
            kernels.backward(record)
            return
        _, B, _, _, C, P = plan.sizes
        add_product = torch.baddbmm if plan.batch else torch.addmm
        _, D, Q, E, factors, pair, _ = self._scratch
        g, M, g_M, g_A, g_B = self._flat, self._M, self._g_M, self._g_A, self._g_B
        # An input layer needs D = gMᵀ only within gB̃ᵀ − DÃᵀ = g(B̃ − ÃM)ᵀ and GD = (Gg)Mᵀ, where with few pseudo-points
        # the right-hand sides are cheaper
        around_D = M is not None and self._gradients[0] is None and 2 * P * C < B * (C + P)
        kernels.backward_noise(record)
        if M is None or g_M is None:
            D.zero_()
        else:
            add_product(g_M, memory.rows_t, g, beta=0, out=g_M)
            if around_D:
                D.zero_()
            else:
                add_product(D, g, M.mT, beta=0, out=D)
        if g_A is None or g_B is None:
            Q.zero_()
            kernels.backward_inputs(record)
            return
        A, outputs = memory.A, memory.B
        if M is not None and around_D:
            outputs = add_product(outputs, A, M, alpha=-1)
        add_product(E, outputs, g.mT, beta=0, out=E)
        if M is not None and not around_D:
            add_product(E, A, D.mT, alpha=-1, out=E)
        kernels.backward_solve(record)
        add_product(Q, E.mT, A, beta=0, out=Q)
        kernels.backward_inputs(record)
        add_product(g_A, factors, pair, beta=0, out=g_A)
        add_product(g_B, memory.gain, g, beta=0, out=g_B)
        if M is not None and around_D:
            add_product(g_A, g_B, M.mT, alpha=-1, out=g_A)
        kernels.backward_points(record)
