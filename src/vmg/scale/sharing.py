"""Processes that share a dataset: which part of it each one reads, and how their results are joined."""

from __future__ import annotations

from typing import TypeVar

from torch import distributed

from vmg.processes import add_up_ as add_up
from vmg.processes import is_first, smallest
from vmg.processes import rank_and_size as shard

__all__ = ["add_up", "gather", "is_first", "send", "shard", "smallest"]

T = TypeVar("T")


def gather(own: T) -> list[T]:
    """What every process has, in the order of ranks, the same list in all of them."""
    n = shard()[1]
    if n == 1:
        return [own]
    found: list[T | None] = [None] * n
    distributed.all_gather_object(found, own)
    return [one for one in found if one is not None]


def send(own: T, source: int = 0) -> T:
    """What one process has, the first if no other is named."""
    if shard()[1] == 1:
        return own
    box = [own]
    distributed.broadcast_object_list(box, src=source)
    return box[0]
