"""Predictions that are mixtures: of draws of a network, of an atom and the rest, of what missing cells may be."""

from __future__ import annotations

from collections.abc import Callable
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
from vmg.prediction.base import SCORE_LEVELS, Array, NumberPrediction, Rows, integrated_score

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AtomPrediction", "MixturePrediction", "Prediction"]


LEAST_CHANCE = 1e-6  # of an atom, and of everything else
TINY = np.finfo(np.float64).epsneg

MOST_KNOTS = 512
"""Values between which a score is integrated, of all rows together; more are thinned for each row."""


SCORE_POINTS = 4096
"""Points of all components together that stand for a mixture in its score."""

SCORE_ROWS = 500
"""Rows whose points are in memory together."""


def _finite_part(df: Array) -> Array:
    return np.where(np.isinf(df), 2.0, df)


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

    Parameters
    ----------
    loc : array [S, N, C]
        Centres: posterior draws of the network.
    scale : array broadcastable to loc
        Scale of the noise around each centre.
    df : array broadcastable to loc
        Degrees of freedom; infinite for Gaussian noise.
    squeeze : bool
        Give [N] instead of [N, 1].
    """

    loc: Array
    scale: Array
    df: Array
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

    def _factors(self) -> tuple[Array, Array]:
        centred = (self.loc - self.loc.mean(0)) / np.sqrt(len(self.loc))
        return centred, centred[:0]

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
        levels = tail.reshape(-1, *tail.shape[-2:])
        return np.stack([self._newton(level) for level in levels]).reshape(*tail.shape[:-2], *self.shape)

    def _newton(self, level: Array) -> Array:
        """Quantiles [N, C] at a level [N or 1, C or 1]: Newton's method on the cdf, kept inside a bracket.

        A row that has converged costs no more cdfs.
        """
        loc, scale, df = self.loc, self.scale, self.df
        # a mixture's quantile lies between the smallest and the largest of its components' quantiles
        component = loc + scale * student_quantile(level, df)
        low, high = component.min(0), component.max(0)
        spread = np.sqrt(np.broadcast_to(scale**2, loc.shape).mean(0) + loc.var(0))
        guess = np.clip(loc.mean(0) + spread * special.ndtri(level), low, high)
        moved = high - low
        quantiles, todo = guess.copy(), np.arange(self.n_rows)
        for _ in range(100):
            gap = student_cdf((guess - loc) / scale, df).mean(0) - level
            density = np.exp(student_log_density(guess - loc, scale**2, df)).mean(0)
            low, high = np.where(gap < 0, guess, low), np.where(gap < 0, high, guess)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                newton = guess - gap / density
                good = (newton >= low) & (newton <= high) & (np.abs(newton - guess) < 0.5 * moved)
            better = np.where(good, newton, 0.5 * (low + high))
            guess, moved = better, np.abs(better - guess)
            quantiles[todo] = guess
            rest = (moved > 1e-9 * scale.min(0) + 1e-15 * np.abs(guess)).any(-1)
            if not rest.any():
                break
            todo, low, high, guess, moved = (a[rest] for a in (todo, low, high, guess, moved))
            loc, scale, df = (a if a.shape[1] == 1 else a[:, rest] for a in (loc, scale, df))
            level = level if len(level) == 1 else level[rest]
        return quantiles

    def _score_knots(self) -> Array:
        return _pooled_knots(self.loc + self.scale * student_quantile(SCORE_LEVELS[::8, None], self.df))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output: E|target − y| − ½ E|target − target'|.

        Each component counts as equally likely points, the means of as many parts of it with the same probability.
        """
        target, n_points = self._as_rows(y), max(8, SCORE_POINTS // len(self.loc))
        edges = student_quantile(np.linspace(0, 1, n_points + 1)[1:-1, None, None, None], self.df)
        density = np.exp(student_log_density(edges, np.ones(1), self.df))
        ratio = np.where(np.isinf(self.df), 1.0, (_finite_part(self.df) + edges**2) / (_finite_part(self.df) - 1))
        means = -n_points * np.diff(ratio * density, axis=0, prepend=0.0, append=0.0)  # [M, S or 1, N or 1, C]
        score = np.empty(self.shape)
        for start in range(0, self.n_rows, SCORE_ROWS):
            rows = slice(start, start + SCORE_ROWS)
            scale, means_here = (a if a.shape[-2] == 1 else a[..., rows, :] for a in (self.scale, means))
            points = self.loc[:, rows] + scale * means_here
            points = np.sort(points.reshape(-1, *points.shape[-2:]), axis=0)
            rank = (2 * np.arange(len(points)) + 1 - len(points))[:, None, None] / len(points) ** 2
            score[rows] = np.abs(points - target[rows]).mean(0) - (rank * points).sum(0)
        return self._shaped(score)

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self.loc[rng.integers(len(self.loc), size=n_samples)]

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        which = rng.integers(len(self.loc), size=n_samples)
        loc, scale, df = (np.broadcast_to(a, self.loc.shape)[which] for a in (self.loc, self.scale, self.df))
        noise = rng.standard_normal(loc.shape)
        finite = np.isfinite(df)
        spread = np.ones_like(loc)
        spread[finite] = np.sqrt(rng.chisquare(df[finite]) / df[finite])
        return loc + scale * noise / spread


@dataclass(frozen=True, repr=False)
class AtomPrediction(NumberPrediction):
    """The target of N rows: one value that many rows share, such as zero, or else what ``rest`` says.

    Parameters
    ----------
    atom : float
        The value.
    chance : prediction of N rows
        Of 1 where the target is the atom and 0 where it is not; its mean is the probability.
    rest : prediction of N rows
        Of the target where it is not the atom.
    """

    atom: float
    chance: NumberPrediction
    rest: NumberPrediction

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.rest.squeeze

    @property
    def shape(self) -> tuple[int, int]:
        return self.rest.shape

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        return replace(self, chance=self.chance.take(rows), rest=self.rest.take(rows))

    @property
    def _support(self) -> tuple[float, float]:
        low, high = self.rest._support
        return min(low, self.atom), max(high, self.atom)

    @cached_property
    def _p(self) -> Array:
        """The probability of the atom, neither 0 nor 1: no number of rows shows that."""
        return np.clip(self.chance._mean, LEAST_CHANCE, 1 - LEAST_CHANCE)

    # -- moments ------------------------------------------------------------------------------------------------------

    @cached_property
    def _mean(self) -> Array:
        return self._p * self.atom + (1 - self._p) * self.rest._mean

    @cached_property
    def _std(self) -> Array:
        away, within = self.rest._mean - self._mean, self.rest._std
        return np.sqrt(self._p * (self.atom - self._mean) ** 2 + (1 - self._p) * (within**2 + away**2))

    @cached_property
    def _epistemic(self) -> Array:
        """The deviation of p·atom + (1 − p)·m, with p and m unknown and independent."""
        doubt, step = self.chance._epistemic, self.atom - self.rest._mean
        return np.sqrt((doubt * step) ** 2 + ((1 - self._p) ** 2 + doubt**2) * self.rest._epistemic**2)

    @property
    def _aleatoric(self) -> Array:
        return np.sqrt(np.maximum(self._std**2 - self._epistemic**2, 0.0))

    def _factors(self) -> tuple[Array, Array]:
        shared, own = ((1 - self._p) * part for part in self.rest._factors())
        chance = np.concatenate(self.chance._factors()) * (self.atom - self.rest._mean)
        return shared, np.concatenate([own, chance])

    # -- the distribution ---------------------------------------------------------------------------------------------

    def _log_prob(self, y: Array) -> Array:
        here = y == self.atom
        elsewhere = np.log1p(-self._p[:, 0]) + self.rest._log_prob(y)
        with np.errstate(divide="ignore"):
            return np.where(here[:, 0], np.log(self._atom(y)[:, 0]), elsewhere)

    def _cdf(self, y: Array) -> Array:
        return self._p * (y >= self.atom) + (1 - self._p) * self.rest._cdf(y)

    def _atom(self, y: Array) -> Array:
        return self._p * (y == self.atom) + (1 - self._p) * self.rest._atom(y)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        """The rest's quantile below the atom or above it, or the atom between the two."""
        at = np.full(self.shape, self.atom)
        upto, share = self.rest._cdf(at), 1 - self._p
        below, above = share * (upto - self.rest._atom(at)), share * (1 - upto)
        low, high = (1 - tail, tail) if upper else (tail, 1 - tail)
        under = self.rest._quantile(np.clip(low / share, TINY, 1 - TINY))
        over = self.rest._quantile(np.clip(high / share, TINY, 1 - TINY), upper=True)
        return np.where(low <= below, under, np.where(high <= above, over, self.atom))

    def _score_knots(self) -> Array:
        return np.concatenate([self.rest._score_knots(), np.full((1, *self.shape), self.atom)])  # where the cdf jumps

    # -- draws --------------------------------------------------------------------------------------------------------

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        rest = self.rest._draw(n_samples, rng)
        return np.where(self.chance._draw(n_samples, rng) > 0.5, self.atom, rest)

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        rest, p = self.rest._draw_functions(n_samples, rng), self.chance._draw_functions(n_samples, rng)
        return p * self.atom + (1 - p) * rest


@dataclass(frozen=True, repr=False)
class MixturePrediction(NumberPrediction):
    """The target of N rows, G of which are mixtures over K candidates: what a row with missing cells may be.

    What the unknown cells leave open counts as ignorance: knowing them would remove it.

    Parameters
    ----------
    whole : prediction of N rows
        Right for rows that are no mixtures.
    parts : prediction of G K rows
        Of the candidates.
    rows : array [G]
        Positions of the rows that are mixtures.
    weights : array [G, K]
        Of their candidates; those of a row add up to one.
    """

    whole: NumberPrediction
    parts: NumberPrediction
    rows: Rows
    weights: Array

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.whole.squeeze

    @property
    def shape(self) -> tuple[int, int]:
        return self.whole.shape

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        place = {int(row): k for k, row in enumerate(self.rows)}
        kept = [(new, place[int(old)]) for new, old in enumerate(rows) if int(old) in place]
        new, old = (np.array([pair[k] for pair in kept], dtype=np.int64) for k in (0, 1))
        n_each = self.weights.shape[1]
        flat = (old[:, None] * n_each + np.arange(n_each)).reshape(-1)
        whole, parts = self.whole.take(rows), self.parts.take(flat)
        return replace(self, whole=whole, parts=parts, rows=new, weights=self.weights[old])

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

    # -- moments ------------------------------------------------------------------------------------------------------

    @cached_property
    def _mean(self) -> Array:
        return self._stitched(self.whole._mean, self._average(self.parts._mean))

    @cached_property
    def _std(self) -> Array:
        centre = self._repeated(self._mean[self.rows])
        variance = self._average(self.parts._std**2 + (self.parts._mean - centre) ** 2)
        return self._stitched(self.whole._std, np.sqrt(variance))

    @cached_property
    def _aleatoric(self) -> Array:
        return self._stitched(self.whole._aleatoric, np.sqrt(self._average(self.parts._aleatoric**2)))

    @property
    def _epistemic(self) -> Array:
        return np.sqrt(np.maximum(self._std**2 - self._aleatoric**2, 0.0))

    def _factors(self) -> tuple[Array, Array]:
        """Those of the mean over candidates: cells of different rows are filled independently."""
        both = zip(self.whole._factors(), self.parts._factors(), strict=True)
        shared, own = (self._stitched(whole, self._average(parts)) for whole, parts in both)
        return shared, own

    def covariance(self) -> Array:
        """Covariance between the outputs of each row, [N, C, C], with that of the candidates' means."""
        between = self.whole.covariance()
        means = self._each(self.parts._mean - self._repeated(self._mean[self.rows]))  # [G, K, C]
        own = self.parts.covariance().reshape(*self.weights.shape, self.n_outputs, self.n_outputs)
        between[self.rows] = np.einsum("gk,gkcd->gcd", self.weights, own)
        between[self.rows] += np.einsum("gk,gkc,gkd->gcd", self.weights, means, means)
        return between

    # -- the distribution ---------------------------------------------------------------------------------------------

    @property
    def _support(self) -> tuple[float, float]:
        return self.whole._support

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], all outputs together; finite for every finite y."""
        values = np.asarray(y, dtype=np.float64)
        log_prob = self.whole.log_prob(values)
        each = self.parts.log_prob(np.repeat(values[self.rows], self.weights.shape[1], axis=0))
        log_prob[self.rows] = special.logsumexp(each.reshape(self.weights.shape), axis=1, b=self.weights)
        return log_prob

    def _log_prob(self, y: Array) -> Array:
        return self.log_prob(y)

    def _mixed(self, read: Callable[[NumberPrediction, Array], Array], y: Array) -> Array:
        mixed = read(self.parts, self._repeated(y[..., self.rows, :]))
        return self._stitched(read(self.whole, y), self._average(mixed))

    def _mixed_cdf(self, y: Array) -> Array:
        """P(target <= y) of the mixtures alone, at y [..., G, C]."""
        return self._average(self.parts._cdf(self._repeated(y)))

    def _cdf(self, y: Array) -> Array:
        return self._mixed(lambda prediction, at: prediction._cdf(at), y)

    def _atom(self, y: Array) -> Array:
        return self._mixed(lambda prediction, at: prediction._atom(at), y)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        whole = self.whole._quantile(tail, upper=upper)
        if tail.shape[-2] > 1:  # one for each row
            tail = tail[..., self.rows, :]
        each = self._each(self.parts._quantile(self._repeated(tail) if tail.shape[-2] > 1 else tail, upper=upper))
        low, high = each.min(-2), each.max(-2)  # around that of the mixture, [..., G, C]
        level = np.broadcast_to(1 - tail if upper else tail, low.shape)
        mixed = find_quantiles(self._mixed_cdf, level, low, high)
        return self._stitched(whole, self.parts._snapped(mixed))

    def _snapped(self, values: Array) -> Array:
        return self.parts._snapped(values)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, ∫ (P(target <= t) − 1{t >= y})² dt."""
        target = self._as_rows(y)
        knots = _pooled_knots(np.moveaxis(self._each(self.parts._score_knots()), -2, 0))
        mixed = integrated_score(self._mixed_cdf, knots, target[self.rows])
        return self._shaped(self._stitched(self.whole.crps(target).reshape(self.shape), mixed))

    # -- draws --------------------------------------------------------------------------------------------------------

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._chosen(lambda prediction: prediction._draw(n_samples, rng), rng)

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._chosen(lambda prediction: prediction._draw_functions(n_samples, rng), rng)

    def _chosen(self, draw: Callable[[NumberPrediction], Array], rng: np.random.Generator) -> Array:
        """Draws of all rows, each mixed row from a candidate that is drawn by its weight."""
        values, each = draw(self.whole), self._each(draw(self.parts))  # [S, N, C], [S, G, K, C]
        ends = np.cumsum(self.weights, axis=1)
        place = rng.random((len(values), len(ends)))
        chosen = (place[..., None] >= ends / ends[:, -1:]).sum(-1).clip(max=ends.shape[1] - 1)
        return self._stitched(values, np.take_along_axis(each, chosen[..., None, None], axis=2)[:, :, 0])
