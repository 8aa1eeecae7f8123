"""Messages between the processes of a run: every collective of the library, and who is there.

Values travel as JSON or bytes, never as pickles: no code of a message is run. Every function returns at once where
there is one process only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, distributed

__all__ = [
    *("LostProcessError", "add_up_", "gather", "gather_bytes", "gather_rows", "in_group", "is_first"),
    *("joined_by_torchrun", "rank_and_size", "send_", "send_bytes"),
]

T = TypeVar("T")

SILENCE = timedelta(minutes=30)  # after which a process that says nothing counts as lost


class LostProcessError(RuntimeError):
    """Another process of the group has ended, or has not answered for long."""


@contextmanager
def _watched(task: str) -> Iterator[None]:
    """Name the task that was under way when the other processes could not be reached."""
    try:
        yield
    except RuntimeError as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise LostProcessError(
            f"another process of this run has ended or does not answer ({task}: {first_line:.120}). Start the run "
            "again; it goes on from its checkpoint, where it keeps one."
        ) from error


@contextmanager
def joined_by_torchrun() -> Iterator[bool]:
    """Join the process group that ``torchrun`` has prepared; gives whether there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield False
        return
    distributed.init_process_group("gloo", timeout=SILENCE)
    try:
        yield True
    finally:
        distributed.destroy_process_group()


# -- who is there -----------------------------------------------------------------------------------------------------


def in_group() -> bool:
    """Whether this process belongs to a process group, even if it is alone there."""
    return distributed.is_available() and distributed.is_initialized()


def rank_and_size() -> tuple[int, int]:
    """The number of this process and the number of processes of the default group; (0, 1) where there is none."""
    return (distributed.get_rank(), distributed.get_world_size()) if in_group() else (0, 1)


def is_first() -> bool:
    """Whether this process writes and reports for all."""
    return rank_and_size()[0] == 0


# -- tensors ----------------------------------------------------------------------------------------------------------


def add_up_(tensors: Sequence[Tensor], task: str = "adding sums up") -> None:
    """Replace tensors of one type by their sums over processes, with one message for all of them."""
    if rank_and_size()[1] == 1:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    with _watched(task):
        distributed.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view(tensor.shape))


def send_(tensors: Sequence[Tensor], task: str = "waiting for the first process") -> None:
    """Replace tensors by those of the first process."""
    if rank_and_size()[1] == 1:
        return
    with _watched(task):
        for tensor in tensors:
            distributed.broadcast(tensor, 0)


def gather_rows(rows: Tensor, dim: int = 0) -> Tensor:
    """The rows, dimension ``dim``, of all processes one after the other."""
    return rows if rank_and_size()[1] == 1 else torch.cat(_gather_parts(rows, dim, "gathering"), dim)


def _gather_parts(rows: Tensor, dim: int, task: str) -> list[Tensor]:
    """The rows of each process; messages have one size, so shorter ones are padded."""
    n, size = rows.shape[dim], rank_and_size()[1]
    with _watched(task):
        counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(size)]
        distributed.all_gather(counts, torch.tensor([n], device=rows.device))
        sizes = [int(count) for count in counts]
        shape = list(rows.shape)
        shape[dim] = max(sizes)
        padded = rows.new_zeros(shape)
        padded.narrow(dim, 0, n).copy_(rows)
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
    return [part.narrow(dim, 0, own) for part, own in zip(parts, sizes, strict=True)]


# -- JSON and bytes ---------------------------------------------------------------------------------------------------


def gather(value: T, task: str = "gathering") -> list[T]:
    """The value of every process, in the order of ranks; JSON must have its type."""
    if rank_and_size()[1] == 1:
        return [value]
    return [json.loads(part) for part in gather_bytes(json.dumps(value).encode(), task)]


def gather_bytes(data: bytes, task: str = "gathering") -> list[bytes]:
    """The bytes of every process, in the order of ranks."""
    if rank_and_size()[1] == 1:
        return [data]
    return [part.numpy().tobytes() for part in _gather_parts(_message(data), 0, task)]


def send_bytes(data: bytes) -> bytes:
    """The bytes of the first process, for all."""
    length = torch.tensor([len(data)])
    send_([length])
    message = _message(data) if is_first() else torch.empty(int(length), dtype=torch.uint8)
    send_([message])
    return message.numpy().tobytes()


def _message(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
