"""All likelihoods by name: numbers on some scale, counts, amounts, and those of :mod:`vmg.likelihoods.bounded`.

A new likelihood is a class here or there, and a place in ``LIKELIHOODS``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor
from torch.nn.functional import softplus

from vmg.likelihoods.bounded import Beta, Binomial, Censored, Ordinal
from vmg.likelihoods.scalar import HEADROOM, NamedLikelihood, RateLink, ScalarLikelihood, TargetKind, is_whole

__all__ = [
    "LIKELIHOODS",
    "Gamma",
    "LogNormal",
    "NegativeBinomial",
    "Poisson",
    "make_likelihood",
    "scalar_likelihood",
]

Array = NDArray[np.float64]


class Student(NamedLikelihood):
    """Numbers whose noise is a Student t."""

    name = "student"
    closed_form = True
    kinds = tuple(TargetKind)
    first_for = tuple(kind for kind in TargetKind if kind is not TargetKind.COUNT)


class Normal(NamedLikelihood):
    """Numbers whose noise is normal."""

    name = "normal"
    closed_form = True


class Mixture(NamedLikelihood):
    """Numbers whose noise is a mixture of three normal distributions."""

    name = "mixture"
    closed_form = True


class LogNormal(NamedLikelihood):
    """Amounts whose logarithm is a Student t."""

    name = "lognormal"
    closed_form = True
    amounts = True
    requirement = "at least 0, and some above,"
    kinds = (TargetKind.POSITIVE, TargetKind.AMOUNT)

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return bool((y >= 0).all() and (y > 0).any())

    @classmethod
    def shift(cls, y: Array) -> float:
        """Amount that is added before the logarithm: nothing if all are positive, else half the least."""
        positive = y[y > 0]
        return 0.0 if len(positive) == len(y) else 0.5 * float(positive.min()) if len(positive) else 1.0


@dataclass(frozen=True)
class Gamma(ScalarLikelihood):
    """y ~ Gamma with mean λ = level · exp(f) and shape k, so variance λ²/k; θ = log k."""

    level: float
    ceiling: float
    name = "gamma"
    amounts = True
    requirement = "above 0"
    kinds = (TargetKind.POSITIVE,)
    positive = ("level", "ceiling")

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return bool((y > 0).all())

    @classmethod
    def make(cls, y: Array, weight: Array | None) -> Gamma:
        return cls(float(np.average(y, weights=weight)), HEADROOM * float(y.max()))

    @property
    def link(self) -> RateLink:
        """Link of the mean in units of ``level``, so that numbers are near one in any unit."""
        return RateLink(1.0, self.ceiling / self.level)

    def start(self) -> Array:
        return np.zeros(1)

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        log_rate, k, amount = self.link.log_rate(f)[0], theta[..., 0, None].exp(), y / self.level
        shape = k * k.log() - torch.lgamma(k) - float(np.log(self.level))
        return shape - k * log_rate + (k - 1) * amount.log() - k * amount * torch.exp(-log_rate)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        k = theta[..., 0, None].exp()
        excess = k * (y / self.level) * torch.exp(-self.link.log_rate(f)[0])
        return self.link.chained(f, excess - k, -excess)

    def mean(self, f: Array, theta: Array) -> Array:
        return self.level * self.link.rate(f)

    def variance(self, f: Array, theta: Array) -> Array:
        return self.mean(f, theta) ** 2 / np.exp(theta[0])

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        k = np.exp(theta[0])
        return special.gammainc(k, k * np.maximum(index, 0) / self.mean(f, theta))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        k = np.exp(theta[0])
        return special.gammaincinv(k, q) * self.mean(f, theta) / k

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        k = np.exp(theta[0])
        return rng.gamma(k, size=np.shape(f)) * self.mean(f, theta) / k


@dataclass(frozen=True)
class Counts(ScalarLikelihood):
    """Whole numbers from 0 on with mean λ = level · exp(f)."""

    level: float
    ceiling: float
    discrete = True
    amounts = True
    requirement = "whole numbers of at least 0"
    kinds = (TargetKind.GRADES, TargetKind.COUNT)
    positive = ("level", "ceiling")

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return is_whole(y) and bool((y >= 0).all())

    @classmethod
    def make(cls, y: Array, weight: Array | None) -> Counts:
        mean = float(np.average(y, weights=weight))
        return cls(mean if mean > 0 else 0.5 / len(y), HEADROOM * max(float(y.max()), 1.0))

    @property
    def link(self) -> RateLink:
        return RateLink(self.level, self.ceiling)

    def mean(self, f: Array, theta: Array) -> Array:
        return self.link.rate(f)


@dataclass(frozen=True)
class Poisson(Counts):
    """y ~ Poisson(λ), λ = level · exp(f)."""

    name = "poisson"

    def start(self) -> Array:
        return np.zeros(0)

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        log_rate = self.link.log_rate(f)[0]
        return y * log_rate - log_rate.exp() - torch.lgamma(y + 1)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        rate = self.link.log_rate(f)[0].exp()
        return self.link.chained(f, y - rate, -rate)

    def variance(self, f: Array, theta: Array) -> Array:
        return self.link.rate(f)

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        return np.where(index < 0, 0.0, special.pdtr(np.maximum(index, 0), self.link.rate(f)))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        return stats.poisson.ppf(q, self.link.rate(f))

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        return rng.poisson(self.link.rate(f)).astype(np.float64)


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """y ~ negative binomial with mean λ = level · exp(f) and variance λ + λ²/r, θ = log r."""

    name = "negative-binomial"
    first_for = (TargetKind.COUNT,)

    def start(self) -> Array:
        return np.zeros(1)

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        odds = self.link.log_rate(f)[0] - theta[..., 0, None]  # log λ/r
        r = _size(theta)
        ways = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return ways + y * odds - (y + r) * softplus(odds)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.sigmoid(self.link.log_rate(f)[0] - theta[..., 0, None])  # λ/(r + λ)
        total = y + _size(theta)
        return self.link.chained(f, y - total * share, -total * share * (1 - share))

    def variance(self, f: Array, theta: Array) -> Array:
        rate = self.link.rate(f)
        return rate + rate**2 / np.exp(theta[0])

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        r = np.exp(theta[0])
        share = r / (r + self.link.rate(f))
        return np.where(index < 0, 0.0, special.betainc(r, np.maximum(index, 0) + 1, share))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        r = np.exp(theta[0])
        return stats.nbinom.ppf(q, r, r / (r + self.link.rate(f)))

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        r = np.exp(theta[0])
        return rng.poisson(self.link.rate(f) * rng.gamma(r, size=np.shape(f)) / r).astype(np.float64)


def _size(theta: Tensor) -> Tensor:
    return theta[..., 0, None].exp()


LIKELIHOODS: dict[str, type[NamedLikelihood]] = {
    kind.name: kind
    for kind in (
        *(Student, Normal, Mixture, LogNormal),
        *(Gamma, Ordinal, NegativeBinomial, Poisson, Beta, Binomial, Censored),
    )
}
"""All likelihoods, in the order in which "auto" compares them."""


def scalar_likelihood(name: str) -> type[ScalarLikelihood]:
    """The likelihood of one function with this name."""
    kind = LIKELIHOODS[name]
    if not issubclass(kind, ScalarLikelihood):
        raise ValueError(f"the likelihood {name} must be one of a function without a closed form")
    return kind


def make_likelihood(name: str, y: Array, weight: Array | None) -> ScalarLikelihood:
    """The likelihood of one function for targets [N] or [N, 2], in their own units."""
    kind = scalar_likelihood(name)
    kind.require(y)
    return kind.make(y, weight)
