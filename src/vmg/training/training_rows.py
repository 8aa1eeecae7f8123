"""The training rows: checked once, then taken a minibatch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.math.linalg import all_finite
from vmg.training.batches import take_rows

__all__ = ["Batch", "TrainingRows"]


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
        self._row_shape, self._batch_shape = x.shape[place + 1 :], tuple(batch_shape)

    def tensors(self) -> dict[str, Tensor | None]:
        """What training reads, by name."""
        return {"x": self._x, "y": self._y, "weight": self._weight}

    def batch_shape(self, batch_size: int) -> tuple[int, ...]:
        """The shape of x in a batch of this many rows, or of all rows where there are fewer."""
        return (*self._batch_shape, min(batch_size, int(self.sizes.min())), *self._row_shape)

    def take(self, index: Tensor) -> Batch:
        """The rows at index [*batch_shape, B]."""
        x, y = (take_rows(rows, index, own=self._own) for rows in (self._x, self._y))
        return Batch(x, y, None if self._weight is None else take_rows(self._weight, index, own=self._own))
