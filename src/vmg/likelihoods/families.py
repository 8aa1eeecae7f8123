"""All likelihoods of one function by name: numbers and counts, shares and grades, censored targets.

A new likelihood is a class here, and a place in ``LIKELIHOODS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from vmg.likelihoods.gaussian import LOG_2PI
from vmg.likelihoods.scalar import HEADROOM, MOST_NUMBERS, NamedLikelihood, ScalarLikelihood, TargetKind, is_whole

__all__ = [
    "LIKELIHOODS",
    "Beta",
    "Binomial",
    "Censored",
    "LogNormal",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "scalar_likelihood",
]

Array = NDArray[np.float64]

LOWEST = 40.0  # of −f: a rate of e⁻⁴⁰ is none
MOST_TRIALS = 1_000_000
SMALL_SHARE = 1e-6  # least mean of a share: at an end of the unit interval its density would be a spike
END = 1e4  # stands for the cut beyond the last level: a logistic function of it is 0 or 1
FAR = 1e6  # stands for an infinite bound, in units of the noise


class Student(NamedLikelihood):
    """Numbers whose noise is a Student t."""

    name = "student"
    closed_form = True
    kinds = tuple(TargetKind)


class Normal(NamedLikelihood):
    """Numbers whose noise is normal."""

    name = "normal"
    closed_form = True


class LogNormal(NamedLikelihood):
    """Amounts whose logarithm is a Student t."""

    name = "lognormal"
    closed_form = True
    amounts = True
    requirement = "at least 0, and some above,"
    kinds = (TargetKind.POSITIVE,)

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return bool((y >= 0).all() and (y > 0).any())

    @classmethod
    def shift(cls, y: Array) -> float:
        """Amount that is added before the logarithm: nothing if all are positive, else half the least."""
        positive = y[y > 0]
        return 0.0 if len(positive) == len(y) else 0.5 * float(positive.min()) if len(positive) else 1.0


def _size(theta: Tensor) -> Tensor:
    return theta[..., 0, None].exp()


@dataclass(frozen=True)
class Counts(ScalarLikelihood):
    """Whole numbers from 0 on with mean λ = level · exp(f), and from ``ceiling`` on a straight line in f.

    The ceiling lies above all targets, so that training hardly meets it. Without it the mean of exp(f) would be
    astronomic where f is hardly known. θ, where there is one, is the logarithm of a size.
    """

    level: float
    ceiling: float
    amounts = True
    positive = ("level", "ceiling")
    discrete = True
    requirement = "whole numbers of at least 0"

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return is_whole(y) and bool((y >= 0).all())

    @classmethod
    def for_targets(cls, y: Array, weight: Array | None) -> Counts:
        mean = float(np.average(y, weights=weight))
        return cls(mean if mean > 0 else 0.5 / len(y), HEADROOM * max(float(y.max()), 1.0))

    @property
    def highest(self) -> float:
        return float(np.log(self.ceiling / self.level))

    def log_rate(self, f: Tensor) -> Tensor:
        """log λ."""
        over = 1 + (f - self.highest).clamp_min(0.0)
        return float(np.log(self.level)) + f.clamp(-LOWEST, self.highest) + over.log()

    def chained(self, f: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives in f from those in log λ."""
        bent = f > self.highest
        slope = torch.where(f > -LOWEST, 1 / (1 + (f - self.highest).clamp_min(0.0)), torch.zeros_like(f))
        return first * slope, (second - first * bent) * slope.square()

    def mean(self, f: Array, theta: Array) -> Array:
        """λ, at most the ceiling: no prediction is beyond a multiple of what was seen."""
        return np.minimum(self.log_rate(torch.as_tensor(f)).exp().numpy(), self.ceiling)


@dataclass(frozen=True)
class Poisson(Counts):
    """y ~ Poisson(λ)."""

    name = "poisson"
    start = ()

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        log_rate = self.log_rate(f)
        return y * log_rate - log_rate.exp() - torch.lgamma(y + 1)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        rate = self.log_rate(f).exp()
        return self.chained(f, y - rate, -rate)

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        return stats.poisson, self.mean(f, theta)

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:  # three times as fast as SciPy's own
        return np.where(index < 0, 0.0, special.pdtr(np.maximum(index, 0), self.mean(f, theta)))


