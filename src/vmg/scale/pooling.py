"""Groups that share what they have in common: hidden layers, and a learned prior of their output layers.

The output weights of group g are w_g ~ N(μ, (λ_g diag(a))⁻¹) with noise precision λ_g ~ Gamma(c, r). μ says what groups
have in common, a how much they differ (one precision for hidden units, inputs and the constant, each with a Gamma
prior), c and r how their noise differs. All of it is learned from the groups (empirical Bayes): by expectation
maximisation for μ and a, by the evidence for c and r. A group of few rows stays near μ and says how unsure that is; a
group of many goes its own way. A group of no rows is the prior itself.

The prior's mean enters as statistics of rows that were never seen: moment aμ and square μᵀaμ. So a group's model is an
ordinary one, with exact updates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from vmg.estimators import TableClassifier, TableRegressor
from vmg.estimators.base import draw_seed
from vmg.fit.calibration import Calibration, HeldOut, calibrate
from vmg.fit.choice import (
    FEWEST_ROWS,
    LikelihoodChoice,
    TargetFitter,
    before_transform,
    choose_target,
    choose_transform,
)
from vmg.fit.design import InputRange, Size, Standardiser, TrainingPlan, squash, use_threads
from vmg.fit.gaussian import RegressionEnsemble, RegressionMembers
from vmg.math.evidence import LinearPosterior, NoisePrior, RowStatistics, condition, group_precision, row_statistics

__all__ = ["Estimator", "GroupPrior", "GroupTable", "Pool", "choose_group_likelihood", "fit_pool", "learn_prior"]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

HELD_OUT_SHARE = 0.25
TRUNK_ROWS = 65_536
LEARNING_CELLS = 2**25  # of the statistics that the prior is learned from; more groups add little to it
ROUNDS, STEPS = 3, 10
SHAPE, RATE = 1.0, 0.5  # of the Gamma prior of a, as in the paper
LEAST_NOISE = 0.25  # of a group's own estimate
CALIBRATION_ROWS = 20_000
PILOT_GROUPS = 5  # the largest, which say whether the logarithm of the target is predicted better
PILOT_SIZE = Size((40,), ("relu", "tanh"), 6, TrainingPlan(max_steps=400, patience=20, refit_steps=10, rate=0.08))
STUDENT = LikelihoodChoice("student", "groups are pooled")


@dataclass(frozen=True)
class GroupTable:
    """Features [n, D] and targets [n] of one group, and the parameters of its estimator."""

    X: Array
    y: NDArray[Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class GroupPrior:
    """The prior of a group's output layer: μ [E, D], log a [E, K] of K kinds of features, and Gamma(c, r)."""

    mean: Tensor
    log_precision: Tensor
    group_sizes: tuple[int, ...]
    noise: NoisePrior

    def with_mean(self, rows: RowStatistics) -> RowStatistics:
        """Statistics [..., E, D, D] after which a prior around zero gives the posterior of a prior around μ."""
        a_mu = group_precision(self.log_precision, self.group_sizes) * self.mean
        square = (a_mu * self.mean).sum(-1)[..., None, None]
        return RowStatistics(rows.gram, rows.moment + a_mu.unsqueeze(-1), rows.square + square, rows.n_rows)

    def posterior(self, rows: RowStatistics) -> LinearPosterior:
        """Posterior of a group's output layer from the statistics of its rows."""
        precision = group_precision(self.log_precision, self.group_sizes)
        return condition(self.with_mean(rows), precision, self.noise)


@dataclass(frozen=True)
class Pool:
    """Shared parts of groups: an estimator whose hidden layers and units they take, a prior, and a calibration."""

    fitted: TableRegressor
    prior: GroupPrior
    calibration: Calibration  # of errors in units of a group's own noise

    def estimator_of(self, table: GroupTable) -> TableRegressor:
        """The model of a group, as ``fit`` would leave it; without rows, that of groups that are not known."""
        shared, ensemble = self.fitted, self.fitted.ensemble_
        assert isinstance(ensemble, RegressionEnsemble)
        y = before_transform(shared.target_transform_, table.y.astype(np.float64))
        scaled, members = shared.target_scaling_.transform(y[:, None]), copy.deepcopy(ensemble.members)
        rows = _statistics(members, squash(shared.input_scaling_.transform(table.X)), scaled)
        noise = self.prior.posterior(rows).noise_variance.numpy()  # [E, 1]
        members.head.noise_prior = self.prior.noise
        with torch.no_grad():
            members.head.log_precision.copy_(self.prior.log_precision)
            for buffer, part in zip(members.head.statistics, self.prior.with_mean(rows), strict=True):
                buffer.copy_(part)
        learned, unit = self.calibration, float(noise.mean())
        calibration = replace(learned, noise=learned.noise * unit, known=learned.known * unit)
        estimator = TableRegressor(**{**table.options, "noise": "constant"})
        left = {name: value for name, value in vars(shared).items() if name not in shared.get_params(deep=False)}
        left["ensemble_"] = replace(ensemble, members=members, member_noise=noise, calibrations=(calibration,))
        left["seed_"] = draw_seed(estimator.random_state)
        estimator.__dict__.update(left)
        return estimator


