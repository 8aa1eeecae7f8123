"""What a target's values allow: its support, and the likelihood of each name for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vmg.likelihoods.scalar import Beta, Binomial, Censored, Gamma, NegativeBinomial, Ordinal, Poisson, ScalarLikelihood

__all__ = [
    "COLLAPSED",
    "HEADROOM",
    "LIKELIHOODS",
    "MOST_LEVELS",
    "PAIRED",
    "Support",
    "find_support",
    "log_shift",
    "make_likelihood",
    "require_targets",
]

Array = NDArray[np.float64]

COLLAPSED = ("student", "normal", "mixture", "lognormal")
"""Likelihoods with normal noise on some scale, whose output layer is integrated out in closed form."""
LIKELIHOODS = (*COLLAPSED, "gamma", "poisson", "negative-binomial", "binomial", "beta", "ordinal", "censored")
PAIRED = ("binomial", "censored")
"""Likelihoods that take two numbers a row."""

FEW_LEVELS = 10  # whole numbers with at most so many different values are grades
ROWS_OF_LEVEL = 5  # on average, of an ordinal target
MOST_LEVELS = 100  # of an ordinal target that is asked for
LARGE_COUNT = 30.0  # whole numbers whose median is above are amounts
HEADROOM = 3.0  # an exponential goes on up to so many times the largest target, and as a line from there


class Support(NamedTuple):
    """What kind of number a target is, and the likelihoods that suit it, the first where nothing speaks for another."""

    kind: str
    candidates: tuple[str, ...]


def find_support(y: Array) -> Support:
    """Look at the values of a target [N]."""
    levels = np.unique(y)
    whole = _whole(levels)
    few = whole and 3 <= len(levels) <= FEW_LEVELS and len(y) >= ROWS_OF_LEVEL * len(levels)
    if levels[0] < 0 or len(levels) < 3:
        return Support("a few whole numbers", ("student", "ordinal")) if few else Support("any number", ("student",))
    if whole and float(np.median(y)) <= LARGE_COUNT:
        if few:
            return Support("a few whole numbers", ("student", "ordinal", "negative-binomial", "poisson"))
        return Support("a count", ("negative-binomial", "poisson", "student"))
    if levels[0] > 0 and levels[-1] < 1:
        return Support("a fraction between 0 and 1", ("student", "beta"))
    if levels[0] > 0 and float(y.std()) < 0.1 * float(y.mean()):
        return Support("an amount that varies little beside its size", ("student",))
    if levels[0] > 0:
        return Support("a positive amount", ("student", "lognormal", "gamma"))
    return Support("an amount that may be zero", ("student", "lognormal"))


def log_shift(y: Array) -> float:
    """What is added to amounts before their logarithm is taken: nothing if all are positive, else half the least."""
    positive = y[y > 0]
    return 0.0 if len(positive) == len(y) else 0.5 * float(positive.min()) if len(positive) else 1.0


def require_targets(name: str, y: Array) -> None:
    """Raise a ValueError unless targets [N] or [N, 2] are such as the likelihood takes."""
    if name in PAIRED and (y.ndim != 2 or y.shape[1] != 2):
        raise ValueError(f"y must have two columns for the likelihood {name}; got shape {y.shape}")
    wanted, holds = "numbers", True
    if name == "binomial":
        wanted = "successes and trials, whole numbers with 0 <= successes <= trials and trials >= 1,"
        holds = _whole(y) and bool((y[:, 0] >= 0).all() and (y[:, 0] <= y[:, 1]).all() and (y[:, 1] >= 1).all())
    elif name == "censored":
        wanted = "bounds with lower <= upper, one of them finite,"
        holds = bool((y[:, 0] <= y[:, 1]).all() and np.isfinite(y).any(1).all())
    elif name == "lognormal":
        wanted, holds = "at least 0, and some above,", bool((y >= 0).all() and (y > 0).any())
    elif name == "gamma":
        wanted, holds = "above 0", bool((y > 0).all())
    elif name in ("poisson", "negative-binomial"):
        wanted, holds = "whole numbers of at least 0", _whole(y) and bool((y >= 0).all())
    elif name == "beta":
        wanted, holds = "inside (0, 1)", bool(((y > 0) & (y < 1)).all())
    elif name == "ordinal":
        wanted, holds = f"at most {MOST_LEVELS} different values", len(np.unique(y)) <= MOST_LEVELS
    if not holds:
        raise ValueError(
            f"y must be {wanted} for the likelihood {name}; got values from {np.min(y):g} to {np.max(y):g}"
        )


def _whole(y: Array) -> bool:
    return bool((np.isfinite(y) & (y == np.floor(y))).all())


def make_likelihood(name: str, y: Array, weight: Array | None) -> ScalarLikelihood:
    """The likelihood of one function for targets [N] or [N, 2], in their own units."""
    require_targets(name, y)
    if name == "binomial":
        share = np.average(y[:, 0], weights=weight) / np.average(y[:, 1], weights=weight)
        return Binomial(_logit(share), int(np.median(y[:, 1])))
    if name == "censored":
        inner = np.where(np.isfinite(y), y, y[:, ::-1]).mean(1)  # the middle, or the bound that there is
        scale = float(np.sqrt(np.average((inner - np.average(inner, weights=weight)) ** 2, weights=weight)))
        return Censored(float(np.average(inner, weights=weight)), scale if scale > 0 else 1.0)
    mean = float(np.average(y, weights=weight))
    if name == "beta":
        return Beta(_logit(mean))
    if name == "ordinal":
        levels, position = np.unique(y, return_inverse=True)
        mass = np.bincount(position, weights=weight, minlength=len(levels)) + 0.5
        return Ordinal(tuple(levels.tolist()), tuple((mass / mass.sum()).tolist()))
    level = mean if mean > 0 else 0.5 / len(y)
    largest = float(y.max())
    if name == "gamma":
        return Gamma(level, HEADROOM * largest)
    return (Poisson if name == "poisson" else NegativeBinomial)(level, HEADROOM * max(largest, 1.0))


def _logit(share: float) -> float:
    share = min(max(float(share), 1e-6), 1 - 1e-6)
    return float(np.log(share / (1 - share)))
