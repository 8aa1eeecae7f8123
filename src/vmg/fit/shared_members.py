"""Members of an ensemble that several processes train, each its own ones.

Members do not need each other for a step: each has parameters, held-out rows and an output layer of its own. So every
process of a group takes some of them, and after training all get all. What members say of held-out rows is gathered
whenever these are looked at, and one process decides for all when to stop. A process that cannot go on stands still
until all are asked. Rows and random numbers must be the same in all processes.

Nothing is shared unless a caller says so by :func:`members_shared`: processes of a group may well fit different models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vmg import processes

__all__ = ["MemberShard", "members_shared"]

Parts = TypeVar("Parts", bound=tuple[Any, ...])

_shared: ContextVar[bool] = ContextVar("_shared", default=False)


@contextmanager
def members_shared() -> Iterator[None]:
    """Let the processes of the default group share the members of the ensembles that are trained in this block."""
    token = _shared.set(True)
    try:
        yield
    finally:
        _shared.reset(token)


class MemberShard:
    """The processes that train ``n_members`` members; one alone, where nothing is shared.

    Process k of K has a run of members. Where there are more processes than members, the last ones train the last
    member too, and what they find is not used.
    """

    def __init__(self, n_members: int, *, shared: bool = True) -> None:
        self._rank, self._size = processes.rank_and_size() if shared and _shared.get() else (0, 1)
        self._n_used = min(self._size, n_members)
        edges = [n_members * k // self._n_used for k in range(self._n_used + 1)]
        mine = min(self._rank, self._n_used - 1)
        self.own = slice(edges[mine], edges[mine + 1])

    @property
    def alone(self) -> bool:
        """Whether there is nobody to share with."""
        return self._size == 1

    def all_members(self, own: Parts) -> Parts:
        """Arrays of all members from those of each process's own: [E, ...] each, in a tuple of the same kind."""
        if self.alone:
            return own
        shards = processes.gather(list(own), "gathering the predictions of members")
        joined = [np.concatenate(parts) for parts in zip(*shards[: self._n_used], strict=True)]
        return type(own)(*joined) if hasattr(own, "_fields") else type(own)(joined)

    def first(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of the first process."""
        return values if self.alone else processes.send(values)

    def go_on(self, answer: bool, *, ask: bool) -> bool:
        """Whether to go on: alone by the own answer, with others while all say yes where it is time to ``ask``."""
        if self.alone:
            return answer
        if not ask:
            return True
        return not processes.any_true(not answer, "at a step on the sample")

    def put_together(self, whole: nn.Module, part: nn.Module) -> None:
        """Give ``whole`` the parameters and buffers of all parts; in every process the same bits."""
        if self.alone:
            return
        names, tensors = zip(*part.state_dict().items(), strict=True)
        joined = self.all_members(tuple(tensor.numpy() for tensor in tensors))
        whole.load_state_dict({name: torch.from_numpy(one) for name, one in zip(names, joined, strict=True)})
