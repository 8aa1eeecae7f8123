"""Shares: successes among trials (binomial), and fractions between 0 and 1 (beta)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor
from torch.nn.functional import logsigmoid

from vmg.likelihoods.scalar.base import ScalarLikelihood

__all__ = ["Beta", "Binomial"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Binomial(ScalarLikelihood):
    """Successes s among n trials, y = (s, n): s ~ Binomial(n, p), logit p = level + f.

    Predictions are of the share s/n in ``trials`` trials.
    """

    level: float
    trials: int
    name = "binomial"
    support = (0.0, 1.0)
    discrete = True

    def start(self) -> Array:
        return np.zeros(0)

    def targets(self, y: Array) -> Array:
        values = np.asarray(y, dtype=np.float64)
        if values.ndim == 1:
            values = np.stack([np.round(values * self.trials, 9), np.full_like(values, self.trials)], -1)
        possible = (values == np.floor(values)).all(-1) & (values[:, 0] >= 0) & (values[:, 0] <= values[:, 1])
        return np.where(possible[:, None], values, np.nan)

    def example(self) -> Array:
        return np.array([0.0, 1.0])

    def values(self, index: Array) -> Array:
        return index / self.trials

    def index(self, y: Array) -> Array:
        return np.floor(y * self.trials + 1e-9)

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        logit, success, trials = self.level + f, y[..., 0], y[..., 1]
        ways = torch.lgamma(trials + 1) - torch.lgamma(success + 1) - torch.lgamma(trials - success + 1)
        return ways + success * logsigmoid(logit) + (trials - success) * logsigmoid(-logit)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        p, success, trials = torch.sigmoid(self.level + f), y[..., 0], y[..., 1]
        return success - trials * p, -trials * p * (1 - p)

    def chance(self, f: Array) -> Array:
        """p of one trial."""
        return special.expit(self.level + f)

    def mean(self, f: Array, theta: Array) -> Array:
        return self.chance(f)

    def variance(self, f: Array, theta: Array) -> Array:
        return self.chance(f) * (1 - self.chance(f)) / self.trials

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        return stats.binom.cdf(index, self.trials, self.chance(f))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        return stats.binom.ppf(q, self.trials, self.chance(f))

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        return rng.binomial(self.trials, self.chance(f)).astype(np.float64)


@dataclass(frozen=True)
class Beta(ScalarLikelihood):
    """y ~ Beta(μs, (1 − μ)s) with mean μ, logit μ = level + f, and size s; θ = log s."""

    level: float
    name = "beta"
    support = (0.0, 1.0)

    def start(self) -> Array:
        return np.full(1, np.log(4.0))

    def _parts(self, f: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        small = 1e-6  # neither end of the unit interval is reached: the density would be a spike there
        mean, size = torch.sigmoid(self.level + f).clamp(small, 1 - small), theta[..., 0, None].exp()
        return mean, size, mean * size

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        _, size, a = self._parts(f, theta)
        b = size - a
        normaliser = torch.lgamma(size) - torch.lgamma(a) - torch.lgamma(b)
        return normaliser + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        mean, size, a = self._parts(f, theta)
        b = size - a
        first = size * (torch.logit(y) - torch.digamma(a) + torch.digamma(b))
        second = -size.square() * (torch.polygamma(1, a) + torch.polygamma(1, b))
        slope = mean * (1 - mean)
        return first * slope, second * slope.square() + first * slope * (1 - 2 * mean)

    def mean(self, f: Array, theta: Array) -> Array:
        return special.expit(self.level + f).clip(1e-6, 1 - 1e-6)

    def variance(self, f: Array, theta: Array) -> Array:
        mean = self.mean(f, theta)
        return mean * (1 - mean) / (1 + np.exp(theta[0]))

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        mean, size = self.mean(f, theta), np.exp(theta[0])
        return special.betainc(mean * size, (1 - mean) * size, np.clip(index, 0, 1))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        mean, size = self.mean(f, theta), np.exp(theta[0])
        return special.betaincinv(mean * size, (1 - mean) * size, q)

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        mean, size = self.mean(f, theta), np.exp(theta[0])
        return rng.beta(mean * size, (1 - mean) * size)
