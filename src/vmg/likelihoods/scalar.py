"""Likelihoods of one function: p(y | f) for training, and its distribution for predictions.

A likelihood says what it is: its name, the targets that it takes, how it is made for them, for which kinds of targets
"auto" considers it, and what a file keeps of it. :mod:`vmg.likelihoods.families` lists all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["HEADROOM", "LikelihoodAt", "NamedLikelihood", "ScalarLikelihood", "TargetKind", "is_whole"]

Array = NDArray[np.float64]

HEADROOM = 3.0  # an exponential goes on up to so many times the largest target, and as a line from there
MOST_NUMBERS = 100  # of a constant that a file may have, such as the levels of an ordinal target


class TargetKind(Enum):
    """Kind of number that a target is."""

    ANY = "any number"
    GRADES = "one of a few numbers"
    COUNT = "a count"
    FRACTION = "a fraction between 0 and 1"
    NARROW = "an amount that varies little beside its size"
    POSITIVE = "a positive amount"
    AMOUNT = "an amount that may be zero"


def is_whole(y: Array) -> bool:
    """Whether all targets are whole numbers."""
    return bool((np.isfinite(y) & (y == np.floor(y))).all())


class NamedLikelihood:
    """The description of a likelihood. Those with ``closed_form`` are normal noise on some scale and have no more."""

    name: ClassVar[str]
    closed_form: ClassVar[bool] = False
    paired: ClassVar[bool] = False  # takes two numbers a row
    amounts: ClassVar[bool] = False  # works on the logarithm of its targets
    requirement: ClassVar[str] = "numbers"  # of targets, as an error states it
    kinds: ClassVar[tuple[TargetKind, ...]] = ()  # of targets for which "auto" considers it

    @classmethod
    def accepts(cls, y: Array) -> bool:
        """Whether targets [N], or [N, 2] where paired, are such as it takes."""
        return True

    @classmethod
    def require(cls, y: Array) -> None:
        """Raise a ValueError unless the targets are such as the likelihood takes."""
        if cls.paired and (y.ndim != 2 or y.shape[1] != 2):
            raise ValueError(f"y must have two columns for the likelihood {cls.name}; got shape {y.shape}")
        if not cls.accepts(y):
            values = f"{np.min(y):g} to {np.max(y):g}"
            raise ValueError(f"y must be {cls.requirement} for the likelihood {cls.name}; got values from {values}")


@dataclass(frozen=True)
class ScalarLikelihood(NamedLikelihood, ABC):
    """p(y | f) of one number f a row, with parameters θ that say how targets scatter around what f says.

    Subclasses are frozen dataclasses; their fields are numbers that the training rows set before training.

    θ has any real numbers. Functions of tensors take f [..., N], y [N] or [N, 2], and θ [P] or [E, P]; those of arrays
    take f [..., N] and θ [P], and give what broadcasts to [..., N].
    """

    discrete: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ()  # fields that must be above zero
    support: ClassVar[tuple[float, float]] = (0.0, np.inf)
    start: ClassVar[tuple[float, ...]] = (0.0,)  # θ [P] to begin training with
    example: ClassVar[Any] = 0.0  # a possible target, as log_prob takes it

    @property
    def highest(self) -> float:
        """The f from which on predictions stay the same."""
        return np.inf

    @classmethod
    @abstractmethod
    def for_targets(cls, y: Array, weight: Array | None) -> ScalarLikelihood:
        """The likelihood for targets with weights [N], in their own units."""

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        """log p(y | f), a probability of discrete targets, else a density in the target's own unit."""

    @abstractmethod
    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative of log p(y | f) in f."""

    @abstractmethod
    def mean(self, f: Array, theta: Array) -> Array:
        """E[y | f]."""

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        """SciPy's distribution of the target's :meth:`index`, and its parameters; a subclass may do without."""
        raise NotImplementedError

    def variance(self, f: Array, theta: Array) -> Array:
        """Var[y | f]."""
        kind, *parameters = self.distribution(f, theta)
        return kind.var(*parameters)

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        """P(target's index <= index | f); see :meth:`index`."""
        kind, *parameters = self.distribution(f, theta)
        return kind.cdf(index, *parameters)

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        """The index of a draw of y for each f."""
        kind, *parameters = self.distribution(f, theta)
        return kind.rvs(*parameters, size=np.shape(f), random_state=rng).astype(np.float64)

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

    @classmethod
    def from_document(cls, name: str, document: Mapping[str, Any]) -> ScalarLikelihood:
        """The likelihood with these fields, checked; ``name`` is that of its place in a file."""
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
        for key, value in values.items():
            numbers = value if isinstance(value, tuple) else (value,)
            if len(numbers) > MOST_NUMBERS or not all(np.isfinite(float(number)) for number in numbers):
                raise ValueError(f"{name}.{key} must be finite numbers, at most {MOST_NUMBERS}; got {value!r:.40}")
            if key in cls.positive and not all(number > 0 for number in numbers):
                raise ValueError(f"{name}.{key} must be positive; got {value!r:.40}")
        return cls(**values)


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
