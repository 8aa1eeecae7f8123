"""Counts: Poisson, and negative binomial where they scatter more than that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor
from torch.nn.functional import softplus

from vmg.likelihoods.scalar.base import RateLink, ScalarLikelihood

__all__ = ["NegativeBinomial", "Poisson"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counts(ScalarLikelihood):
    """Whole numbers from 0 on with mean λ = level · exp(f)."""

    level: float
    ceiling: float
    discrete = True

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
