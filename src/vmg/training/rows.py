"""The training rows: checked once, shuffled every epoch, taken a minibatch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.math.linalg import all_finite

__all__ = ["Batch", "Minibatches", "TrainingRows", "take_rows"]


class Minibatches(Iterator[Tensor]):
    """Endless row indices [*batch_shape, batch_size]: a fresh permutation for every replica and epoch.

    Batches are always full; the few rows left over at the end of an epoch come in a later one. Replicas may have
    different numbers of rows, ``n_rows`` [*batch_shape]; an epoch is then as long as the smallest.
    """

    def __init__(
        self,
        n_rows: int | Tensor,
        batch_size: int,
        batch_shape: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        self._sizes = torch.as_tensor(n_rows).expand(tuple(batch_shape)).reshape(-1)  # of each replica
        self._smallest, self._largest = int(self._sizes.min()), int(self._sizes.max())
        if self._smallest < 1:
            raise ValueError("training needs at least one row; got none")
        self._size, self._batch_shape, self._generator = min(batch_size, self._smallest), tuple(batch_shape), generator
        self._order = torch.empty(0)  # of the epoch, [replicas, largest]
        self._start = self._smallest  # a permutation is drawn when the first of its rows is asked for

    def __next__(self) -> Tensor:
        if self._start + self._size > self._smallest:
            self._order, self._start = self._permute(), 0
        index = self._order[:, self._start : self._start + self._size].reshape(*self._batch_shape, self._size)
        self._start += self._size
        return index

    def _permute(self) -> Tensor:
        if len(self._sizes) == 1:
            return torch.randperm(self._largest, generator=self._generator).unsqueeze(0)
        beyond = torch.arange(self._largest) >= self._sizes.unsqueeze(-1)  # [replicas, largest]
        return torch.rand(beyond.shape, generator=self._generator).masked_fill_(beyond, 2.0).argsort(-1)

    def state_dict(self) -> dict[str, Tensor]:
        """The permutation of the epoch and the place in it; the generator keeps its own state."""
        return {"order": self._order, "start": torch.tensor(self._start)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a place that :meth:`state_dict` gave."""
        self._order, self._start = state["order"], int(state["start"])


def take_rows(rows: Tensor, index: Tensor, *, own: bool) -> Tensor:
    """Rows at index [*batch_shape, B] of a table [N, ...] or, where replicas have their own, [*batch_shape, N, ...]."""
    index = index.to(rows.device)
    if not own:
        return rows[index]
    flat, places = rows.flatten(0, index.dim() - 2), index.flatten(0, -2)  # [replicas, N, ...], [replicas, B]
    replicas = torch.arange(len(flat), device=rows.device).unsqueeze(-1)
    taken: Tensor = flat[replicas, places].unflatten(0, index.shape[:-1])
    return taken


class Batch(NamedTuple):
    """The rows of one step; weights have mean 1 over the training set."""

    x: Tensor
    y: Tensor
    weight: Tensor | None


class TrainingRows:
    """All rows of a run, [N, ...], or [*batch_shape, N, ...] where replicas see different ones.

    ``sizes`` is the number of rows of each replica. ``n_data`` is N of the objective: the same, or the sum of weights.
    """

    def __init__(
        self, x: Tensor, y: Tensor, weight: Tensor | None, n_rows: Tensor | None, batch_shape: Sequence[int]
    ) -> None:
        if not (all_finite(x) and all_finite(y)):
            raise ValueError("x and y must be finite; got NaN or infinite values")
        n_batch = len(batch_shape)
        self._own = n_batch > 0 and x.dim() >= n_batch + 2 and x.shape[:n_batch] == tuple(batch_shape)
        place = n_batch if self._own else 0  # of the rows' dimension
        for name, rows in (("y", y), ("weight", weight)):
            if rows is not None and rows.shape[: place + 1] != x.shape[: place + 1]:
                raise ValueError(
                    f"{name} must have {x.shape[place]} rows, as x of shape {tuple(x.shape)} has; "
                    f"got {rows.shape[place]} in shape {tuple(rows.shape)}"
                )
        self.sizes = torch.as_tensor(x.shape[place] if n_rows is None else n_rows)
        self.n_data = self.sizes.to(x)
        if weight is not None:
            self.n_data = weight.sum(-1)
            weight = weight / (self.n_data / self.sizes.to(x)).unsqueeze(-1)  # mean 1 over the rows that count
        self._x, self._y, self._weight = x, y, weight

    def tensors(self) -> dict[str, Tensor | None]:
        """The tensors that training reads, by name."""
        return {"x": self._x, "y": self._y, "weight": self._weight}

    def take(self, index: Tensor) -> Batch:
        """The rows at index [*batch_shape, B]."""
        x, y = (take_rows(rows, index, own=self._own) for rows in (self._x, self._y))
        return Batch(x, y, None if self._weight is None else take_rows(self._weight, index, own=self._own))
