"""Positive amounts: the Gamma distribution, whose standard deviation grows with its mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from vmg.likelihoods.scalar.base import RateLink, ScalarLikelihood

__all__ = ["Gamma"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gamma(ScalarLikelihood):
    """y ~ Gamma with mean λ = level · exp(f) and shape k, so variance λ²/k; θ = log k."""

    level: float
    ceiling: float
    name = "gamma"

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
