"""The paper's model as a method: its networks, its likelihoods, and the limit on the noise of its pseudo-data.

No single limit suits every table. Little noise lets pseudo-points carry much detail, which nearly noise-free targets
need and noisy ones turn into overfitting. The objective cannot choose, because its KL is known up to a constant that
depends on the limit; held-out rows can.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.nn.mlp import MLP, Activation
from vmg.priors import GammaPrior, Prior
from vmg.variational.fitter import Array, Budget, Choice, Fitted, Fitter, NetworkFactory, Search, TrainingSet, hold_out

__all__ = [
    "CANDIDATES",
    "LONG",
    "QUICK",
    "QUICK_NUMBERS",
    "GaussianNoise",
    "Trials",
    "categorical",
    "choose_members",
    "choose_one",
    "given",
    "matrix_gaussian_networks",
    "per_replica",
    "run_trials",
    "search_noise",
]

QUICK = Budget(2_000, 10_000, batches=64)
"""The budget of a single network with pseudo-data (lab/vmg_time.py)."""

QUICK_NUMBERS = Budget(2_000, 10_000, batches=3)
"""The same for numbers: batches that are eight times as large cost little more. Classes overfit with them."""

LONG = Budget(30_000, 40_000, batches=128, trial_batches=128)
"""The budget of ensembles of regressors; see docs/table1.md."""

NOISE_FADE = (0.3, 0.6)
"""Share of training between which input-dependent noise is faded in: the mean settles first."""

NOISE_BALANCE = 0.5
"""How far the mean is fitted as under constant noise: see :class:`~vmg.likelihoods.HeteroscedasticLikelihood`."""


# -- networks and likelihoods -----------------------------------------------------------------------------------------


def per_replica(values: Sequence[float]) -> float | torch.Tensor:
    """Numbers of all replicas as a layer takes them: one where all are the same, else a tensor."""
    if len(set(values)) == 1:
        return float(values[0])
    return torch.as_tensor(values, dtype=torch.get_default_dtype(), device="cpu")  # also while shapes alone are made


def matrix_gaussian_networks(
    hidden: tuple[int, ...],
    activation: str | Activation = "relu",
    *,
    make_prior: Callable[[], Prior] = GammaPrior,
    initial_scale: float = math.exp(-9),
    **options: Any,
) -> NetworkFactory:
    """Networks of the paper's layers; a choice is the limit ``max_noise`` on the noise √α of pseudo-points.

    Args:
        hidden, activation: of :class:`~vmg.nn.MLP`.
        make_prior: gives each network its prior.
        initial_scale: of the weights at the start; chosen by the bound that a given number of steps reaches.
        options: all others of :class:`~vmg.nn.MLP` and :class:`~vmg.nn.MatrixGaussianLinear`.
    """
    options |= {"activation": activation, "initial_scale": initial_scale}

    def make(n_inputs: int, n_outputs: int, choices: Sequence[Choice]) -> MLP:
        own: dict[str, Any] = {"max_noise": per_replica(choices), "batch_shape": (len(choices),)}
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # the paper itself uses more pseudo-points than inputs on narrow tables
            warnings.filterwarnings("ignore", message="n_pseudo should be <")
            return MLP(n_inputs, hidden, n_outputs, prior=make_prior(), **own, **options)

    return make


def categorical(n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
    """Classes, one output of the network each."""
    return CategoricalLikelihood()


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of learned precision: the same everywhere, or a function of the input."""

    by_input: bool = False
    prior: tuple[float, float] = (1.0, 1e-3)
    """Gamma(concentration, rate) of the precision in standardised units."""

    def __post_init__(self) -> None:
        if np.shape(self.prior) != (2,):
            raise ValueError(f"noise_prior must be (concentration, rate); got {self.prior!r}")

    def __call__(self, n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
        (n_replicas, n_targets), (concentration, rate) = units.shape, (float(value) for value in self.prior)
        options: dict[str, Any] = {"concentration": concentration, "rate": rate, "batch_shape": (n_replicas,)}
        likelihood = GaussianLikelihood(n_targets, **options)
        if self.by_input:
            start, stop = (int(share * n_steps) for share in NOISE_FADE)
            options |= {"balance": NOISE_BALANCE, "fade": (start, max(stop, start + 1))}
            likelihood = HeteroscedasticLikelihood(n_targets, **options)
        # Start at noise of unit precision, which is a standardised target's own. The prior's mean, 1000, would make
        # the first gradient so large that Adam, which remembers squares for a thousand steps, hardly moves after it.
        with torch.no_grad():
            likelihood.log_rate.copy_(likelihood.log_concentration)
        return likelihood


# -- what is searched -------------------------------------------------------------------------------------------------


def given(choice: Choice = None) -> Search:
    """No search: the same choice for all."""
    return lambda fitter, sets: [[choice] * fitter.n_members for _ in sets]


HELD_OUT = 0.2  # of the rows in each trial


class Trials(NamedTuple):
    """Networks trained on a part of each set, and the rows that they have not seen."""

    fitter: Fitter
    trained: Fitted
    held_out: list[TrainingSet]  # for each candidate, of each set, ``repeats`` times over
    repeats: int


def run_trials(
    fitter: Fitter, sets: list[TrainingSet], candidates: Sequence[Choice], *, enough: int, most_steps: int
) -> Trials:
    """Train every candidate on a random part of each set, all as one batched network.

    Sets of fewer than ``enough`` rows are split up to three times.
    """
    repeats = int(np.clip(round(enough / min(len(rows.x) for rows in sets)), 1, 3))
    generator = torch.Generator().manual_seed(fitter.seed)
    inside, outside = hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
    budget = replace(fitter.budget, batches=fitter.budget.trial_batches)
    trial = replace(fitter, n_members=1, early_stopping=None, callbacks=(), most_steps=most_steps, budget=budget)
    trained, _ = trial.train(inside * len(candidates), [[candidate] for candidate in candidates for _ in inside])
    return Trials(trial, trained, outside * len(candidates), repeats)


CANDIDATES = (0.01, 0.03, 0.08, 0.2, 0.5)
"""Limits on √α that are tried, about evenly spaced in their logarithm; the paper's are √0.005 and √0.05 for tables."""

SHARPER = (0.1, 0.3, 1.0)
"""Shares of the smallest limit, tried where that one is chosen throughout and rows are many, down to ``SHARPEST``.
Targets nearly free of noise want it: on validation rows of naval 0.001 has 2.92 nats a row and 0.01 has 1.38. Small
tables do not, nor would short trials tell: on yacht 0.001 ends at 0.38 and 0.03 at 2.36 (lab/defaults.py)."""
SHARPEST = 1e-4

FEW = 20
"""Below this many rows the largest limit is taken untried."""

ENOUGH = 2_000
"""Rows from which one trial says enough; fewer are split up to three times."""

TRIAL_STEPS = 1_000
"""A trial's steps, at most. On eleven development tables trials of 2,000 steps choose the same limits."""

DRAWS = 64  # posterior draws behind a trial's score


def search_noise(
    fitter: Fitter, sets: list[TrainingSet], candidates: tuple[float, ...] = CANDIDATES
) -> list[list[float]]:
    """Choose the limit on √α for each training set, or one for each member of an ensemble.

    Small sets are split several times. All trials, of every candidate, set and repetition, train as one batched
    network. Trials of a set see its own rows alone; how many there are and how long they train follows the smallest.
    """
    chosen = [[CANDIDATES[-1]] * fitter.n_members for _ in sets]
    tried = [k for k, rows in enumerate(sets) if len(rows.x) >= FEW]
    if not tried:
        return chosen
    large = [sets[k] for k in tried]
    trials = run_trials(fitter, large, candidates, enough=ENOUGH, most_steps=TRIAL_STEPS)
    modules = trials.trained.network, trials.trained.likelihood
    log_probs = trials.fitter.held_out_log_probs(*modules, trials.held_out, DRAWS)
    n_trials = len(large) * trials.repeats  # of each candidate
    for place, k in enumerate(tried):
        own = slice(place * trials.repeats, (place + 1) * trials.repeats)
        parts = [log_probs[c * n_trials : (c + 1) * n_trials][own] for c in range(len(candidates))]
        found = np.stack([np.concatenate(part) for part in parts])
        weights = [rows.weight.numpy() for rows in trials.held_out[own] if rows.weight is not None]
        weight = np.concatenate(weights) if weights else None
        one = fitter.n_members == 1
        best = [choose_one(found, weight)] if one else choose_members(found, fitter.n_members, weight)
        chosen[k] = [candidates[c] for c in best]
    sharp = [k for k in tried if set(chosen[k]) == {candidates[0]}]
    if sharp and min(len(rows.x) for rows in large) >= ENOUGH and candidates[0] > SHARPEST:
        below = search_noise(fitter, [sets[k] for k in sharp], tuple(part * candidates[0] for part in SHARPER))
        for k, limits in zip(sharp, below, strict=True):
            chosen[k] = limits
    return chosen


def choose_one(log_probs: Array, weight: Array | None = None) -> int:
    """The last candidate that is not clearly worse than the best: by no more than one standard error.

    Candidates are in order of caution. The rule (Breiman et al. 1984, §3.4.3, with the error of the difference, row by
    row) leans to the cautious side, because an overconfident network cannot be mended by others, as in an ensemble,
    and because trials are shorter than the training that follows, in which sharp candidates overfit more.

    Args:
        log_probs: log p(y) of every held-out row under each candidate, [candidates, N].
        weight: of each row.
    """
    best = np.average(log_probs, axis=1, weights=weight).argmax()
    deficit = log_probs[best] - log_probs
    mean = np.average(deficit, axis=1, weights=weight)
    spread = np.average((deficit - mean[:, None]) ** 2, axis=1, weights=weight)
    error = np.sqrt(spread / log_probs.shape[1])
    return int(np.flatnonzero(mean <= error)[-1])


def choose_members(log_probs: Array, n_members: int, weight: Array | None = None) -> NDArray[np.int64]:
    """The candidates, one for each member, whose equal mixture explains held-out rows well.

    Members are added one by one, each time the candidate that makes the mixture so far the most likely (greedy
    selection with replacement, Caruana et al. 2004). Members with different limits err differently: small ones predict
    better, large ones know their limits, and the mixture has some of both.

    Args:
        log_probs: log p(y) of every held-out row under each candidate, [candidates, N].
        n_members: how many to choose.
        weight: of each row.

    Returns:
        Indices of candidates, ascending.
    """
    members: list[int] = []
    total = np.full(log_probs.shape[1], -np.inf)  # log of the sum of the members' densities
    for _ in range(n_members):
        mixtures = np.logaddexp(total, log_probs)
        members.append(int(np.average(mixtures, axis=1, weights=weight).argmax()))
        total = mixtures[members[-1]]
    return np.sort(members)
