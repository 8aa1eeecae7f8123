"""What a fit chooses on held-out training rows before it trains on all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from vmg.fit.variational.fitter import Fitter
    from vmg.fit.variational.training_sets import TrainingSet

__all__ = ["Choice", "Given", "Search", "per_replica"]

Choice = Any
"""Whatever a search chooses for one network, such as a limit on noise or a dropout rate; factories read it."""


class Search(Protocol):
    """Chooses something for every network of a fit."""

    @property
    def example(self) -> Choice:
        """Any choice that may be made, for a network of which only the shapes matter."""

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[Choice]]:
        """The choice of each member, for each training set; a set's own rows alone decide."""


@dataclass(frozen=True)
class Given:
    """No search: the same choice for all."""

    example: Choice = None

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[Choice]]:
        return [[self.example] * fitter.n_members for _ in sets]


def per_replica(values: Sequence[float]) -> float | torch.Tensor:
    """Numbers of all replicas as a layer takes them: one where all are the same, else a tensor."""
    if len(set(values)) == 1:
        return float(values[0])
    return torch.as_tensor(values, dtype=torch.get_default_dtype())
