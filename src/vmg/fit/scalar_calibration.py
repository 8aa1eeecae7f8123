"""What held-out rows say of a likelihood's parameters and of a function's ignorance.

A held-out row has a function with centre μ and *stated* variance u, from members that have not seen the row. Its target
has the density

    p(y) = ∫ p(y | f, θ) N(f; κμ, c u + e) df,

where e is what the mean of few members errs more than that of all will. θ, the sharpness κ and the stretch c maximise
the density of held-out targets: those of random folds and those of whole regions count alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize

from vmg.fit.design import Design
from vmg.fit.scalar_members import MemberFunctions
from vmg.likelihoods.scalar import ScalarLikelihood, Scatter
from vmg.math.scalar_evidence import mean_log_prob

__all__ = ["HeldOutFunctions", "ScalarCalibration", "calibrate_scalar", "held_out_functions", "scalar_scores"]

Array = NDArray[np.float64]

STRETCH_ROWS, SHARPNESS_ROWS, THETA_ROWS = 10.0, 10.0, 1.0
"""Rows that the priors log c ~ N(0, 1), log κ ~ N(0, ½²) and θ ~ N(members' own, 1) count as."""
LIMIT = 20.0  # of |log c| and |log κ|
NODES = 15


class HeldOutFunctions(NamedTuple):
    """Functions at rows that their predictors have not seen [n], with the targets there [n, ...] and weights [n]."""

    loc: Array
    variance: Array
    excess: Array  # of the variance, as few members stand for all
    y: Array
    weight: Array


@dataclass(frozen=True)
class ScalarCalibration:
    """θ of the likelihood, and the factors of the function's centre (sharpness) and variance (stretch)."""

    theta: Array
    sharpness: float
    stretch: float


def held_out_functions(
    found: MemberFunctions,
    index: NDArray[np.int64],
    design: Design,
    remote: Array,
    y: Array,
    weight: Array,
    *,
    regions: bool,
) -> HeldOutFunctions:
    """Functions of the members that have not seen a row, pooled over groups of members."""
    parts: list[tuple[Array, ...]] = []
    for g, group in enumerate(design.groups):
        if group.region != regions:
            continue
        outside = np.flatnonzero(group.held_out[index])
        loc = found.loc[group.members][:, outside]
        between = loc.var(0, ddof=1) if len(loc) > 1 else np.zeros(len(outside))
        variance = (found.variance[group.members][:, outside].mean(0) + between) * remote[g, outside]
        excess = between * max(0.0, 1 / len(loc) - 1 / design.n_members)
        rows = index[outside]
        parts.append((loc.mean(0), variance, excess, y[rows], weight[rows]))
    if not parts:
        return HeldOutFunctions(*(np.zeros(0),) * 5)
    return HeldOutFunctions(*(np.concatenate(piece) for piece in zip(*parts, strict=True)))


def scalar_scores(likelihood: ScalarLikelihood, rows: HeldOutFunctions, calibration: ScalarCalibration) -> Array:
    """Log probability of each held-out target, [n]."""
    values = np.concatenate([[math.log(calibration.stretch), math.log(calibration.sharpness)], calibration.theta])
    return _scores(likelihood, rows, torch.as_tensor(values)).numpy()


def _scores(likelihood: ScalarLikelihood, rows: HeldOutFunctions, values: torch.Tensor) -> torch.Tensor:
    loc, variance, excess, y = (torch.as_tensor(part) for part in rows[:4])
    stretch, sharpness = values[:2].clamp(-LIMIT, LIMIT).exp()
    spread = stretch * variance + excess + 1e-12
    return mean_log_prob(Scatter(likelihood, values[2:]), y, sharpness * loc, spread, NODES)


def calibrate_scalar(
    likelihood: ScalarLikelihood, folds: HeldOutFunctions, regions: HeldOutFunctions | None, start: Array
) -> ScalarCalibration:
    """Fit θ, sharpness and stretch to held-out targets, from the members' own θ [P]."""
    sets = [rows for rows in (folds, regions) if rows is not None and len(rows.loc)]
    shares = [torch.as_tensor(rows.weight / rows.weight.sum()) for rows in sets]
    first, n_rows = torch.as_tensor(start), len(folds.loc)

    def loss(values: Array) -> tuple[float, Array]:
        leaf = torch.as_tensor(values).requires_grad_()
        total = -sum((share @ _scores(likelihood, rows, leaf) for rows, share in zip(sets, shares, strict=True)))
        prior = STRETCH_ROWS * leaf[0] ** 2 + SHARPNESS_ROWS * (2 * leaf[1]) ** 2
        prior = prior + THETA_ROWS * (leaf[2:] - first).square().sum()
        total = total + 0.5 * prior / n_rows
        (gradient,) = torch.autograd.grad(total, leaf)
        return (total.item(), gradient.numpy()) if torch.isfinite(total) else (1e300, np.zeros_like(values))

    found = optimize.minimize(loss, np.concatenate([np.zeros(2), start]), jac=True, method="L-BFGS-B")
    log_stretch, log_sharpness = np.clip(found.x[:2], -LIMIT, LIMIT)
    return ScalarCalibration(found.x[2:], math.exp(log_sharpness), math.exp(log_stretch))