def choose_group_likelihood(
    X: Array, y: Array, groups: Sequence[NDArray[np.int64]], asked: str, seed: int
) -> LikelihoodChoice:
    """The likelihood of pooled groups: as asked, or "lognormal" where it is better than "student".

    The largest groups compare the two on held-out rows, as :func:`vmg.fit.choice.choose_target` does for one table, and
    the one that groups with most rows take is used. Where all groups are small, they are compared as one.
    """
    if asked != "auto":
        return LikelihoodChoice(asked, "as asked")
    if (y < 0).any():
        return STUDENT
    largest = [rows for rows in sorted(groups, key=len, reverse=True)[:PILOT_GROUPS] if len(rows) >= FEWEST_ROWS]
    fitter, for_logarithm = TargetFitter(lambda n_rows: PILOT_SIZE, seed), 0
    pilots = largest or [np.concatenate(groups)]
    for rows in pilots:
        chosen = choose_target(Standardiser.fit(X[rows]).transform(X[rows]), y[rows], None, fitter)
        for_logarithm += len(rows) if chosen.likelihood == "lognormal" and chosen.model.atom is None else 0
    if 2 * for_logarithm <= sum(map(len, pilots)):
        return STUDENT
    return LikelihoodChoice("lognormal", "the logarithm of the target is predicted better in the largest groups")


