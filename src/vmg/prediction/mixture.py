"""Predictions that are mixtures: of draws of a network, of an atom and the rest, of what missing cells may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vmg.math.distributions import (
    find_quantiles,
    student_cdf,
    student_log_density,
    student_quantile,
    student_variance,
)
from vmg.metrics import row_crps
from vmg.prediction.base import (
    SCORE_LEVELS,
    Array,
    Generator,
    NumberPrediction,
    Rows,
    WrappedPrediction,
    draw_candidates,
    integrated_score,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AtomPrediction", "MixturePrediction", "Prediction"]

LEAST_CHANCE = 1e-6  # of an atom, and of everything else
TINY = np.finfo(np.float64).epsneg
NORMAL_DF = 1e12  # stands for infinite degrees of freedom where a formula needs a number
MOST_KNOTS = 512  # values between which a score is integrated, of all rows together; more are thinned for each row
SCORE_POINTS = 4096  # points of all components together that stand for a mixture in its score
SCORE_ROWS = 500  # rows whose points are in memory together


def _pooled_knots(values: Array) -> Array:
    """Values [Q, N, C] of all components' [..., N, C]: all there are, where few are different, else an even choice."""
    different = np.unique(values)
    if len(different) <= MOST_KNOTS:
        return np.broadcast_to(different[:, None, None], (len(different), *values.shape[-2:]))
    pooled = np.sort(values.reshape(-1, *values.shape[-2:]), axis=0)
    return pooled[np.linspace(0, len(pooled) - 1, 3 * len(SCORE_LEVELS) // 2).round().astype(np.int64)]


@dataclass(frozen=True, repr=False)
class Prediction(NumberPrediction):
    """The target of N rows: for each an equal mixture of S Student t (or Gaussian) components.

    Component s is one function at all rows and outputs, as draws of a network are.
    """

    loc: Array  # centres, [S, N, C]
    scale: Array  # of the noise around them, broadcastable to these
    df: Array  # degrees of freedom, broadcastable too; infinite for Gaussian noise
    squeeze: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.loc.shape[1], self.loc.shape[2]

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        scale, df = (part if part.shape[1] == 1 else part[:, rows] for part in (self.scale, self.df))
        return replace(self, loc=self.loc[:, rows], scale=scale, df=df)

    @property
    def _mean(self) -> Array:
        return self.loc.mean(0)

    @cached_property
    def _aleatoric(self) -> Array:
        variance = student_variance(self.df) * self.scale**2  # of each component, [S or 1, N or 1, C]
        return np.sqrt(np.broadcast_to(variance, self.loc.shape).mean(0))

    @property
    def _epistemic(self) -> Array:
        return self.loc.std(0)

    def _factors(self) -> tuple[Array, int]:
        return (self.loc - self.loc.mean(0)) / np.sqrt(len(self.loc)), len(self.loc)

    def _log_prob(self, y: Array) -> Array:
        joint = student_log_density(y - self.loc, self.scale**2, self.df).sum(-1)  # [S, N]
        return special.logsumexp(joint, axis=0) - np.log(len(self.loc))

    def _hedged(self, log_prob: Array, y: Array) -> Array:
        return log_prob  # as the paper scores it: components have a density everywhere

    def _cdf(self, y: Array) -> Array:
        return student_cdf((y[..., None, :, :] - self.loc) / self.scale, self.df).mean(-3)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        if upper:  # the lower one of the mirrored distribution
            return -replace(self, loc=-self.loc)._quantile(tail)
        values = np.empty((*tail.shape[:-2], *self.shape))
        for place in np.ndindex(tail.shape[:-2]):
            each = self.loc + self.scale * student_quantile(tail[place], self.df)
            values[place] = find_quantiles(self._cdf, tail[place], each.min(0), each.max(0))
        return values

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output: E|target − y| − ½ E|target − target'|.

        Each component counts as equally likely points, the means of as many parts of it with the same probability.
        """
        target, n_points = self._as_rows(y), max(8, SCORE_POINTS // len(self.loc))
        edges = student_quantile(np.linspace(0, 1, n_points + 1)[1:-1, None, None, None], self.df)
        density = np.exp(student_log_density(edges, np.ones(1), self.df))
        df = np.minimum(self.df, NORMAL_DF)
        ratio = (df + edges**2) / (df - 1)
        means = -n_points * np.diff(ratio * density, axis=0, prepend=0.0, append=0.0)  # [M, S or 1, N or 1, C]
        score = np.empty(self.shape)
        for start in range(0, self.n_rows, SCORE_ROWS):
            rows = slice(start, start + SCORE_ROWS)
            scale, means_here = (a if a.shape[-2] == 1 else a[..., rows, :] for a in (self.scale, means))
            points = self.loc[:, rows] + scale * means_here
            score[rows] = row_crps(points.reshape(-1, *points.shape[-2:]), target[rows])
        return self._shaped(score)

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        which = functions.integers(len(self.loc), size=n_samples)
        loc, scale, df = (np.broadcast_to(a, self.loc.shape)[which] for a in (self.loc, self.scale, self.df))
        if noise is None:
            return loc
        return loc + scale * noise.standard_t(np.minimum(df, NORMAL_DF))


@dataclass(frozen=True, repr=False)
class AtomPrediction(WrappedPrediction):
    """The target of N rows: one value that many rows share, such as zero, or else what ``base`` says."""

    atom: float  # the value
    chance: NumberPrediction  # of 1 where the target is the atom and 0 where it is not; its mean is the probability
    base: NumberPrediction  # of the target where it is not the atom
    row_fields = ("chance", "base")

    def widened(self, extra_std: Array) -> Self:
        return replace(self, base=self.base.widened(extra_std))

    @property
    def _support(self) -> tuple[float, float]:
        low, high = self.base._support
        return min(low, self.atom), max(high, self.atom)

    @cached_property
    def _p(self) -> Array:
        """The probability of the atom, neither 0 nor 1: no number of rows shows that."""
        return np.clip(self.chance._mean, LEAST_CHANCE, 1 - LEAST_CHANCE)

    @cached_property
    def _mean(self) -> Array:
        return self._p * self.atom + (1 - self._p) * self.base._mean

    @cached_property
    def _std(self) -> Array:
        away, within = self.base._mean - self._mean, self.base._std
        return np.sqrt(self._p * (self.atom - self._mean) ** 2 + (1 - self._p) * (within**2 + away**2))

    @cached_property
    def _epistemic(self) -> Array:
        """The deviation of p·atom + (1 − p)·m, with p and m unknown and independent."""
        doubt, step = self.chance._epistemic, self.atom - self.base._mean
        return np.sqrt((doubt * step) ** 2 + ((1 - self._p) ** 2 + doubt**2) * self.base._epistemic**2)

    def _factors(self) -> tuple[Array, int]:
        (base, n_shared), (chance, _) = self.base._factors(), self.chance._factors()
        return np.concatenate([(1 - self._p) * base, chance * (self.atom - self.base._mean)]), n_shared

    def _log_prob(self, y: Array) -> Array:
        here = y == self.atom
        elsewhere = np.log1p(-self._p[:, 0]) + self.base._log_prob(y)
        with np.errstate(divide="ignore"):
            return np.where(here[:, 0], np.log(self._atom(y)[:, 0]), elsewhere)

    def _cdf(self, y: Array) -> Array:
        return self._p * (y >= self.atom) + (1 - self._p) * self.base._cdf(y)

    def _atom(self, y: Array) -> Array:
        return self._p * (y == self.atom) + (1 - self._p) * self.base._atom(y)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        """The rest's quantile below the atom or above it, or the atom between the two."""
        at = np.full(self.shape, self.atom)
        upto, share = self.base._cdf(at), 1 - self._p
        below, above = share * (upto - self.base._atom(at)), share * (1 - upto)
        low, high = (1 - tail, tail) if upper else (tail, 1 - tail)
        under = self.base._quantile(np.clip(low / share, TINY, 1 - TINY))
        over = self.base._quantile(np.clip(high / share, TINY, 1 - TINY), upper=True)
        return np.where(low <= below, under, np.where(high <= above, over, self.atom))

    def _score_knots(self) -> Array:
        return np.concatenate([self.base._score_knots(), np.full((1, *self.shape), self.atom)])  # where the cdf jumps

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        base, chance = (part._draw(n_samples, functions, noise) for part in (self.base, self.chance))
        p = chance if noise is None else chance > 0.5
        return p * self.atom + (1 - p) * base


@dataclass(frozen=True, repr=False)
class MixturePrediction(WrappedPrediction):
    """The target of N rows, G of which are mixtures over K candidates: what a row with missing cells may be.

    What the unknown cells leave open counts as ignorance: knowing them would remove it.
    """

    base: NumberPrediction  # of all rows, right for those that are no mixtures
    parts: NumberPrediction  # of the G K candidates
    rows: Rows  # positions of the mixtures, [G]
    weights: Array  # of their candidates, [G, K]; those of a row add up to one

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        place = np.full(self.n_rows, -1)
        place[self.rows] = np.arange(len(self.rows))
        mixed = np.flatnonzero(place[rows] >= 0)
        old = place[rows][mixed]
        candidates = np.arange(self.weights.size).reshape(self.weights.shape)[old].reshape(-1)
        base, parts = self.base.take(rows), self.parts.take(candidates)
        return replace(self, base=base, parts=parts, rows=mixed, weights=self.weights[old])

    def widened(self, extra_std: Array) -> Self:
        parts = self.parts.widened(self._repeated(extra_std[self.rows]))
        return replace(self, base=self.base.widened(extra_std), parts=parts)

    def _each(self, values: Array) -> Array:
        """Numbers of each candidate, [..., G, K, C]."""
        return values.reshape(*values.shape[:-2], *self.weights.shape, values.shape[-1])

    def _average(self, values: Array) -> Array:
        return (self._each(values) * self.weights[..., None]).sum(-2)

    def _repeated(self, values: Array) -> Array:
        """Numbers of mixed rows [..., G, C] for each of their candidates, [..., G K, C]."""
        return np.repeat(values, self.weights.shape[1], axis=-2)

    def _stitched(self, whole: Array, mixed: Array) -> Array:
        values = np.array(whole, dtype=np.float64)
        values[..., self.rows, :] = mixed
        return values

    @cached_property
    def _mean(self) -> Array:
        return self._stitched(self.base._mean, self._average(self.parts._mean))

    @cached_property
    def _std(self) -> Array:
        centre = self._repeated(self._mean[self.rows])
        variance = self._average(self.parts._std**2 + (self.parts._mean - centre) ** 2)
        return self._stitched(self.base._std, np.sqrt(variance))

    @cached_property
    def _aleatoric(self) -> Array:
        return self._stitched(self.base._aleatoric, np.sqrt(self._average(self.parts._aleatoric**2)))

    def _factors(self) -> tuple[Array, int]:
        """Those of the mean over candidates: cells of different rows are filled independently."""
        (base, n_shared), (parts, _) = self.base._factors(), self.parts._factors()
        return self._stitched(base, self._average(parts)), n_shared

    def covariance(self) -> Array:
        """Covariance between the outputs of each row, [N, C, C], with that of the candidates' means."""
        between = self.base.covariance()
        means = self._each(self.parts._mean - self._repeated(self._mean[self.rows]))  # [G, K, C]
        own = self.parts.covariance().reshape(*self.weights.shape, self.n_outputs, self.n_outputs)
        between[self.rows] = np.einsum("gk,gkcd->gcd", self.weights, own)
        between[self.rows] += np.einsum("gk,gkc,gkd->gcd", self.weights, means, means)
        return between

    def _log_prob(self, y: Array) -> Array:
        log_prob = self.base._log_prob(y)
        each = self.parts._log_prob(np.repeat(y[self.rows], self.weights.shape[1], axis=0))
        log_prob[self.rows] = special.logsumexp(each.reshape(self.weights.shape), axis=1, b=self.weights)
        return log_prob

    def _mixed_cdf(self, y: Array) -> Array:
        """P(target <= y) of the mixtures alone, at y [..., G, C]."""
        return self._average(self.parts._cdf(self._repeated(y)))

    def _cdf(self, y: Array) -> Array:
        return self._stitched(self.base._cdf(y), self._mixed_cdf(y[..., self.rows, :]))

    def _atom(self, y: Array) -> Array:
        mixed = self._average(self.parts._atom(self._repeated(y[..., self.rows, :])))
        return self._stitched(self.base._atom(y), mixed)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        whole = self.base._quantile(tail, upper=upper)
        if tail.shape[-2] > 1:  # one for each row
            tail = tail[..., self.rows, :]
        each = self._each(self.parts._quantile(self._repeated(tail) if tail.shape[-2] > 1 else tail, upper=upper))
        low, high = each.min(-2), each.max(-2)  # around that of the mixture, [..., G, C]
        level = np.broadcast_to(1 - tail if upper else tail, low.shape)
        mixed = find_quantiles(self._mixed_cdf, level, low, high)
        return self._stitched(whole, self._snapped(mixed))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, ∫ (P(target <= t) − 1{t >= y})² dt."""
        target = self._as_rows(y)
        knots = _pooled_knots(np.moveaxis(self._each(self.parts._score_knots()), -2, 0))
        mixed = integrated_score(self._mixed_cdf, knots, target[self.rows])
        return self._shaped(self._stitched(self.base.crps(target).reshape(self.shape), mixed))

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        """Draws of all rows with the same functions, each mixed row from a candidate that is drawn by its weight."""
        place, seed = functions.random((n_samples, len(self.rows))), functions.integers(2**63)
        values, each = (part._draw(n_samples, np.random.default_rng(seed), noise) for part in (self.base, self.parts))
        return self._stitched(values, draw_candidates(self._each(each), self.weights, place))
