"""A diagonal layer's passes on the compiled kernels: the counterpart of the PyTorch passes in ``vmg/conditional.py``.

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

from vmg.kernels import LAYER, NOT_FINITE, NOT_POSITIVE, address
from vmg.linalg import cholesky

__all__ = ["Inputs", "Plan", "backward", "forward", "make_plan"]

# Multiply-adds of a forward pass over all replicas below which one call wins: the kernels' own product runs on one
# thread, PyTorch's on all, but its thirty calls from Python cost as much. Measured on two cores, with and without
# replicas: equal at 2.5 million with two threads, at 3.5 million with one.
SMALL = 2_500_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision


class Inputs(NamedTuple):
    """The tensors a layer's draw depends on, as documented in :func:`vmg.conditional.sample_diagonal`."""

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


def forward(
    kernels: SimpleNamespace, plan: Plan, inputs: Inputs, input_scale: float, damping: float
) -> tuple[Tensor, Tensor, bool]:
    """Draw the outputs; also the workspace, and whether all inputs were finite."""
    x, M = inputs.x, inputs.M
    n, B, _, R, C, P = plan.sizes
    workspace = x.new_empty(plan.total)
    out = torch.empty_like(inputs.noise)
    if plan.small:
        record = _record(plan, inputs, input_scale, damping, workspace, out)
        status = kernels.forward(record)
        if status & NOT_POSITIVE:
            _factorise_with_jitter(plan, workspace, damping)
            kernels.finish(record)
        return out, workspace, not status & NOT_FINITE

    add_product = torch.baddbmm if plan.batch else torch.addmm
    lead = (n,) if plan.batch else ()
    flat, AU = out.view(*lead, B, C), x.new_empty(*lead, P, R)
    record = _record(plan, inputs, input_scale, damping, workspace, out, (AU, None, None, None, None))
    status = kernels.prepare(record)
    rows = plan.view(workspace, _Z, B, R, R)  # x̂, then x'
    if P:
        z = plan.view(workspace, _Z, B + P, R, R)
        gain = plan.view(workspace, _GAIN, P, B + P, B + P)
        add_product(gain, AU, z.mT, beta=0, out=gain)
        if kernels.factorise(record) & NOT_POSITIVE:
            _factorise_with_jitter(plan, workspace, damping)
        kernels.solve(record)
        gain_t = plan.view(workspace, _GAIN, P, B, B + P).mT
        add_product(rows, gain_t, plan.view(workspace, _Z, P, R, R, B * R), alpha=-1, out=rows)
        add_product(flat, gain_t, plan.view(workspace, _OUTPUTS, P, C, C), beta=0, out=flat)
    if M is not None:
        add_product(flat, rows, M.view(*lead, R, C), beta=1 if P else 0, out=flat)
    kernels.add_noise(record)
    return out, workspace, not status & NOT_FINITE


def _factorise_with_jitter(plan: Plan, workspace: Tensor, damping: float) -> None:
    """The kernels found a pivot that is not positive; Σ₁₁ is still there, so do it again the careful way."""
    _, B, _, _, _, P = plan.sizes
    S = plan.view(workspace, _GAIN, P, P, B + P, B).clone()
    S.diagonal(dim1=-2, dim2=-1).add_(damping)
    plan.view(workspace, _ROOT, P, P, P).copy_(cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I").mT)


def backward(
    kernels: SimpleNamespace,
    plan: Plan,
    inputs: Inputs,
    workspace: Tensor,
    input_scale: float,
    damping: float,
    g: Tensor,
    needs_x: bool,
) -> list[Tensor | None]:
    """Gradients of the first seven inputs."""
    M = inputs.M
    n, B, _, R, C, P = plan.sizes
    g = g.contiguous()
    gradients = [None if tensor is None else torch.empty_like(tensor) for tensor in inputs[1:7]]
    g_x = torch.empty(inputs.x.shape, dtype=g.dtype) if needs_x else None  # contiguous, even if x is an expanded one
    g_M, _, _, g_points, _, _ = gradients
    if plan.small:
        only_g = (None, g, None, None, None)
        kernels.backward(_record(plan, inputs, input_scale, damping, workspace, None, only_g, [g_x, *gradients]))
        return [g_x, *gradients]

    add_product = torch.baddbmm if plan.batch else torch.addmm
    lead = (n,) if plan.batch else ()
    g = g.view(*lead, B, C)
    g_variance, rows, factors = g.new_empty(n * B), g.new_empty(*lead, 2 * B, R), g.new_empty(*lead, P, 2 * B)
    scratch = (None, g, g_variance, factors, rows)
    record = _record(plan, inputs, input_scale, damping, workspace, None, scratch, [g_x, *gradients])
    kernels.backward_noise(record)
    residual = plan.view(workspace, _Z, B, R, R)  # x'
    D, Q = rows[..., :B, :], rows[..., B:, :]
    # An input layer needs D = gMᵀ only within gB̃ᵀ − DÃᵀ = g(B̃ − ÃM)ᵀ and GD = (Gg)Mᵀ, where with few pseudo-points the
    # right-hand sides are cheaper
    around_D = M is not None and not needs_x and 2 * P * C < B * (C + P)
    if M is None or g_M is None:
        D.zero_()
    else:
        M, flat = M.view(*lead, R, C), g_M.view(*lead, R, C)
        add_product(flat, residual.mT, g, beta=0, out=flat)
        if around_D:
            D.zero_()
        else:
            add_product(D, g, M.mT, beta=0, out=D)
    if g_points is None:
        Q.zero_()
        kernels.backward_inputs(record)
    else:
        A = plan.view(workspace, _Z, P, R, R, B * R)
        gain = plan.view(workspace, _GAIN, P, B, B + P)
        E = factors[..., B:]
        outputs = plan.view(workspace, _OUTPUTS, P, C, C)
        if M is not None and around_D:
            outputs = add_product(outputs, A, M, alpha=-1)
        add_product(E, outputs, g.mT, beta=0, out=E)
        if M is not None and not around_D:
            add_product(E, A, D.mT, alpha=-1, out=E)
        kernels.backward_solve(record)
        add_product(Q, E.mT, A, beta=0, out=Q)
        kernels.backward_inputs(record)
        flat = g_points.view(*lead, P, R + C)
        g_A, g_B = flat[..., :R], flat[..., R:]
        add_product(g_A, factors, rows, beta=0, out=g_A)
        add_product(g_B, gain, g, beta=0, out=g_B)
        if M is not None and around_D:
            add_product(g_A, g_B, M.mT, alpha=-1, out=g_A)
        kernels.backward_points(record)
    return [g_x, *gradients]
