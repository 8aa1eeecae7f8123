"""Which rows each step of training sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["Minibatches", "minibatches", "take_rows"]


class Minibatches(Iterator[Tensor]):
    """What :func:`minibatches` gives: an endless iterator whose place can be kept and found again."""

    def __init__(
        self, n_rows: int | Tensor, batch_size: int, batch_shape: Sequence[int], generator: torch.Generator | None
    ) -> None:
        sizes = torch.as_tensor(n_rows).expand(tuple(batch_shape)).reshape(-1)
        self._smallest, self._largest = int(sizes.min()), int(sizes.max())
        if self._smallest < 1:
            raise ValueError("training needs at least one row; got none")
        self._size, self._batch_shape, self._generator = min(batch_size, self._smallest), tuple(batch_shape), generator
        self._sizes = sizes  # of each replica
        self._order = torch.empty(len(sizes), 0, dtype=torch.int64)  # of the epoch, [replicas, largest]
        self._start = self._smallest  # a permutation is drawn when the first of its rows is asked for

    def __next__(self) -> Tensor:
        if self._start + self._size > self._smallest:
            self._order, self._start = self._permute(), 0
        stop = self._start + self._size
        index = self._order[:, self._start : stop].reshape(*self._batch_shape, self._size)
        self._start = stop
        return index

    def _permute(self) -> Tensor:
        replicas = len(self._sizes)
        if replicas == 1:
            return torch.randperm(self._largest, generator=self._generator).unsqueeze(0)
        beyond = torch.arange(self._largest) >= self._sizes.unsqueeze(-1)  # [replicas, largest]
        keys = torch.rand(replicas, self._largest, generator=self._generator).masked_fill_(beyond, 2.0)
        return keys.argsort(-1)

    def state(self) -> dict[str, Tensor]:
        """The permutation of the epoch and the place in it; the generator keeps its own state."""
        return {"order": self._order, "start": torch.tensor(self._start)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a place that :meth:`state` gave."""
        self._order, self._start = state["order"], int(state["start"])


def minibatches(
    n_rows: int | Tensor, batch_size: int, batch_shape: Sequence[int] = (), generator: torch.Generator | None = None
) -> Minibatches:
    """Endless row indices [*batch_shape, batch_size]: a fresh permutation for every replica and epoch.

    Batches are always full; the few rows left over at the end of an epoch come in a later one. Replicas may have
    different numbers of rows, ``n_rows`` [*batch_shape]; an epoch is then as long as the smallest.
    """
    return Minibatches(n_rows, batch_size, batch_shape, generator)


def take_rows(rows: Tensor, index: Tensor, *, own: bool) -> Tensor:
    """Rows at index [*batch_shape, B] of a table [N, ...] or, where replicas have their own, [*batch_shape, N, ...]."""
    index = index.to(rows.device)
    if not own:
        return rows[index]
    n_batch = index.dim() - 1
    flat, flat_index = rows.flatten(0, n_batch), index.flatten(0, -2)
    offset = torch.arange(flat_index.shape[0], device=rows.device).unsqueeze(-1) * rows.shape[n_batch]
    found: Tensor = flat[flat_index + offset].unflatten(0, index.shape[:n_batch])
    return found