@dataclass(frozen=True)
class NegativeBinomial(Counts):
    """y ~ negative binomial with mean λ and variance λ + λ²/r, θ = log r."""

    name = "negative-binomial"
    kinds = (TargetKind.COUNT,)

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        odds = self.log_rate(f) - theta[..., 0, None]  # log λ/r
        r = _size(theta)
        ways = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return ways + y * odds - (y + r) * softplus(odds)

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.sigmoid(self.log_rate(f) - theta[..., 0, None])  # λ/(r + λ)
        total = y + _size(theta)
        return self.chained(f, y - total * share, -total * share * (1 - share))

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        r = np.exp(theta[0])
        return stats.nbinom, r, r / (r + self.mean(f, theta))

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:  # as fast again
        _, r, share = self.distribution(f, theta)
        return np.where(index < 0, 0.0, special.betainc(r, np.maximum(index, 0) + 1, share))


@dataclass(frozen=True)
class Shares(ScalarLikelihood):
    """Targets from 0 to 1 with mean p, logit p = level + f, kept from both ends; θ is log of a size, or nothing."""

    level: float
    support = (0.0, 1.0)

    def mean(self, f: Array, theta: Array) -> Array:
        return special.expit(self.level + f).clip(SMALL_SHARE, 1 - SMALL_SHARE)


def _logit(share: float) -> float:
    return float(special.logit(np.clip(share, SMALL_SHARE, 1 - SMALL_SHARE)))


@dataclass(frozen=True)
class Binomial(Shares):
    """Successes s among n trials, y = (s, n): s ~ Binomial(n, p).

    Predictions are of the share s/n in ``trials`` trials.
    """

    trials: int
    name = "binomial"
    paired = True
    requirement = "successes and trials, whole numbers with 0 <= successes <= trials and trials >= 1,"
    positive = ("trials",)
    discrete = True
    start = ()
    example = (0.0, 1.0)

    def __post_init__(self) -> None:
        if isinstance(self.trials, bool) or not isinstance(self.trials, int) or self.trials > MOST_TRIALS:
            raise ValueError(f"trials must be a whole number up to {MOST_TRIALS:,}; got {self.trials!r:.40}")

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return is_whole(y) and bool((y[:, 0] >= 0).all() and (y[:, 0] <= y[:, 1]).all() and (y[:, 1] >= 1).all())

    @classmethod
    def for_targets(cls, y: Array, weight: Array | None) -> Binomial:
        share = np.average(y[:, 0], weights=weight) / np.average(y[:, 1], weights=weight)
        return cls(_logit(share), int(np.median(y[:, 1])))

    def targets(self, y: Array) -> Array:
        values = np.asarray(y, dtype=np.float64)
        if values.ndim == 1:
            values = np.stack([np.round(values * self.trials, 9), np.full_like(values, self.trials)], -1)
        possible = (values == np.floor(values)).all(-1) & (values[:, 0] >= 0) & (values[:, 0] <= values[:, 1])
        return np.where(possible[:, None], values, np.nan)

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

    def variance(self, f: Array, theta: Array) -> Array:
        return super().variance(f, theta) / self.trials**2

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        return stats.binom, self.trials, self.mean(f, theta)


