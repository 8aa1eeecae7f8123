"""Noise, ignorance and tails, learned from rows that their predictors have not seen.

A held-out row has a function with centre μ and *stated* variance u: the variance of its output layer's weights and the
disagreement between members that have not seen the row. The target's distribution is, for numbers,

    y ~ Student t with ν degrees of freedom, centre μ, squared scale σ² + c u,

and for a likelihood p(y | f, θ) of one function

    p(y) = ∫ p(y | f, θ) N(f; κμ, c u + e) df,

where e is what the mean of few members errs more than that of all will. The noise σ² or θ, the tails ν, the sharpness κ
and the inflation c maximise the density of held-out targets: those of random folds and those of whole regions count
alike. So c says by how much the members' own ignorance must be inflated to hold where there are no rows. Classes have
κ and c of their logits. Held-out rows can show that variances like theirs are stated too large, and nothing of larger
ones: for numbers, with q above nearly all of theirs and c below one, c u + (1 − c) max(u − q, 0) stands in for c u.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor

from vmg.fit.design import FitRows, InputRange
from vmg.likelihoods.scalar import LikelihoodAt, ScalarLikelihood
from vmg.math.distributions import Array, lowest, student_log_density
from vmg.math.scalar_evidence import mean_log_prob

__all__ = [
    "NORMAL_DEGREES",
    "Calibration",
    "Factors",
    "HeldOut",
    "HeldOutFunctions",
    "HeldOutPredictions",
    "MemberPredictions",
    "calibrate",
    "calibrate_classes",
    "calibrate_scalar",
    "held_out_errors",
    "known_variance",
]

Positions = NDArray[np.int64]

INFLATION_ROWS = 10.0  # that the prior log c ~ N(0, 1) counts as: few held-out rows change c little
FIRST_STEP = 0.5  # of a search, in the logarithm of a factor


# -- rows that members have not seen ----------------------------------------------------------------------------------


class MemberPredictions(NamedTuple):
    """Centre and variance of each member's functions at rows, [E, n, ...], and its parameters [E, ...] of the noise.

    They are the variances of the noise of several outputs, θ of a likelihood, and nothing for classes. A variance of
    classes is that of every logit, [E, n].
    """

    loc: Array
    variance: Array
    parameters: Array

    @classmethod
    def of(cls, loc: Tensor, variance: Tensor, parameters: Tensor) -> MemberPredictions:
        """Predictions from tensors of any precision."""
        return cls(*(part.detach().double().numpy() for part in (loc, variance, parameters)))


class HeldOutFunctions(NamedTuple):
    """Functions at rows that their predictors have not seen [n], with the targets there [n, ...] and weights [n]."""

    position: Positions  # of each row among those of the fit
    loc: Array
    variance: Array
    excess: Array  # of the variance, as few members stand for all
    y: Array
    weight: Array


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions that members made of n rows before they saw them."""

    said: MemberPredictions
    rows: FitRows
    index: Positions  # of the n rows among those of the fit

    @cached_property
    def factor(self) -> Array:
        """How far rows lie outside those that each group sees, as a factor of the variance, [G, n]."""
        x, groups = self.rows.x, self.rows.design.groups
        return np.stack([InputRange.of(x[~one.held_out]).extrapolation_factor(x[self.index]) for one in groups])

    def of_groups(self, *, regions: bool) -> Iterator[tuple[int, Positions, Array, Array, Array]]:
        """Each group's number, places [k] of rows it has not seen, its members' centres and variances, the factor.

        Copies of a row count once.
        """
        for g, group in enumerate(self.rows.design.groups):
            if group.region == regions:
                outside = np.flatnonzero((group.held_out & self.rows.design.first)[self.index])
                loc, variance = (part[group.members][:, outside] for part in (self.said.loc, self.said.variance))
                yield g, outside, loc, variance, self.factor[g, outside]

    def pooled(self, output: int | None = None, *, regions: bool) -> HeldOutFunctions:
        """One function a row, of one output or of the only one: the mean of the members that have not seen the row."""
        rows = self.rows
        y = rows.y if output is None else rows.y[:, output]
        parts = [(np.zeros(0, dtype=np.int64), *(np.zeros(0),) * 3)]
        for _, place, loc, variance, factor in self.of_groups(regions=regions):
            if output is not None:
                loc, variance = loc[..., output], variance[..., output]
            between = loc.var(0, ddof=1) if len(loc) > 1 else np.zeros(len(place))
            excess = between * (1 / len(loc) - 1 / rows.design.n_members)
            parts.append((self.index[place], loc.mean(0), (variance.mean(0) + between) * factor, excess))
        position, loc, variance, excess = (np.concatenate(piece) for piece in zip(*parts, strict=True))
        return HeldOutFunctions(position, loc, variance, excess, y[position], rows.weight[position])


# -- numbers: a Student t ---------------------------------------------------------------------------------------------

