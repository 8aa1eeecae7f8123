"""What every likelihood of one function offers: p(y | f) for training, and its distribution for predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LikelihoodAt", "RateLink", "ScalarLikelihood"]

Array = NDArray[np.float64]

LOWEST = 40.0  # of −f: a rate of e⁻⁴⁰ is none


@dataclass(frozen=True)
class ScalarLikelihood(ABC):
    """p(y | f) of one number f a row, with parameters θ that say how targets scatter around what f says.

    Subclasses are frozen dataclasses; their fields are numbers that the training rows set before training.

    θ has any real numbers. Functions of tensors take f [..., N], y [N] or [N, 2], and θ [P] or [E, P]; those of arrays
    take f [..., N] and θ [P], and give what broadcasts to [..., N].
    """

    name: ClassVar[str]
    discrete: ClassVar[bool] = False
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)

    @property
    def n_parameters(self) -> int:
        """P, the length of θ."""
        return len(self.start())

    @abstractmethod
    def start(self) -> Array:
        """θ [P] to begin training with."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        """log p(y | f), a probability of discrete targets, else a density in the target's own unit."""

    @abstractmethod
    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of log p(y | f) in f."""

    @abstractmethod
    def mean(self, f: Array, theta: Array) -> Array:
        """E[y | f]."""

    @abstractmethod
    def variance(self, f: Array, theta: Array) -> Array:
        """Var[y | f]."""

    @abstractmethod
    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        """P(target's index <= index | f); see :meth:`index`."""

    @abstractmethod
    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        """The smallest index with P(target's index <= index | f) >= q."""

    @abstractmethod
    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        """The index of a draw of y for each f."""

    def index(self, y: Array) -> Array:
        """The index of y: y itself if continuous, else the whole number of the largest possible target up to y."""
        return np.floor(y) if self.discrete else y

    def values(self, index: Array) -> Array:
        """The targets at indices."""
        return index

    def targets(self, y: Array) -> Array:
        """Targets as :meth:`log_prob` takes them, from numbers as predictions give them; NaN for impossible ones."""
        values = np.asarray(y, dtype=np.float64)
        low, high = self.support
        inside = (values >= 0) & (values == np.floor(values)) if self.discrete else (values > low) & (values < high)
        return np.where(inside & np.isfinite(values), values, np.nan)

    def example(self) -> Array:
        """A possible target, as :meth:`log_prob` takes it."""
        return np.asarray(0.0 if self.discrete else 0.5)

    def constants(self) -> dict[str, Any]:
        """The numbers that the likelihood was made with, by the names of its fields; lists for several."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class LikelihoodAt:
    """A likelihood whose parameters are set: what an output layer must know of it."""

    likelihood: ScalarLikelihood
    theta: Tensor

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f)."""
        return self.likelihood.log_prob(f, y, self.theta)

    def derivatives(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of log p(y | f) in f."""
        return self.likelihood.derivatives(f, y, self.theta)


@dataclass(frozen=True)
class RateLink:
    """A positive rate from f: level · exp(f), and from ``ceiling`` on a straight line.

    The ceiling lies above all targets, so that training hardly meets it. Without it the mean of exp(f) would be
    astronomic where f is hardly known.
    """

    level: float
    ceiling: float

    def log_rate(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rate's logarithm and its first and second derivative in f."""
        bend = float(np.log(self.ceiling / self.level))
        over = 1 + (f - bend).clamp_min(0.0)
        value = float(np.log(self.level)) + f.clamp(-LOWEST, bend) + over.log()
        slope = torch.where(f > -LOWEST, 1 / over, torch.zeros_like(f))
        return value, slope, torch.where(f > bend, -slope.square(), torch.zeros_like(f))

    def rate(self, f: Array) -> Array:
        """The rate alone, of arrays."""
        return self.log_rate(torch.as_tensor(f))[0].exp().numpy()

    def chained(self, f: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives in f from those in the rate's logarithm."""
        _, slope, bending = self.log_rate(f)
        return first * slope, second * slope.square() + first * bending
