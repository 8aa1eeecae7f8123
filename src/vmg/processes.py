"""Messages between the processes of a run: every collective of the library, and who is there.

Values travel as JSON and arrays, never as pickles: a process that takes in a message runs no code of it. Every function
returns at once where there is one process only.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

__all__ = [
    "LostProcessError",
    "add_up_",
    "any_true",
    "gather",
    "gather_rows",
    "in_group",
    "is_first",
    "joined_by_torchrun",
    "rank_and_size",
    "send",
    "send_",
    "smallest",
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
    flat = tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
    with _watched(task):
        distributed.all_reduce(flat)
    if len(tensors) > 1:
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view(tensor.shape))


def send_(tensors: Sequence[Tensor], task: str = "waiting for the first process") -> None:
    """Replace tensors by those of the first process."""
    if rank_and_size()[1] == 1:
        return
    with _watched(task):
        for tensor in tensors:
            distributed.broadcast(tensor, 0)


def smallest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The smallest of each number over processes."""
    if rank_and_size()[1] == 1:
        return values
    least = torch.as_tensor(values).clone()
    with _watched("comparing numbers"):
        distributed.all_reduce(least, op=distributed.ReduceOp.MIN)
    return least.numpy()


def any_true(answer: bool, task: str = "asking all processes") -> bool:
    """Whether the answer of any process is true."""
    if rank_and_size()[1] == 1:
        return answer
    most = torch.tensor([float(answer)])
    with _watched(task):
        distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    return bool(most)


def gather_rows(rows: Tensor, dim: int = 0, *, sizes: Sequence[int] | None = None, task: str = "gathering") -> Tensor:
    """The rows, dimension ``dim``, of all processes one after the other; ``sizes`` has their numbers where known."""
    if rank_and_size()[1] == 1:
        return rows
    with _watched(task):
        return torch.cat(_gather_parts(rows, dim, sizes), dim)


def _gather_parts(rows: Tensor, dim: int, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """The rows of each process; messages have one size, so shorter ones are padded."""
    n, size = rows.shape[dim], rank_and_size()[1]
    if sizes is None:
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


# -- values of JSON and arrays ----------------------------------------------------------------------------------------


def gather(value: T, task: str = "gathering") -> list[T]:
    """The value of every process, in the order of ranks: numbers, texts, bytes, arrays, tensors, lists and mappings."""
    if rank_and_size()[1] == 1:
        return [value]
    with _watched(task):
        parts = _gather_parts(_to_bytes(value), 0)
    return [_from_bytes(part) for part in parts]


def send(value: T, source: int = 0, task: str = "waiting for another process") -> T:
    """The value of process ``source``, for all; see :func:`gather` for its type."""
    rank, size = rank_and_size()
    if size == 1:
        return value
    message = _to_bytes(value) if rank == source else torch.zeros(0, dtype=torch.uint8)
    length = torch.tensor([len(message)])
    with _watched(task):
        distributed.broadcast(length, source)
        message = message if rank == source else message.new_zeros(int(length))
        distributed.broadcast(message, source)
    sent: T = _from_bytes(message)
    return sent


def _to_bytes(value: Any) -> Tensor:
    """A message [bytes]: NumPy's archive of all arrays, one of them the JSON of the rest."""
    arrays: list[NDArray[Any]] = []
    document = json.dumps(_describe(value, arrays))
    archive = io.BytesIO()
    np.savez(archive, np.frombuffer(document.encode(), dtype=np.uint8), *arrays, allow_pickle=False)
    return torch.frombuffer(bytearray(archive.getvalue()), dtype=torch.uint8)


def _from_bytes(message: Tensor) -> Any:
    with np.load(io.BytesIO(message.numpy().tobytes()), allow_pickle=False) as archive:
        document, *arrays = (archive[f"arr_{k}"] for k in range(len(archive.files)))
    return _restore(json.loads(document.tobytes()), arrays)


def _describe(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """JSON of a value; arrays are added to the list, and named by their place in it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"list": [_describe(part, arrays) for part in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _describe(part, arrays) for key, part in value.items()}}
    kinds = {bytes: "bytes", np.ndarray: "array", Tensor: "tensor"}
    kind = next((name for known, name in kinds.items() if isinstance(value, known)), None)
    if kind is None:
        raise TypeError(f"a message must be of numbers, texts, bytes, arrays, lists and mappings; got {type(value)}")
    array = np.frombuffer(value, dtype=np.uint8) if kind == "bytes" else value
    arrays.append(array.detach().cpu().numpy() if isinstance(array, Tensor) else array)
    return {kind: len(arrays) - 1}


def _restore(content: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    if not isinstance(content, dict):
        return content
    [(kind, held)] = content.items()
    if kind == "list":
        return [_restore(part, arrays) for part in held]
    if kind == "dict":
        return {key: _restore(part, arrays) for key, part in held.items()}
    array = arrays[held]
    if kind == "bytes":
        return array.tobytes()
    return torch.from_numpy(array) if kind == "tensor" else array
