"""Mean and variance carried through a ReLU network, compiled: the passes of :mod:`vmg.math.moments` in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.library import MOMENTS_LAYER, MOMENTS_NETWORK, address

__all__ = ["SmallMatrices", "propagate"]

# Weights of a layer up to which the kernel wins over PyTorch's products: beyond, they leave the cache. Measured: 1.8
# times as fast at 40,000, 1.1 at 80,000, 0.9 at 160,000.
LARGEST = 2**16
# Multiply-adds worth a thread of their own, some ten milliseconds of work. Beside PyTorch's own threads a second one
# made 10,000 rows slower in most runs; times vary too much from run to run to say more.
THREAD = 2**30
SHORTEST = 256  # rows of a thread's part, at least


class SmallMatrices(NamedTuple):
    """What the kernel reads of a layer, each [..., rows, columns] with leading dimensions for replicas.

    R rows with and I without the bias, C outputs, P pseudo-points. E is zero without noise of the pseudo-inputs, else
    P in a hidden layer and C in the last one.
    """

    sizes: tuple[int, int, int, int, int]  # R, I, C, P, E
    first: Tensor  # [R, C+P] weights of the mean, and of the gain G
    inputs: Tensor | None  # [P, R] Ã
    squares: Tensor  # [R, E+1] weights of x'²: in the levers (or in the pseudo-inputs' share), and u
    spread: Tensor  # [1+P, C] weights of Σ u x'² and of G² in the variance
    carry: Tensor | None  # [I, C] weights of the inputs' variance in it
    weight: Tensor | None  # last layer: [R, C] M_eff
    level: Tensor | None  # last layer: [P, C] weights of G² in the pseudo-inputs' share
    cross: Tensor | None  # last layer: [R, C·P] weights of x' in what multiplies G there
    slopes: Tensor | None  # hidden layer: [C, R+E] M_effᵀ, and what makes H
    noise: Tensor | None  # hidden layer: [R, P] variances of the pseudo-inputs
    row: Tensor  # [R, 1] u


def propagate(
    make_layers: Callable[[], list[SmallMatrices]], sizes: Sequence[tuple[int, int]], lead: Sequence[int], x: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Mean and variance [*lead, N, C] of the last layer at x [..., N, I]; None where the kernel should not be used.

    Args:
        make_layers: makes the small matrices, once it is clear that they are needed.
        sizes: (R, C) of every layer.
        lead: leading dimensions of the result; the small matrices and x broadcast to them.
        x: rows, in the dtype of the result.
    """
    native = library.native(x)
    if native is None or max(R * C for R, C in sizes) > LARGEST:
        return None
    layers = make_layers()
    n, N, C = prod(lead), x.shape[-2], layers[-1].sizes[2]
    mean, variance = x.new_empty(*lead, N, C), x.new_empty(*lead, N, C)
    x = x.contiguous() if x.dim() == 2 else x.expand(*lead, *x.shape[-2:]).contiguous()
    whole = [[_spread(part, lead, x.dtype) for part in layer[1:]] for layer in layers]
    lowest = next((k for k, layer in enumerate(layers) if layer.sizes[-1]), len(layers))

    _require(layers, x)
    work = n * N * sum(R * (columns + 3 * P) * (1 + C) for R, _, columns, P, _ in (layer.sizes for layer in layers))
    threads = max(1, min(torch.get_num_threads(), work // THREAD))
    step = min(N, max(SHORTEST, -(-n * N // threads)))  # rows of a piece, all of one replica
    item = x.element_size()

    def run(k: int, start: int) -> None:
        rows = min(step, N - start)
        at = (k * N + start) * item
        x_at = ((k * N if x.dim() > 2 else 0) + start) * x.shape[-1] * item
        ends = [t.data_ptr() + C * at for t in (mean, variance)]
        records = [MOMENTS_NETWORK.pack(len(layers), rows, lowest, x.data_ptr() + x_at, *ends)]
        for layer, parts in zip(layers, whole, strict=True):
            places = [address(t) + (0 if t is None else k * t.stride(0) * item) for t in parts]
            records.append(MOMENTS_LAYER.pack(*layer.sizes, *places))
        native.moments(b"".join(records))

    pieces = [(k, start) for k in range(n) for start in range(0, N, step)]
    if threads == 1 or len(pieces) == 1:
        for piece in pieces:
            run(*piece)
    else:
        with ThreadPoolExecutor(threads) as pool:  # the library is called without Python's lock
            list(pool.map(run, *zip(*pieces, strict=True)))
    return mean, variance


def _require(layers: Sequence[SmallMatrices], x: Tensor) -> None:
    """Refuse matrices that the kernel would misread: it sees their addresses and the layers' sizes."""
    library.require("x", x, (*x.shape[:-1], layers[0].sizes[1]), x.dtype)
    for layer in layers:
        R, I, C, P, E = layer.sizes  # noqa: E741 - the letters of the kernel
        shapes = (R, C + P), (P, R), (R, E + 1), (1 + P, C), (I, C), (R, C), (P, C), (R, C * P), (C, R + E), (R, P)
        for name, part, shape in zip(layer._fields[1:], layer[1:], (*shapes, (R, 1)), strict=True):
            if part is not None and part.shape[-2:] != shape:
                raise ValueError(f"{name} must have shape {shape}; got {tuple(part.shape[-2:])}")


def _spread(part: Tensor | None, lead: Sequence[int], dtype: torch.dtype) -> Tensor | None:
    """All replicas' matrices one after the other, [n, rows, columns]; [rows, columns] where there is one."""
    if part is None or not lead:
        return None if part is None else part.to(dtype).contiguous()
    return part.to(dtype).expand(*lead, *part.shape[-2:]).reshape(-1, *part.shape[-2:]).contiguous()
