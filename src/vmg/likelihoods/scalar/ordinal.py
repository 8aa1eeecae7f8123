"""A few ordered values, such as grades: cumulative logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor
from torch.nn.functional import logsigmoid

from vmg.likelihoods.scalar.base import ScalarLikelihood

__all__ = ["Ordinal"]

Array = NDArray[np.float64]

END = 1e4  # stands for the cut beyond the last level: a logistic function of it is 0 or 1


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

    @property
    def support(self) -> tuple[float, float]:  # type: ignore[override]
        return self.levels[0], self.levels[-1]

    def start(self) -> Array:
        cuts = special.logit(np.cumsum(self.shares)[:-1])
        return np.append(cuts[:1], np.log(np.diff(cuts)))

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

    def quantile(self, q: Array, f: Array, theta: Array) -> Array:
        return (self._below(f, theta) < np.asarray(q)[..., None]).sum(-1).astype(np.float64)

    def sample(self, f: Array, theta: Array, rng: np.random.Generator) -> Array:
        return self.quantile(rng.random(np.shape(f)), f, theta)