FEWEST_DEGREES, MOST_DEGREES = 3.0, 100.0  # of freedom: with fewer a standard deviation says little
NORMAL_DEGREES = 1e6  # a Student t of so many is a normal distribution
DEGREES_ROWS = 3.0  # rows that the prior log ν ~ N(2, 2²) counts as
INFLATION_STARTS = (0.0, 2.0)  # of log c, where the search begins
KNOWN = 0.95  # of held-out rows have a stated variance below q


class HeldOut(NamedTuple):
    """Errors of one output on rows that their predictors have not seen, each [n]."""

    error: Array
    variance: Array
    weight: Array


@dataclass(frozen=True)
class Calibration:
    """How one output's error is distributed: t with ``degrees``, squared scale noise + inflated variance."""

    noise: float
    inflation: float
    degrees: float
    known: float = 0.0  # stated variance, above which none is taken down


def known_variance(*variances: Array) -> float:
    """The stated variance that nearly all held-out rows are below."""
    return float(np.quantile(np.concatenate(variances), KNOWN))


def held_out_errors(rows: HeldOutFunctions, *, shrink: bool) -> HeldOut:
    """Errors of functions at rows that their members have not seen.

    Few members have not seen a row, so their mean errs more than that of all will. With ``shrink``, which is right for
    folds, errors are shrunk by what a mean over all members takes off.
    """
    error = rows.y - rows.loc
    total = float((error**2).sum())
    if shrink and total > 0:
        error = error * math.sqrt(max(0.5, 1 - float(rows.excess.sum()) / total))
    return HeldOut(error, rows.variance, rows.weight)


def calibrate(
    folds: HeldOut, regions: HeldOut | None, least_noise: float, fixed_degrees: float | None = None
) -> Calibration:
    """Fit noise, inflation and degrees to held-out errors, of folds and of regions if there are any.

    The noise is at least what members find on rows they saw. ``fixed_degrees`` leaves the tails as they are asked for.
    """
    sets = [rows for rows in (folds, regions) if rows is not None and len(rows.error)]
    shares = [rows.weight / rows.weight.sum() for rows in sets]
    tiny = np.finfo(np.float64).tiny
    spread = math.sqrt(shares[0] @ folds.error**2)
    middle = max(float(np.median(np.abs(folds.error))), 1e-6 * spread, tiny)
    floor = math.log(max(least_noise, 1e-12 * spread**2, tiny))
    known = known_variance(*(rows.variance for rows in sets))

    def parts(values: Array) -> Calibration:
        log_noise, log_inflation, log_degrees = values
        degrees = FEWEST_DEGREES + math.exp(min(log_degrees, math.log(MOST_DEGREES)))
        inflation = math.exp(min(max(log_inflation, -20), 20))
        return Calibration(math.exp(max(log_noise, floor)), inflation, fixed_degrees or degrees, known)

    def loss(values: Array) -> float:
        found = parts(values)
        fit = 0.0
        for rows, share in zip(sets, shares, strict=True):
            squared_scale = found.noise + found.inflation * rows.variance
            fit += share @ student_log_density(rows.error, squared_scale, found.degrees)
        prior = INFLATION_ROWS * values[1] ** 2 + DEGREES_ROWS * ((values[2] - 2) / 2) ** 2
        return float(0.5 * prior / len(folds.error) - fit)

    first = max(2 * math.log(1.5 * middle), floor)
    starts = np.array([[first, log_inflation, 2.0] for log_inflation in INFLATION_STARTS])
    return parts(lowest(loss, starts, first_step=FIRST_STEP, rounds=300, x_tolerance=1e-3, loss_tolerance=1e-6))


# -- a likelihood of one function -------------------------------------------------------------------------------------

SHARPNESS_ROWS, THETA_ROWS = 10.0, 1.0  # that the priors log κ ~ N(0, ½²) and θ ~ N(members' own, 1) count as
LIMIT = 20.0  # of |log c| and |log κ|
NODES = 15


@dataclass(frozen=True)
class Factors:
    """Factors of a function's or of logits' centre (sharpness) and variance (inflation).

    ``trust`` is that of the log probabilities by boosted trees, which are added to logits.
    """

    sharpness: float = 1.0
    inflation: float = 1.0
    trust: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.sharpness < math.inf and 0 <= min(self.inflation, self.trust) < math.inf):
            raise ValueError(f"a function must have positive factors; got {self}")


