"""Processes that share a dataset: which part of it each one reads, and how their results are joined."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from vmg.scale.dataset import ALONE, Shard
from vmg.training.distributed import watched

__all__ = ["add_up", "gather", "is_first", "send", "shard", "smallest"]

T = TypeVar("T")


def shard() -> Shard:
    """Rank and number of processes of the process group; (0, 1) where there is none."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return ALONE


def is_first() -> bool:
    """Whether this process writes and says what all have found."""
    return shard()[0] == 0


def gather(own: T) -> list[T]:
    """What every process has, in the order of ranks, the same list in all of them."""
    n = shard()[1]
    if n == 1:
        return [own]
    found: list[T | None] = [None] * n
    with watched("gathering"):
        distributed.all_gather_object(found, own)
    return [one for one in found if one is not None]


def send(own: T, source: int = 0) -> T:
    """What one process has, the first if no other is named."""
    if shard()[1] == 1:
        return own
    box = [own]
    with watched(f"waiting for process {source}"):
        distributed.broadcast_object_list(box, src=source)
    return box[0]


def add_up(tensors: list[Tensor]) -> None:
    """Replace tensors of one type by their sums over processes, with one message for all of them."""
    if shard()[1] == 1:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with watched("adding sums up"):
        distributed.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view(tensor.shape))


def smallest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest of each number over processes."""
    if shard()[1] == 1:
        return values
    tensor = torch.as_tensor(values).clone()
    with watched("comparing ranges"):
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MIN)
    return tensor.numpy()
