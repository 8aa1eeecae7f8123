"""Memory of a layer's passes: what the backward pass needs of the forward pass, used again from step to step.

A small network would otherwise spend a good part of a step in making such memory and views into it, and find it cold.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

__all__ = ["MOST", "PassMemory", "Plan", "Scratch", "make_plan"]

# Multiply-adds of a forward pass over all replicas below which one call wins: the kernels' own product runs on one
# thread, PyTorch's on all, but its thirty calls from Python cost as much. Measured on two cores, with and without
# replicas: equal at 2.5 million with two threads, at 3.5 million with one.
SMALL = 2_500_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision
MOST = 2**22  # entries; larger memory is made anew each time, as its passes take long enough


class Plan(NamedTuple):
    """Sizes of a layer and where its arrays lie in the workspace."""

    sizes: tuple[int, int, int, int, int, int]  # n, B, I, R, C, P
    shapes: tuple[tuple[int, ...], ...]  # that the inputs must have
    batch: bool  # whether there are leading dimensions
    small: bool
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
    return Plan((n, B, I, R, C, P), shapes, bool(batch_shape), work < SMALL, tuple(offsets), total)


class PassMemory:
    """A workspace for one plan, and the matrices inside it that PyTorch multiplies, one for each replica."""

    def __init__(self, plan: Plan, workspace: Tensor) -> None:
        _, B, _, R, C, P = plan.sizes
        self.plan, self.workspace = plan, workspace
        z, _, _, _, _, outputs, gain, _, _ = plan.offsets
        first, item = workspace.data_ptr(), workspace.element_size()
        self.addresses = tuple([first + item * offset for offset in plan.offsets])
        if plan.small:
            return
        self._carved: tuple[Tensor, Scratch] | None = None
        self.rows = self._view(B, R, R, z, (B + P) * R)  # x̂, then x'
        self.rows_t, self.z_t = self.rows.mT, self._view(B + P, R, R, z, (B + P) * R).mT
        self.A = self._view(P, R, R, z + B * R, (B + P) * R)
        self.B = self._view(P, C, C, outputs, P * C)
        self.kernel = self._view(P, B + P, B + P, gain, P * (B + P))  # Ãu[x̂, Ã]ᵀ, then the gain beside Σ₁₁
        self.gain = self._view(P, B, B + P, gain, P * (B + P))
        self.gain_t = self.gain.mT

    def _view(self, rows: int, columns: int, stride: int, offset: int, size: int) -> Tensor:
        if not self.plan.batch:
            return self.workspace.as_strided((rows, columns), (stride, 1), offset)
        return self.workspace.as_strided((self.plan.sizes[0], rows, columns), (size, stride, 1), offset)

    def as_matrices(self, tensor: Tensor | None) -> Any:
        """A tensor with one leading dimension at most, for the replicas; None where there is none."""
        return tensor.flatten(0, -3) if tensor is not None and self.plan.batch else tensor

    def covariance(self) -> Tensor:
        """Σ₁₁ without its damping, which is still there after a factorisation that failed."""
        _, B, _, _, _, P = self.plan.sizes
        return self._view(P, P, B + P, self.plan.offsets[6] + B, P * (B + P))

    def root(self) -> Tensor:
        """The place of the transposed Cholesky factor of Σ₁₁."""
        P = self.plan.sizes[-1]
        return self._view(P, P, P, self.plan.offsets[7], P * P)

    def carve_scratch(self) -> Scratch:
        """Arrays for the passes of a large layer, in memory that all layers of this thread use in turn."""
        n, B, _, R, _, P = self.plan.sizes
        size = n * max(P * R, B + 2 * B * P + 2 * B * R) + 3 * ALIGNMENT
        memory = _SCRATCH.take(size, self.workspace.dtype)
        if self._carved is not None and memory is self._carved[0]:
            return self._carved[1]
        lead = (n,) if self.plan.batch else ()
        arrays, start = [], 0
        for shape in ((n * B,), (*lead, P, 2 * B), (*lead, 2 * B, R)):
            length = math.prod(shape)
            arrays.append(memory[start : start + length].view(shape))
            start += -(-length // ALIGNMENT) * ALIGNMENT
        g_variance, factors, pair = arrays
        AU, D, Q, E = memory[: n * P * R].view(*lead, P, R), pair[..., :B, :], pair[..., B:, :], factors[..., B:]
        self._carved = memory, Scratch(AU, D, Q, E, factors, pair, g_variance)
        return self._carved[1]


class Scratch(NamedTuple):
    """What a pass of a large layer computes on the way; nothing in it outlasts the pass."""

    AU: Tensor
    D: Tensor
    Q: Tensor
    E: Tensor
    factors: Tensor
    pair: Tensor  # D above Q
    g_variance: Tensor


class _ScratchMemory(threading.local):
    """Memory that passes use in turn: a thread runs one at a time. What is large lives as long as passes hold it."""

    def __init__(self) -> None:
        self._tensors: dict[torch.dtype, Tensor] = {}
        self._large: WeakValueDictionary[torch.dtype, Tensor] = WeakValueDictionary()

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        kept = self._tensors if size <= MOST else self._large
        found = kept.get(dtype)
        if found is None or found.numel() < size:
            found = kept[dtype] = torch.empty(size, dtype=dtype)
        return found


_SCRATCH = _ScratchMemory()
