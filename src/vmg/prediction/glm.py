"""Predictions of targets whose likelihood has no closed form: p(y | f) averaged over a Gaussian function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import special

from vmg.likelihoods.families import Binomial
from vmg.likelihoods.scalar import ScalarLikelihood
from vmg.math.distributions import find_quantiles, hermite_rule
from vmg.prediction.base import Array, Factor, Generator, NumberPrediction, rescaled_factor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GLMPrediction"]

NODES = 32  # of f, by Gauss and Hermite
LEAST_WEIGHT = 1e-9  # of a node: those of less are left out
VAGUE = 1.0  # deviation of f from which on a likelihood may go from one end to the other between two of these nodes
CORE, CORE_END = 80, 2.3  # nodes of a vague f: of the same weight up to so many deviations from its centre,
SIDE, END = 8, 6.0  # and in each tail from there to an end
TAIL = 1e-6  # of probability on each side of the values between which the CRPS of a discrete target is summed
MOST_VALUES = 512  # of a discrete target between its tails; more are scored as if continuous


@cache
def _rules() -> tuple[Array, Array]:
    """Nodes and weights [2, K, 1] of the mean over a standard normal: the usual ones, and none of much weight.

    The latter are means of intervals; usual ones end with weights of zero.
    """
    share = special.ndtr(CORE_END)
    tail = np.linspace(CORE_END, END, SIDE + 1)[1:]
    edges = np.concatenate([-tail[::-1], special.ndtri(np.linspace(1 - share, share, CORE + 1)), tail])
    mass, density = np.diff(special.ndtr(edges)), np.exp(-0.5 * edges**2) / np.sqrt(2 * np.pi)
    vague = np.stack([-np.diff(density) / mass, mass / mass.sum()])
    nodes, weights = hermite_rule(NODES)
    kept = weights > LEAST_WEIGHT
    usual = np.stack([nodes[kept], weights[kept] / weights[kept].sum()])
    return np.pad(usual, ((0, 0), (0, len(mass) - kept.sum())))[..., None], vague[..., None]


@dataclass(frozen=True, repr=False)
class GLMPrediction(NumberPrediction):
    """The target of each of N rows: the likelihood with parameters θ, averaged over f ~ N(loc, function_scale²)."""

    loc: Array  # of f, on the likelihood's own scale, [N]
    function_scale: Array  # [N]
    likelihood: ScalarLikelihood
    theta: Array  # [P]
    factor: Factor  # of f, with one output
    squeeze: bool = True
    row_fields = ("loc", "function_scale", "factor")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.loc), 1

    def with_trials(self, trials: int) -> Self:
        """The share of successes among another number of trials, where the likelihood is binomial."""
        if not isinstance(self.likelihood, Binomial):
            raise ValueError(f"trials are of the likelihood binomial; got {self.likelihood.name}")
        if trials < 1:
            raise ValueError(f"trials must be at least 1; got {trials}")
        return replace(self, likelihood=replace(self.likelihood, trials=int(trials)))

    @property
    def _support(self) -> tuple[float, float]:
        return self.likelihood.support

    @cached_property
    def _rule(self) -> tuple[Array, Array]:
        """Values of f and their weights, [K, N] each: the same of a row whatever others come with it."""
        usual, vague = _rules()
        rule = np.where(self.function_scale > VAGUE, vague, usual)
        rule = rule[:, rule[1].any(-1)]
        return np.minimum(self.loc + self.function_scale * rule[0], self.likelihood.highest), rule[1]

    @cached_property
    def _means(self) -> Array:
        return self.likelihood.mean(self._rule[0], self.theta)

    @cached_property
    def _mean(self) -> Array:
        return (self._rule[1] * self._means).sum(0)[:, None]

    @cached_property
    def _epistemic(self) -> Array:
        return np.sqrt((self._rule[1] * (self._means - self._mean[:, 0]) ** 2).sum(0))[:, None]

    @cached_property
    def _aleatoric(self) -> Array:
        f, weights = self._rule
        return np.sqrt((weights * self.likelihood.variance(f, self.theta)).sum(0))[:, None]

    def _factors(self) -> tuple[Array, int]:
        return rescaled_factor(self.factor(), self._epistemic), 0

    def _as_targets(self, y: ArrayLike) -> Array:
        """Targets [N, 1], or [N, 2] as some likelihoods have them: successes and trials, or bounds."""
        values = np.asarray(y, dtype=np.float64)
        return values if values.shape == (self.n_rows, 2) else self._as_rows(values)

    def _log_prob(self, y: Array) -> Array:
        target = self.likelihood.targets(y if y.shape[1] == 2 else y[:, 0])
        possible = np.asarray(~np.isnan(target.reshape(self.n_rows, -1)).any(-1))
        safe = np.where(possible if target.ndim == 1 else possible[:, None], target, self.likelihood.example)
        f, weights = self._rule
        log_prob = self.likelihood.log_prob(*(torch.as_tensor(part) for part in (f, safe, self.theta))).numpy()
        return np.where(possible, special.logsumexp(log_prob, axis=0, b=weights), -np.inf)

    def _cdf(self, y: Array) -> Array:
        return self._below(self.likelihood.index(y[..., 0]))[..., None]

    def _below(self, index: Array) -> Array:
        """P(target's index <= index) at indices [..., N]."""
        f, weights = self._rule
        return np.minimum((weights * self.likelihood.cdf(index[..., None, :], f, self.theta)).sum(-2), 1.0)

    def _atom(self, y: Array) -> Array:
        if not self.likelihood.discrete:
            return super()._atom(y)
        index = self.likelihood.index(y)
        mass = self._below(index[..., 0]) - self._below(index[..., 0] - 1)
        return np.where(np.isclose(self.likelihood.values(index), y, rtol=1e-9), mass[..., None], 0.0)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        level = np.minimum(1 - tail, 1 - np.finfo(np.float64).epsneg) if upper else tail
        return self.likelihood.values(self._index_quantile(level[..., 0]))[..., None]

    def _index_quantile(self, level: Array) -> Array:
        """Indices of quantiles [..., N].

        That at level q is within √((1 − q)/q) standard deviations below the mean and √(q/(1 − q)) above it (Cantelli).
        """
        level = np.broadcast_to(level, (*level.shape[:-1], self.n_rows))
        mean, std, odds = self._mean[:, 0], self._std[:, 0], np.sqrt(level / (1 - level))
        ends = np.clip([mean - std / odds, mean + std * odds], *self._support)
        low, high = self.likelihood.index(ends)
        if not self.likelihood.discrete:
            return find_quantiles(self._below, level, low, high)
        low, high = low - 1, high + 1
        while (high - low > 1).any():
            middle = np.floor(0.5 * (low + high))
            enough = self._below(middle) >= level
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high

    def _snapped(self, values: Array) -> Array:
        return self.likelihood.values(self.likelihood.index(values)) if self.likelihood.discrete else values

    def _score_knots(self) -> Array:
        """All values of a discrete target, between which the cdf is constant; quantiles of a continuous one."""
        if not self.likelihood.discrete:
            return super()._score_knots()
        low, high = (self._index_quantile(np.full((1, 1), level)) for level in (TAIL, 1 - TAIL))
        if (high - low).max() > MOST_VALUES:
            return super()._score_knots()
        steps = np.arange(int((high - low).max()) + 1)[:, None]
        return self.likelihood.values(np.minimum(low + steps, high))[..., None]

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        factor = self.factor()[..., 0]
        f = self.loc + functions.standard_normal((n_samples, len(factor))) @ factor  # [S, N]
        if noise is None:
            return self.likelihood.mean(f, self.theta)[..., None]
        return self.likelihood.values(self.likelihood.sample(f, self.theta, noise))[..., None]