def fit_pool(tables: Sequence[GroupTable], choice: LikelihoodChoice, options: Mapping[str, Any], seed: int) -> Pool:
    """Learn what groups share: hidden layers on three quarters of each group's rows, calibration on the last."""
    rng = np.random.default_rng(seed)
    X, y = np.concatenate([t.X for t in tables]), np.concatenate([t.y for t in tables]).astype(np.float64)
    transform = choose_transform(choice.name, y, rectify=options.get("likelihood", "auto") == "auto")
    y = before_transform(transform, y)
    units = Standardiser.fit(X), Standardiser.fit(y[:, None])
    kept = [rng.permutation(len(t.y)) >= round(HELD_OUT_SHARE * len(t.y)) for t in tables]
    inside = rng.permutation(np.flatnonzero(np.concatenate(kept)))[:TRUNK_ROWS]
    estimator = TableRegressor(**{**options, "likelihood": "student", "noise": "constant", "random_state": seed})
    estimator.fit(X[inside], y[inside], scaling=units)
    assert isinstance(estimator.ensemble_, RegressionEnsemble)
    trunk, x = estimator.ensemble_.members, squash(units[0].transform(X))
    estimator.ensemble_ = replace(estimator.ensemble_, input_range=InputRange.of(x))
    estimator.likelihood_, estimator.likelihood_reason_ = choice.name, choice.reason
    estimator.target_transform_ = transform
    ends = np.cumsum([len(t.y) for t in tables])[:-1]
    parts = list(zip(np.split(x, ends), np.split(units[1].transform(y[:, None]), ends), kept, strict=True))
    n_learned = max(2, LEARNING_CELLS // (trunk.features.n_members * trunk.features.n_features**2))
    chosen = rng.permutation(len(tables))[:n_learned]
    with use_threads(1):  # groups are small
        prior = learn_prior([_statistics(trunk, x[own], y[own]) for x, y, own in (parts[k] for k in chosen)], trunk)
        calibration = _calibrate(trunk, prior, [parts[k] for k in rng.permutation(len(tables))])
    return Pool(estimator, prior, calibration)


def learn_prior(rows: Sequence[RowStatistics], trunk: RegressionMembers) -> GroupPrior:
    """The prior under which groups with these statistics are most probable, [E, D, D] each."""
    whole = RowStatistics(*(torch.stack(parts) for parts in zip(*rows, strict=True)))  # [G, E, ...]
    head = trunk.head
    sizes = tuple(head.group_sizes)
    equal = torch.zeros(len(whole.gram[0]), len(sizes), dtype=torch.float64)
    prior = GroupPrior(head.posterior().mean.squeeze(-1), equal, sizes, NoisePrior())
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            prior = _maximise(prior, prior.posterior(whole))
        prior = replace(prior, noise=_noise_prior(prior, whole))
    return prior


def _maximise(prior: GroupPrior, posterior: LinearPosterior) -> GroupPrior:
    """μ and a that make the groups' posteriors, taken as known, most probable."""
    noise_precision = posterior.noise_precision  # [G, E, 1]
    m = posterior.mean.squeeze(-1)  # [G, E, D]
    mu = (noise_precision * m).sum(0) / noise_precision.sum(0)
    variance = torch.cholesky_inverse(posterior.root).diagonal(dim1=-2, dim2=-1)
    away = noise_precision * (m - mu).square() + variance  # E λ(w − μ)²
    precision = [
        (SHAPE + 0.5 * part.shape[-1] * len(part)) / (RATE + 0.5 * part.sum((0, -1)))
        for part in away.split(prior.group_sizes, -1)
    ]
    return replace(prior, mean=mu, log_precision=torch.stack(precision, -1).log().clamp(-20, 20))


def _noise_prior(prior: GroupPrior, rows: RowStatistics) -> NoisePrior:
    """Gamma(c, r) that makes the groups' residuals most probable, members taken together."""
    posterior = prior.posterior(rows)
    scatter = (posterior.scatter.squeeze(-1) - 2 * prior.noise.rate).clamp_min(0.0).mean(1).numpy()  # [G]
    n = rows.n_rows[:, 0].numpy()

    def loss(values: Array) -> float:
        log_c, log_r = np.clip(values, -12, 12)
        c, r = np.exp(log_c), np.exp(log_r)
        density = special.gammaln(c + n / 2) - special.gammaln(c) + c * log_r - (c + n / 2) * np.log(r + scatter / 2)
        return float(-density.mean() + 0.5 * ((log_c - 1) / 2) ** 2 / len(n))

    level = float(np.median(scatter / np.maximum(n, 1))) + 1e-6
    start = np.array([1.0, 1.0 + np.log(level)])
    best = optimize.minimize(loss, start, method="Nelder-Mead", options={"maxiter": 400, "xatol": 1e-3, "fatol": 1e-7})
    log_c, log_r = np.clip(best.x, -12, 12)
    return NoisePrior(float(np.exp(log_c)), float(np.exp(log_r)))


def _calibrate(
    trunk: RegressionMembers, prior: GroupPrior, groups: Sequence[tuple[Array, Array, NDArray[np.bool_]]]
) -> Calibration:
    """Noise, inflation and degrees of held-out errors of groups, in units of each group's own noise.

    A group is squashed inputs, scaled targets, and the rows that its output layer has seen.
    """
    errors, variances, n = [], [], 0
    for x, y, inside in groups:
        if inside.all() or n >= CALIBRATION_ROWS:
            continue
        posterior = prior.posterior(_statistics(trunk, x[inside], y[inside]))
        with torch.no_grad():
            phi = trunk.features(torch.as_tensor(x[~inside]))
        means = (phi @ posterior.mean).squeeze(-1).numpy()  # [E, n]
        noise = posterior.noise_variance.numpy()
        between = means.var(0, ddof=1) if len(means) > 1 else np.zeros(means.shape[1])
        own = (posterior.variance(phi).numpy() * noise).mean(0)
        unit = float(noise.mean())
        errors.append((y[~inside, 0] - means.mean(0)) / np.sqrt(unit))
        variances.append((own + between) / unit)
        n += len(between)
    if not errors:
        return Calibration(1.0, 1.0, 100.0)
    error, variance = np.concatenate(errors), np.concatenate(variances)
    return calibrate(HeldOut(error, variance, np.ones(len(error))), None, LEAST_NOISE)


@torch.no_grad()
def _statistics(trunk: RegressionMembers, x: Array, y: Array) -> RowStatistics:
    """Statistics of squashed inputs x [n, D] and scaled targets y [n, 1]."""
    phi = trunk.features(torch.as_tensor(x))
    return row_statistics(phi, torch.as_tensor(y).expand(len(phi), *y.shape))
