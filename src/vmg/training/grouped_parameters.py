"""Small parameters as views into one vector, so that an optimiser's work does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["GroupedParameters"]

SMALL = 16_384
"""Entries up to which a tensor is gathered. Above it one more pass over memory costs more than one more call."""


class GroupedParameters:
    """Trainable parameters regrouped for an optimiser: all small ones as a single vector, large ones as they are.

    While this object is in use the small parameters and their gradients are views; leaving its context
    (:meth:`release`) makes them independent tensors again. ``tensors`` is what the optimiser and the average see.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        trainable = [p for p in parameters if p.requires_grad]
        self._small = [p for p in trainable if p.numel() <= SMALL]
        self._large = [p for p in trainable if p.numel() > SMALL]
        self.tensors: list[nn.Parameter] = list(self._large)
        self._gradient: Tensor | None = None
        if not self._small:
            return
        vector = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in self._small]))
        self._gradient = vector.grad = torch.zeros_like(vector)
        start = 0
        for p in self._small:
            stop = start + p.numel()
            p.data = vector.data[start:stop].view(p.shape)
            p.grad = vector.grad[start:stop].view(p.shape)
            start = stop
        self.tensors.append(vector)

    def __enter__(self) -> GroupedParameters:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def zero_grad(self) -> None:
        """Forget the gradients of the last step."""
        if self._gradient is not None:
            self._gradient.zero_()
        for p in self._large:
            p.grad = None

    def snapshot(self) -> list[Tensor]:
        """The present values."""
        return [t.detach().clone() for t in self.tensors]

    def copy_to(self, values: list[Tensor]) -> None:
        """Write the present values over those of a snapshot, or into an empty one; there is never a second copy."""
        if not values:
            values += self.snapshot()
            return
        with torch.no_grad():
            for tensor, value in zip(self.tensors, values, strict=True):
                value.copy_(tensor)

    def restore(self, values: list[Tensor]) -> None:
        """Go back to the values of a snapshot or an average."""
        with torch.no_grad():
            for tensor, value in zip(self.tensors, values, strict=True):
                tensor.copy_(value)

    def release(self) -> None:
        """Give every parameter its own memory again."""
        for p in self._small:
            p.data = p.data.clone()
            p.grad = None
        self.zero_grad()