def calibrate_scalar(
    likelihood: ScalarLikelihood, folds: HeldOutFunctions, regions: HeldOutFunctions, start: Array
) -> tuple[Array, Factors]:
    """Fit θ [P], sharpness and inflation to held-out targets, from the members' own θ."""
    sets = [[torch.as_tensor(part) for part in rows[1:]] for rows in (folds, regions) if len(rows.loc)]
    first, n_rows = torch.as_tensor(start), len(folds.loc)

    def loss(values: Array) -> tuple[float, Array]:
        leaf = torch.as_tensor(values).requires_grad_()
        inflation, sharpness = leaf[:2].clamp(-LIMIT, LIMIT).exp()
        prior = INFLATION_ROWS * leaf[0] ** 2 + SHARPNESS_ROWS * (2 * leaf[1]) ** 2
        total = 0.5 * (prior + THETA_ROWS * (leaf[2:] - first).square().sum()) / n_rows
        for loc, variance, excess, y, weight in sets:
            spread = inflation * variance + excess + 1e-12
            scores = mean_log_prob(LikelihoodAt(likelihood, leaf[2:]), y, sharpness * loc, spread, NODES)
            total = total - (weight / weight.sum()) @ scores
        (gradient,) = torch.autograd.grad(total, leaf)
        return (total.item(), gradient.numpy()) if torch.isfinite(total) else (1e300, np.zeros_like(values))

    best = optimize.minimize(loss, np.concatenate([np.zeros(2), start]), jac=True, method="L-BFGS-B").x
    log_inflation, log_sharpness = np.clip(best[:2], -LIMIT, LIMIT)
    return best[2:], Factors(math.exp(log_sharpness), math.exp(log_inflation))


# -- classes ----------------------------------------------------------------------------------------------------------

CLASS_DRAWS = 32
REGION_WEIGHT = 0.3  # of all rows in held-out regions, beside all rows of folds
CLASS_PRIOR_ROWS = 3.0  # that the priors of the logarithms of the factors count as
CLASS_SPREAD = np.array([1.0, 2.0, 1.0])  # of these priors; with trees, both kinds start at one half


def calibrate_classes(held: HeldOutPredictions, seed: int, by_trees: Sequence[Array] = ()) -> Factors:
    """Factors under which labels of held-out folds and regions are most probable.

    Networks have logits f with variances, trees log probabilities log q, and the two are pooled in each draw:
    p ∝ exp(κ f + τ log q). ``by_trees`` has log q [n, K] of each group, from trees that have not seen its rows. Trees
    have no trust where held-out rows of folds gain no more than a standard error by them.
    """
    rng, n_classes = np.random.default_rng(seed), held.said.loc.shape[-1]
    y, weight = held.rows.y[held.index], held.rows.weight[held.index]
    sets = []
    for regions in (False, True):
        parts, counts = [], []
        for g, place, loc, variance, factor in held.of_groups(regions=regions):
            if len(place):
                noise = rng.standard_normal((CLASS_DRAWS, len(loc), 1, n_classes))
                deviations = noise * np.sqrt(variance * factor)[..., None]
                log_q = by_trees[g][place] if by_trees else np.zeros((len(place), n_classes))
                chosen = torch.as_tensor(y[place]).expand(CLASS_DRAWS, len(loc), 1, -1)
                quick = (torch.as_tensor(one).float().mT.contiguous() for one in (loc, deviations, log_q))
                parts.append((*quick, chosen))  # classes before rows, [..., K, n]
                counts.append(weight[place])
        if parts:
            sets.append((parts, np.concatenate(counts)))
    n_rows = sets[0][1].sum()
    shares = [counted / counted.sum() for _, counted in sets]

    def scores(values: Array, parts: Sequence[tuple[torch.Tensor, ...]]) -> Array:
        """Log probabilities of the labels under factors whose logarithms are given."""
        factors = _class_factors(values)
        log_p = []
        for logits, deviations, log_q, chosen in parts:
            centre = factors.sharpness * logits + factors.trust * log_q
            drawn = torch.log_softmax(centre + math.sqrt(factors.inflation) * deviations, -2)
            own = drawn.gather(-2, chosen).squeeze(-2)  # [S, E, n]
            log_p.append(own.exp().mean((0, 1)).clamp_min(1e-12).log())
        return torch.cat(log_p).double().numpy()

    def best(*start: float) -> Array:
        """The best logarithms, by a search that begins at the centre of their prior."""

        def loss(values: Array) -> float:
            prior = np.square((values - start) / CLASS_SPREAD[: len(start)]).sum() * CLASS_PRIOR_ROWS / n_rows
            fits = [share @ scores(values, parts) for (parts, _), share in zip(sets, shares, strict=True)]
            return float(0.5 * prior - sum(one * fit for one, fit in zip((1.0, REGION_WEIGHT), fits, strict=False)))

        starts, rounds = np.array([start]), 40 * len(start)
        return lowest(loss, starts, first_step=FIRST_STEP, rounds=rounds, x_tolerance=1e-2, loss_tolerance=1e-5)

    alone = best(0.0, 0.0)
    if not by_trees:
        return _class_factors(alone)
    pooled = best(-math.log(2), 0.0, -math.log(2))
    gain = scores(pooled, sets[0][0]) - scores(alone, sets[0][0])
    error = math.sqrt(shares[0] ** 2 @ (gain - shares[0] @ gain) ** 2)
    return _class_factors(pooled if shares[0] @ gain > error else alone)


def _class_factors(log: Array) -> Factors:
    """Factors with these logarithms, of which trust may be left out."""
    limits = np.array([5.0, 20.0, 5.0])[: len(log)]
    return Factors(*np.exp(np.clip(log, -limits, limits)).tolist())
