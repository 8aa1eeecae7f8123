"""Members of ensembles as replicas in one module, and their rows.

The E members of G groups of rows are E·G replicas: replica e·G + g is member e of group g. Groups are padded to the
longest with rows of weight zero. A single table is the case G = 1.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.nn.anchored import AnchoredFeatures

__all__ = ["Batch", "GroupRows", "Members", "mean_score"]

Array = NDArray[np.float64]


class Members(nn.Module, ABC):
    """Networks that train side by side, with output layers that are conditioned on rows, not trained.

    Every parameter and buffer has the replicas first. Rows are x [n, D], the same for all replicas, or [R, n, D].
    """

    features: AnchoredFeatures

    @abstractmethod
    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior of each replica's hidden layers up to a constant, and the part that is the data's: [R] each."""

    @abstractmethod
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> Any:
        """Predict rows x by each replica, conditioned on the rows that it has ``seen`` [R, n].

        Gives a named tuple of arrays, replicas first, among them ``loc`` and ``variance`` [R, n, ...].
        """

    @abstractmethod
    def score(self, predictions: Any, y: Tensor, weight: Tensor) -> Array:
        """Score of each group [G] on held-out rows, whose weights [E, G, n] are zero for rows that were seen."""

    def part(self, own: slice | Tensor) -> Members:
        """Some of the replicas in a module of their own."""
        names = np.asarray(self.features.member_activations)[own]
        return _changed(self, lambda tensors: tensors[0][own].clone(), [self], names.tolist())

    @staticmethod
    def join(groups: Sequence[Members]) -> Members:
        """One module with the members of all groups, in the order of replicas."""
        if len(groups) == 1:
            return groups[0]
        names = [name for name in groups[0].features.member_activations for _ in groups]
        return _changed(groups[0], lambda tensors: torch.stack(tensors, 1).flatten(0, 1), groups, names)


def _changed(
    first: Members, change: Callable[[list[Tensor]], Tensor], modules: Sequence[Members], activations: Sequence[str]
) -> Members:
    """A copy of a module with ``change`` of the parameters and buffers of all modules in place of its own."""
    result = copy.deepcopy(first)
    for module, *sources in zip(result.modules(), *(one.modules() for one in modules), strict=True):
        for name, _ in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(change([one.get_parameter(name).detach() for one in sources])))
        for name, _ in list(module.named_buffers(recurse=False)):
            setattr(module, name, change([one.get_buffer(name) for one in sources]))
    result.features.name_members(activations)
    return result


def mean_score(values: Tensor, weight: Tensor) -> Array:
    """Weighted mean over members and rows of each group [G], for values [E·G, n] and weights [E, G, n]."""
    counted = torch.where(weight > 0, weight * values.unflatten(0, weight.shape[:2]), 0.0).sum((0, 2))
    mean = (counted / weight.sum((0, 2))).double().numpy()
    return np.where(np.isfinite(mean), mean, -np.inf)


# -- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRows:
    """Rows of one group: standardised inputs [N, D], targets [N, ...] and weights [N].

    ``held_out`` [E, N] are the rows that a member must not see; none at all skips the held-out part of training.
    ``stopping_members`` are those whose held-out rows decide when to stop.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    held_out: NDArray[np.bool_]
    stopping_members: Sequence[int]
    generator: torch.Generator

    @property
    def seen(self) -> Tensor:
        """Weights of the rows that each member may see, [E, N]."""
        return self.weight * ~torch.as_tensor(self.held_out)

    @property
    def stopping(self) -> Tensor:
        """Weights of the rows that say when to stop, in each member that has not seen them, [E, N]."""
        weight, members = torch.zeros(self.held_out.shape), list(self.stopping_members)
        weight[members] = self.weight * torch.as_tensor(self.held_out[members])
        return weight


@dataclass(frozen=True)
class Batch:
    """Rows of G groups, padded: x [G, N, D] and y [G, N, ...].

    Weights in E members [E, G, N] are of all rows, of those that a member sees, and of those that say when to stop.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    seen: Tensor
    stopping: Tensor

    @classmethod
    def of(cls, groups: Sequence[GroupRows]) -> Batch:
        """Pad the groups to the longest."""
        n_rows = max(len(group.x) for group in groups)

        def padded(rows: Tensor, axis: int) -> Tensor:
            missing = n_rows - rows.shape[axis]
            return nn.functional.pad(rows, [0, 0] * (rows.dim() - 1 - axis) + [0, missing]) if missing else rows

        return cls(
            _stack([padded(group.x, 0) for group in groups], 0),
            _stack([padded(group.y, 0) for group in groups], 0),
            _stack([padded(group.weight, 0).expand(len(group.held_out), -1) for group in groups], 1),
            _stack([padded(group.seen, 1) for group in groups], 1),
            _stack([padded(group.stopping, 1) for group in groups], 1),
        )

    @property
    def n_groups(self) -> int:
        """G."""
        return len(self.x)

    def of_members(self, own: slice) -> Batch:
        """The weights of some members; all of them still say when to stop."""
        return replace(self, weight=self.weight[own], seen=self.seen[own])

    def of_groups(self, groups: Tensor) -> Batch:
        """The rows of some groups."""
        weights = (part[:, groups] for part in (self.weight, self.seen, self.stopping))
        return Batch(self.x[groups], self.y[groups], *weights)

    def of_rows(self, index: Tensor) -> Batch:
        """Some rows, those that are seen standing for all."""
        share = self.x.shape[1] / len(index)
        parts = (self.weight[..., index], self.seen[..., index] * share, self.stopping[..., index])
        return Batch(self.x[:, index], self.y[:, index], *parts)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """x and y for all replicas: of one group [N, ...], of several [R, N, ...]."""
        if self.n_groups == 1:
            return self.x[0], self.y[0]
        n_members = len(self.weight)
        x, y = (part.expand(n_members, *part.shape).flatten(0, 1) for part in (self.x, self.y))
        return x, y

    def weighted(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, y and weights [R, n] of the rows whose ``weight`` [E, G, N] counts; others take no time."""
        (x, y), by_replica = self.inputs(), weight.flatten(0, 1)
        if self.n_groups == 1:
            return x, y, by_replica
        n_rows = int((by_replica > 0).sum(-1).max())
        order = torch.argsort(by_replica == 0, dim=-1, stable=True)[:, :n_rows]
        replica = torch.arange(len(order)).unsqueeze(-1)
        return x[replica, order], y[replica, order], by_replica.gather(1, order)


def _stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Stack tensors; one alone is not copied."""
    return parts[0].unsqueeze(axis) if len(parts) == 1 else torch.stack(list(parts), axis)
