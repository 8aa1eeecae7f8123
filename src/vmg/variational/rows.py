"""Rows of training in the network's units, and targets of two kinds, numbers and classes, into these and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.design import Standardiser
from vmg.likelihoods import Likelihood
from vmg.prediction import ClassPrediction, Prediction

__all__ = ["ClassTargets", "NumericTargets", "Targets", "TrainingSet", "hold_out", "stack"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingSet:
    """Rows of one replica in the network's units."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, C] or, for classes, [N]
    weight: Tensor | None  # [N]
    unit: Array  # what one standard unit of each target is in the target's own, [C]


def hold_out(
    sets: list[TrainingSet], fraction: float, generator: torch.Generator
) -> tuple[list[TrainingSet], list[TrainingSet]]:
    """Every set without a random fraction of its rows, and these rows."""
    inside: list[TrainingSet] = []
    outside: list[TrainingSet] = []
    for rows in sets:
        n = len(rows.x)
        n_held = min(max(1, round(fraction * n)), n - 1)
        if n_held < 1:
            raise ValueError(f"early_stopping needs at least 2 rows to hold one out; got {n}")
        order = torch.randperm(n, generator=generator)
        for target, index in ((outside, order[:n_held]), (inside, order[n_held:])):
            w = None if rows.weight is None else rows.weight[index]
            target.append(TrainingSet(rows.x[index], rows.y[index], w, rows.unit))
    return inside, outside


def stack(sets: list[TrainingSet], n_members: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Training sets as tensors of [replicas, N, ...], padded to one length, with the row counts where these differ."""
    if len(sets) == 1:
        only = sets[0]
        return only.x, only.y, only.weight, None
    longest = max(len(s.x) for s in sets)

    def pad(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])

    def gather(parts: list[Tensor]) -> Tensor:
        return torch.stack([pad(part) for part in parts]).repeat_interleave(n_members, 0)

    weights = [s.weight for s in sets if s.weight is not None]
    sizes = torch.tensor([len(s.x) for s in sets]).repeat_interleave(n_members)
    return gather([s.x for s in sets]), gather([s.y for s in sets]), gather(weights) if weights else None, sizes


@dataclass(frozen=True)
class NumericTargets:
    """Numbers, one column or several."""

    scaling: Standardiser
    squeeze: bool
    """Whether a row's target is one number, not a vector of one."""

    @property
    def n_targets(self) -> int:
        """Numbers of a row."""
        return len(self.scaling.scale)

    @property
    def unit(self) -> Array:
        """Size of one standard unit of each target in the target's own unit, [C]."""
        return self.scaling.scale

    def encode(self, y: NDArray[Any]) -> Tensor:
        """Targets in the network's units."""
        return torch.as_tensor(self.scaling.transform(y.reshape(len(y), -1)), dtype=torch.float32)

    def log_probs(self, likelihood: Likelihood, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        """log p(y) of every row of several sets, in standard units, each set under its own members.

        ``functions`` [S, sets x members, N, C] are posterior draws at the sets' inputs, padded to the longest set's N.
        """
        shape = functions[..., : self.n_targets].shape
        components = [np.broadcast_to(part, shape) for part in _components(likelihood, functions)]
        found = []
        for members, y in zip(_members(functions, targets), targets, strict=True):
            loc, scale, df = (_pool(part[:, members, : len(y)]) for part in components)
            found.append(Prediction(loc, scale, df, squeeze=False).log_prob(y.numpy()))
        return found

    def prediction(self, likelihood: Likelihood, functions: Tensor) -> Prediction:
        """The predictive distribution of rows, from draws [S, members, N, C] of the network's outputs there."""
        loc, scale, df = (_pool(part) for part in _components(likelihood, functions))
        return Prediction(self.scaling.inverse(loc), scale * self.scaling.scale, df, squeeze=self.squeeze)


@dataclass(frozen=True)
class ClassTargets:
    """Classes, in sorted order, with the methods of :class:`NumericTargets`."""

    classes: NDArray[Any]

    @property
    def n_targets(self) -> int:
        return len(self.classes)

    @property
    def unit(self) -> Array:
        return np.ones(1)

    def encode(self, y: NDArray[Any]) -> Tensor:
        return torch.as_tensor(np.searchsorted(self.classes, y), dtype=torch.int64)

    def log_probs(self, likelihood: Likelihood, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        probabilities = torch.softmax(functions, -1).numpy()  # [S, replicas, N, K]
        found = []
        for members, y in zip(_members(functions, targets), targets, strict=True):
            mean = probabilities[:, members].mean((0, 1))[np.arange(len(y)), y.numpy()]
            found.append(np.log(np.maximum(mean, np.finfo(np.float64).tiny)))
        return found

    def prediction(self, likelihood: Likelihood, functions: Tensor) -> ClassPrediction:
        return ClassPrediction(torch.softmax(functions, -1).flatten(0, 1).numpy(), self.classes)


Targets = NumericTargets | ClassTargets


def _members(functions: Tensor, targets: list[Tensor]) -> list[slice]:
    """The replicas of each set."""
    each = functions.shape[1] // len(targets)
    return [slice(k * each, (k + 1) * each) for k in range(len(targets))]


@runtime_checkable
class HasComponents(Protocol):
    """A likelihood of numbers whose p(y | f) is a Student-t or, with infinite degrees of freedom, a Gaussian."""

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and degrees of freedom."""


def _components(likelihood: Likelihood, functions: Tensor) -> tuple[Array, Array, Array]:
    """Centre, scale and df of the mixture, in standard units, members not yet pooled: [S, E, N, C]."""
    if not isinstance(likelihood, HasComponents):
        raise TypeError(f"likelihood must have components; got {type(likelihood).__name__}")
    with torch.no_grad():
        loc, scale, df = (part.double().numpy() for part in likelihood.components(functions))
    shape = (len(functions), loc.shape[1], 1, 1)
    scale, df = (np.broadcast_to(part, np.broadcast_shapes(part.shape, shape)) for part in (scale, df))
    return loc, scale, df


def _pool(values: Array) -> Array:
    """Draws of all members as one mixture: [S, E, ...] -> [S E, ...]."""
    return values.reshape(-1, *values.shape[2:])
