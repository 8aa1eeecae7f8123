"""Rows to train on, in the network's units: held out, and stacked for the replicas of one batched network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["TrainingSet", "hold_out", "stack"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingSet:
    """Rows of one replica in the network's units."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, C] or, for classes, [N]
    weight: Tensor | None  # [N]
    unit: Array  # what one standard unit of each target is in the target's own, [C]


def hold_out(
    sets: list[TrainingSet], fraction: float, generator: torch.Generator
) -> tuple[list[TrainingSet], list[TrainingSet]]:
    """Every set without a random fraction of its rows, and these rows."""
    inside: list[TrainingSet] = []
    outside: list[TrainingSet] = []
    for rows in sets:
        n = len(rows.x)
        n_held = min(max(1, round(fraction * n)), n - 1)
        if n_held < 1:
            raise ValueError(f"early_stopping needs at least 2 rows to hold one out; got {n}")
        order = torch.randperm(n, generator=generator)
        for target, index in ((outside, order[:n_held]), (inside, order[n_held:])):
            w = None if rows.weight is None else rows.weight[index]
            target.append(TrainingSet(rows.x[index], rows.y[index], w, rows.unit))
    return inside, outside


def stack(sets: list[TrainingSet], n_members: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Training sets as tensors of [replicas, N, ...], padded to one length, with the row counts where these differ."""
    if len(sets) == 1:
        only = sets[0]
        return only.x, only.y, only.weight, None
    longest = max(len(s.x) for s in sets)

    def pad(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])

    def gather(parts: list[Tensor]) -> Tensor:
        return torch.stack([pad(part) for part in parts]).repeat_interleave(n_members, 0)

    weights = [s.weight for s in sets if s.weight is not None]
    sizes = torch.tensor([len(s.x) for s in sets]).repeat_interleave(n_members)
    return gather([s.x for s in sets]), gather([s.y for s in sets]), gather(weights) if weights else None, sizes