@dataclass(frozen=True)
class Beta(Shares):
    """y ~ Beta(μs, (1 − μ)s) with mean μ and size s; θ = log s."""

    name = "beta"
    requirement = "inside (0, 1)"
    start = (math.log(4.0),)
    example = 0.5

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return bool(((y > 0) & (y < 1)).all())

    @classmethod
    def for_targets(cls, y: Array, weight: Array | None) -> Beta:
        return cls(_logit(np.average(y, weights=weight)))

    def _parts(self, f: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, size = torch.sigmoid(self.level + f).clamp(SMALL_SHARE, 1 - SMALL_SHARE), _size(theta)
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

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        mean, size = self.mean(f, theta), np.exp(theta[0])
        return stats.beta, mean * size, (1 - mean) * size


@dataclass(frozen=True)
class Ordinal(ScalarLikelihood):
    """P(y <= level j) = logistic(c_j − f) with cuts c_1 < c_2 < ... between L levels (McCullagh 1980).

    θ is c_1 and the logarithms of the L − 2 gaps that follow. Training takes y as positions 0 to L − 1 among
    ``levels``.
    """

    levels: tuple[float, ...]
    shares: tuple[float, ...]  # of each level among the training rows, none zero
    name = "ordinal"
    discrete = True
    requirement = f"at most {MOST_NUMBERS} different values"
    kinds = (TargetKind.GRADES,)
    positive = ("shares",)

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return len(np.unique(y)) <= MOST_NUMBERS

    @classmethod
    def for_targets(cls, y: Array, weight: Array | None) -> Ordinal:
        levels, position = np.unique(y, return_inverse=True)
        mass = np.bincount(position, weights=weight, minlength=len(levels)) + 0.5
        return cls(tuple(levels.tolist()), tuple((mass / mass.sum()).tolist()))

    @property
    def support(self) -> tuple[float, float]:  # type: ignore[override]
        return self.levels[0], self.levels[-1]

    @property
    def start(self) -> tuple[float, ...]:  # type: ignore[override]
        cuts = special.logit(np.cumsum(self.shares)[:-1])
        return *cuts[:1], *np.log(np.diff(cuts))

    def _cuts(self, theta: Tensor) -> Tensor:
        """All cuts with the two ends, [..., L + 1]: those of level j are at j and j + 1."""
        inner = theta[..., :1] + torch.nn.functional.pad(theta[..., 1:].exp().cumsum(-1), (1, 0))
        ends = torch.full_like(inner[..., :1], END)
        return torch.cat([-ends, inner, ends], -1)

    def _around(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        cuts, position = self._cuts(theta), y.long()
        return cuts[..., position] - f, cuts[..., position + 1] - f

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        below, above = self._around(f, y, theta)
        return logsigmoid(above) + logsigmoid(-below) + torch.log1p(-torch.exp(below - above))

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        below, above = (torch.sigmoid(cut) for cut in self._around(f, y, theta))
        return above + below - 1, -above * (1 - above) - below * (1 - below)

    def targets(self, y: Array) -> Array:
        values, levels = np.asarray(y, dtype=np.float64), np.asarray(self.levels)
        position = np.searchsorted(levels, values).clip(max=len(levels) - 1)
        return np.where(levels[position] == values, position, np.nan)

    def index(self, y: Array) -> Array:
        return np.searchsorted(np.asarray(self.levels), y, side="right").astype(np.float64) - 1

    def values(self, index: Array) -> Array:
        return np.asarray(self.levels)[np.asarray(index, dtype=np.int64).clip(0, len(self.levels) - 1)]

    def _below(self, f: Array, theta: Array) -> Array:
        """P(target <= level j), [..., L]."""
        cuts = self._cuts(torch.as_tensor(theta)).numpy()[1:]
        return special.expit(cuts - np.asarray(f)[..., None])

    def _probabilities(self, f: Array, theta: Array) -> Array:
        return np.diff(self._below(f, theta), axis=-1, prepend=0.0)

    def mean(self, f: Array, theta: Array) -> Array:
        return self._probabilities(f, theta) @ np.asarray(self.levels)

    def variance(self, f: Array, theta: Array) -> Array:
        p, levels = self._probabilities(f, theta), np.asarray(self.levels)
        return np.maximum(p @ levels**2 - (p @ levels) ** 2, 0.0)

    def cdf(self, index: Array, f: Array, theta: Array) -> Array:
        position, f = np.broadcast_arrays(np.asarray(index, dtype=np.int64), f)
        below = self._below(f, theta)
        place = position.clip(0, len(self.levels) - 1)
        return np.where(position < 0, 0.0, np.take_along_axis(below, place[..., None], -1)[..., 0])

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        return (self._below(f, theta) < rng.random(np.shape(f))[..., None]).sum(-1).astype(np.float64)


@dataclass(frozen=True)
class Censored(ScalarLikelihood):
    """y = (lower, upper) holds a target level + scale · t with t ~ N(f, σ²); equal bounds are the target; θ = log σ.

    A bound may be infinite. log p is the log density of a target that is seen, and the log probability of an interval.
    """

    level: float
    scale: float
    name = "censored"
    paired = True
    requirement = "bounds with lower <= upper, one of them finite,"
    positive = ("scale",)
    support = (-np.inf, np.inf)
    example = (0.0, 0.0)

    @classmethod
    def accepts(cls, y: Array) -> bool:
        return bool((y[:, 0] <= y[:, 1]).all() and np.isfinite(y).any(1).all())

    @classmethod
    def for_targets(cls, y: Array, weight: Array | None) -> Censored:
        inner = np.where(np.isfinite(y), y, y[:, ::-1]).mean(1)  # the middle, or the bound that there is
        level = float(np.average(inner, weights=weight))
        scale = float(np.sqrt(np.average((inner - level) ** 2, weights=weight)))
        return cls(level, scale if scale > 0 else 1.0)

    def _standard(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds in units of the noise, whether the target is seen, and σ."""
        sigma, bounds = _size(theta), []
        for side in (0, 1):
            infinite = torch.isinf(y[..., side])
            standard = (torch.where(infinite, 0.0, y[..., side]) - self.level) / self.scale
            bounds.append(torch.where(infinite, (2 * side - 1) * FAR, (standard - f) / sigma))
        return bounds[0], bounds[1], y[..., 0] == y[..., 1], sigma

    def log_prob(self, f: Tensor, y: Tensor, theta: Tensor) -> Tensor:
        a, b, seen, sigma = self._standard(f, y, theta)
        density = -0.5 * torch.where(seen, a, 0.0).square() - sigma.log() - 0.5 * LOG_2PI
        return torch.where(seen, density - float(np.log(self.scale)), _log_between(a, b, seen))

    def derivatives(self, f: Tensor, y: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        a, b, seen, sigma = self._standard(f, y, theta)
        log_mass = _log_between(a, b, seen)
        at_a, at_b = (torch.exp(-0.5 * (z.square() + LOG_2PI) - log_mass) for z in (a, b))  # density over mass
        first = (at_a - at_b) / sigma
        second = (a * at_a - b * at_b) / sigma.square() - first.square()
        exact = torch.where(seen, a, 0.0) / sigma
        return torch.where(seen, exact, first), torch.where(seen, -1 / sigma.square(), second)

    def targets(self, y: Array) -> Array:
        values = np.asarray(y, dtype=np.float64)
        return values if values.ndim == 2 else np.stack([values, values], -1)

    def mean(self, f: Array, theta: Array) -> Array:
        return self.level + self.scale * f

    def distribution(self, f: Array, theta: Array) -> tuple[Any, ...]:
        return stats.norm, self.mean(f, theta), self.scale * np.exp(theta[0])


def _log_between(a: Tensor, b: Tensor, seen: Tensor) -> Tensor:
    """log(Φ(b) − Φ(a)), on the side where neither is near one; of rows that are not seen whole."""
    a, b = torch.where(seen, -1.0, a), torch.where(seen, 1.0, b)
    flip = a > 0
    low, high = torch.where(flip, -b, a), torch.where(flip, -a, b)
    at_low, at_high = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    ratio = torch.exp(at_low - at_high).clamp_max(1 - torch.finfo(low.dtype).eps)
    return at_high + torch.log1p(-ratio)


LIKELIHOODS: dict[str, type[NamedLikelihood]] = {
    kind.name: kind
    for kind in (Student, Normal, LogNormal, Ordinal, NegativeBinomial, Poisson, Beta, Binomial, Censored)
}
"""All likelihoods, in the order in which "auto" compares them."""


def scalar_likelihood(name: str) -> type[ScalarLikelihood]:
    """The likelihood with this name, which must have no closed form."""
    kind = LIKELIHOODS[name]
    if not issubclass(kind, ScalarLikelihood):
        raise ValueError(f"the likelihood {name} must be one of a function without a closed form")
    return kind
