"""Targets of two kinds, numbers and classes: into the network's units, and out of them."""

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

__all__ = ["ClassTargets", "NumericTargets", "Targets"]

Array = NDArray[np.float64]


class Targets(Protocol):
    """What a fit asks of its targets."""

    @property
    def n_targets(self) -> int:
        """Numbers of a row, or classes."""

    @property
    def unit(self) -> Array:
        """What one standard unit of each target is in the target's own, [C]."""

    def encode(self, y: NDArray[Any]) -> Tensor:
        """Targets in the network's units."""

    def log_probs(self, likelihood: Likelihood, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        """log p(y) of every row of several sets, in standard units, each set under its own members.

        ``functions`` [S, sets x members, N, C] are posterior draws at the sets' inputs, padded to the longest set's N.
        """

    def prediction(self, likelihood: Likelihood, functions: Tensor) -> Any:
        """The predictive distribution of rows, from draws [S, members, N, C] of the network's outputs there."""


@dataclass(frozen=True)
class NumericTargets:
    """Numbers, one column or several."""

    scaling: Standardiser
    squeeze: bool
    """Whether a row's target is one number, not a vector of one."""

    @property
    def n_targets(self) -> int:
        return len(self.scaling.scale)

    @property
    def unit(self) -> Array:
        return self.scaling.scale

    def encode(self, y: NDArray[Any]) -> Tensor:
        return torch.as_tensor(self.scaling.transform(y.reshape(len(y), -1)), dtype=torch.float32)

    def log_probs(self, likelihood: Likelihood, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        shape = functions[..., : self.n_targets].shape
        components = [np.broadcast_to(part, shape) for part in _components(likelihood, functions)]
        found = []
        for members, y in zip(_members(functions, targets), targets, strict=True):
            loc, scale, df = (_pool(part[:, members, : len(y)]) for part in components)
            found.append(Prediction(loc, scale, df, squeeze=False).log_prob(y.numpy()))
        return found

    def prediction(self, likelihood: Likelihood, functions: Tensor) -> Prediction:
        loc, scale, df = (_pool(part) for part in _components(likelihood, functions))
        return Prediction(self.scaling.inverse(loc), scale * self.scaling.scale, df, squeeze=self.squeeze)


@dataclass(frozen=True)
class ClassTargets:
    """Classes, in sorted order."""

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
