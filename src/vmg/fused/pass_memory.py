"""Memory of a layer's passes: what the backward pass needs of the forward pass, used again from step to step.

A small network would otherwise spend a good part of a step in making such memory and views into it, and find it cold.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Loan", "MemoryPool", "PassMemory", "Plan", "keeps_tensors", "make_plan"]

# Multiply-adds of a forward pass over all replicas below which one call wins: the kernels' own product runs on one
# thread, PyTorch's on all, but its thirty calls from Python cost as much. Measured on two cores, with and without
# replicas: equal at 2.5 million with two threads, at 3.5 million with one.
SMALL = 2_500_000
ALIGNMENT = 16  # entries; keeps every array of the workspace on a cache line in single precision
KEPT = 2  # memories of a layer that wait for their next use: the graph of a step may outlive it by one


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
        n, B, _, R, C, P = plan.sizes
        self.plan, self.workspace = plan, workspace
        z, _, _, _, _, outputs, gain, root, _ = plan.offsets
        first, base = workspace.data_ptr(), workspace.element_size()
        self.addresses = tuple([first + base * offset for offset in plan.offsets])

        def view(rows: int, columns: int, stride: int, offset: int, size: int) -> Tensor:
            if not plan.batch:
                return workspace.as_strided((rows, columns), (stride, 1), offset)
            return workspace.as_strided((n, rows, columns), (size, stride, 1), offset)

        self._view, self._root = view, root
        if plan.small:
            return
        self.rows = view(B, R, R, z, (B + P) * R)  # x̂, then x'
        self.rows_t, self.z_t = self.rows.mT, view(B + P, R, R, z, (B + P) * R).mT
        self.A = view(P, R, R, z + B * R, (B + P) * R)
        self.B = view(P, C, C, outputs, P * C)
        self.kernel = view(P, B + P, B + P, gain, P * (B + P))  # Ãu[x̂, Ã]ᵀ, then the gain beside Σ₁₁
        self.gain = view(P, B, B + P, gain, P * (B + P))
        self.gain_t = self.gain.mT

    def covariance(self) -> Tensor:
        """Σ₁₁ without its damping, where it still is after a factorisation that failed."""
        _, B, _, _, _, P = self.plan.sizes
        return self._view(P, P, B + P, self.plan.offsets[6] + B, P * (B + P))

    def root(self) -> Tensor:
        """Where the transposed Cholesky factor of Σ₁₁ goes."""
        P = self.plan.sizes[-1]
        return self._view(P, P, P, self._root, P * P)


class MemoryPool:
    """Memory of one layer, which is lent to a node of a graph and comes back when the node is gone."""

    def __init__(self) -> None:
        self._free: list[PassMemory] = []

    def lend(self, plan: Plan, dtype: torch.dtype) -> Loan:
        """Memory that nobody else uses."""
        while self._free:
            memory = self._free.pop()
            if memory.plan is plan and memory.workspace.dtype is dtype:
                return Loan(memory, self._free)
        return Loan(PassMemory(plan, torch.empty(plan.total, dtype=dtype)), self._free)


class Loan:
    """Memory in use: as soon as this object is gone, the memory can be lent again."""

    def __init__(self, memory: PassMemory, free: list[PassMemory]) -> None:
        self.memory, self._free = memory, free

    def __del__(self) -> None:
        if len(self._free) < KEPT:
            self._free.append(self.memory)


def keeps_tensors() -> bool:
    """Whether a graph keeps the tensors it is given. Under hooks, such as those of checkpointing, it does not."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is None
