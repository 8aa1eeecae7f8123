"""The limit on the noise of pseudo-data, chosen on held-out training rows.

No single limit suits every table. Little noise lets pseudo-points carry much detail, which nearly noise-free targets
need and noisy ones turn into overfitting. The lower bound cannot choose, because its KL is known up to a constant that
depends on the limit; held-out rows can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.variational.fitter import Fitter
from vmg.variational.rows import TrainingSet, hold_out

__all__ = ["CANDIDATES", "NoiseSearch", "choose_members", "choose_one"]

Array = NDArray[np.float64]

CANDIDATES = (0.01, 0.03, 0.08, 0.2, 0.5)
"""Limits on √α that are tried, about evenly spaced in their logarithm; the paper's are √0.005 and √0.05 for tables."""

SHARPER = (0.1, 0.3, 1.0)
"""Shares of the smallest limit, tried where that one is chosen throughout and rows are many, down to ``SHARPEST``.
Targets nearly free of noise want it: on validation rows of naval 0.001 has 2.92 nats a row and 0.01 has 1.38. Small
tables do not, nor would short trials tell: on yacht 0.001 ends at 0.38 and 0.03 at 2.36 (lab/defaults.py)."""
SHARPEST = 1e-4

FEW = 20
"""Below this many rows the largest limit is taken untried."""

HELD_OUT = 0.2  # of the rows in each trial
ENOUGH = 2_000
"""Rows from which one trial says enough; fewer are split up to three times."""

TRIAL_STEPS, LONG_TRIAL_STEPS = 2_000, 5_000
"""A trial's steps, at most. Short trials are kind to small limits, which overfit later; a single network on a small
table, which pays most for that, gets long ones. Validation (lab/defaults.py): on Friedman's first function 2,000
steps leave 0.08 and 0.2 level and 5,000 prefer 0.2; on concrete the lead of 0.08 over 0.03 grows with the steps (10
points). The long trials' choices themselves were not compared with full training."""

DRAWS = 64  # posterior draws behind a trial's score


@dataclass(frozen=True)
class NoiseSearch:
    """Chooses the limit on √α for each training set, or one for each member of an ensemble.

    Small sets are split several times. All trials, of every candidate, set and repetition, train as one batched
    network. Trials of a set see its own rows alone; how many there are and how long they train follows the smallest.
    """

    candidates: tuple[float, ...] = CANDIDATES

    @property
    def example(self) -> float:
        return self.candidates[0]

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[float]]:
        tried = [k for k, rows in enumerate(sets) if len(rows.x) >= FEW]
        chosen = [[CANDIDATES[-1]] * fitter.n_members for _ in sets]
        if tried:
            for k, limits in zip(tried, self._try(fitter, [sets[k] for k in tried]), strict=True):
                chosen[k] = limits
        return chosen

    def _try(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[float]]:
        smallest = min(len(rows.x) for rows in sets)
        repeats = int(np.clip(round(ENOUGH / smallest), 1, 3))
        generator = torch.Generator().manual_seed(fitter.seed)
        inside, outside = hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
        long = fitter.n_members == 1 and smallest < ENOUGH
        most_steps = LONG_TRIAL_STEPS if long else TRIAL_STEPS
        trial = replace(fitter, n_members=1, early_stopping=None, callbacks=(), most_steps=most_steps)
        limits = [[limit] for limit in self.candidates for _ in inside]
        whole, _ = trial.train(inside * len(self.candidates), limits)
        found = trial.held_out_log_probs(whole.network, whole.likelihood, outside * len(self.candidates), DRAWS)
        per_candidate = [found[c * len(inside) :][: len(inside)] for c in range(len(self.candidates))]
        chosen = []
        for k in range(len(sets)):
            trials = slice(k * repeats, (k + 1) * repeats)
            log_probs = np.stack([np.concatenate(rows[trials]) for rows in per_candidate])
            weights = [rows.weight.numpy() for rows in outside[trials] if rows.weight is not None]
            weight = np.concatenate(weights) if weights else None
            best = (
                [choose_one(log_probs, weight)]
                if fitter.n_members == 1
                else choose_members(log_probs, fitter.n_members, weight)
            )
            chosen.append([self.candidates[c] for c in best])
        sharp = [k for k, members in enumerate(chosen) if set(members) == {self.candidates[0]}]
        if sharp and smallest >= ENOUGH and self.candidates[0] > SHARPEST:
            sharper = NoiseSearch(tuple(part * self.candidates[0] for part in SHARPER))
            for k, found_below in zip(sharp, sharper.choose(fitter, [sets[k] for k in sharp]), strict=True):
                chosen[k] = found_below
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
