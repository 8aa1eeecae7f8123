"""Targets that are known to lie between two bounds: normal noise around f, seen whole or censored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from vmg.likelihoods.scalar.base import ScalarLikelihood

__all__ = ["Censored"]

Array = NDArray[np.float64]

FAR = 1e6  # stands for an infinite bound, in units of the noise


@dataclass(frozen=True)
class Censored(ScalarLikelihood):
    """y = (lower, upper) holds a target level + scale · t with t ~ N(f, σ²); equal bounds are the target; θ = log σ.

    A bound may be infinite. log p is the log density of a target that is seen, and the log probability of an interval.
    """

    level: float
    scale: float
    name = "censored"
    support = (-np.inf, np.inf)

    def start(self) -> Array:
        return np.zeros(1)

    def _standard(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds in units of the noise, whether the target is seen, and σ."""
        sigma = theta[..., 0, None].exp()
        bounds = []
        for side in (0, 1):
            infinite = torch.isinf(y[..., side])
            standard = (torch.where(infinite, 0.0, y[..., side]) - self.level) / self.scale
            bounds.append(torch.where(infinite, (2 * side - 1) * FAR, (standard - f) / sigma))
        return bounds[0], bounds[1], y[..., 0] == y[..., 1], sigma

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        a, b, seen, sigma = self._standard(f, y, theta)
        density = -0.5 * torch.where(seen, a, 0.0).square() - sigma.log() - 0.5 * float(np.log(2 * np.pi))
        return torch.where(seen, density - float(np.log(self.scale)), _log_between(a, b, seen))

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        a, b, seen, sigma = self._standard(f, y, theta)
        log_mass = _log_between(a, b, seen)
        at_a, at_b = (_density_over(z, log_mass) for z in (a, b))
        first = (at_a - at_b) / sigma
        second = (a * at_a - b * at_b) / sigma.square() - first.square()
        exact = torch.where(seen, a, 0.0) / sigma
        return torch.where(seen, exact, first), torch.where(seen, -1 / sigma.square(), second)

    def targets(self, y: Array) -> Array:
        values = np.asarray(y, dtype=np.float64)
        return values if values.ndim == 2 else np.stack([values, values], -1)

    def example(self) -> Array:
        return np.zeros(2)

    def mean(self, f: Array, theta: Array) -> Array:
        return self.level + self.scale * f

    def variance(self, f: Array, theta: Array) -> Array:
        return np.full(np.shape(f), (self.scale * np.exp(theta[0])) ** 2)

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        return special.ndtr((index - self.mean(f, theta)) / (self.scale * np.exp(theta[0])))

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        return self.mean(f, theta) + self.scale * np.exp(theta[0]) * special.ndtri(q)

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        return self.mean(f, theta) + self.scale * np.exp(theta[0]) * rng.standard_normal(np.shape(f))


def _log_between(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    """log(Φ(b) − Φ(a)), on the side where neither is near one; of rows that are not seen whole."""
    a, b = torch.where(seen, -1.0, a), torch.where(seen, 1.0, b)
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    at_low, at_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    ratio = torch.exp(at_low - at_high).clamp_max(1 - torch.finfo(low.dtype).eps)
    return at_high + torch.log1p(-ratio)


def _density_over(z: Tensor, log_mass: Tensor) -> Tensor:
    """Normal density at a bound over the mass between bounds."""
    return torch.exp(-0.5 * z.square() - 0.5 * float(np.log(2 * np.pi)) - log_mass)
