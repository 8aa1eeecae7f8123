"""The bound on the pseudo-data's noise, chosen on held-out training rows.

No single bound suits every table. Little noise lets pseudo-points carry much detail, which nearly noise-free targets
need and noisy ones turn into overfitting. The variational bound cannot choose, because its KL is known up to a
constant that depends on the noise bound; held-out rows can.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from vmg.estimators.base import BaseVMG, TrainingSet

__all__ = ["choose_max_noise"]

CANDIDATES = (0.01, 0.03, 0.08, 0.2, 0.5)
"""Bounds on √α that are tried, about evenly spaced in their logarithm; the paper's are √0.005 and √0.05 for tables."""

FEW = 20
"""Below this many rows the cautious bound is taken untried."""

HELD_OUT = 0.2  # of the rows in each trial
TRIAL_STEPS = 2_000
"""A trial's steps, at most. Trials of 5,000 and 12,000 steps chose the same bounds (benchmarks/defaults.py)."""

DRAWS = 64  # posterior draws behind a trial's score
MEMBERS = 2  # of an ensemble in its trials: enough to see that members' errors average out


def choose_max_noise(estimator: BaseVMG, sets: list[TrainingSet]) -> list[float]:
    """The better bound for each training set, judged by the log-likelihood of held-out rows.

    Small sets are split several times. All trials, of every candidate, set, repetition and member, train as one
    batched network; a set's choice depends on its own rows alone.
    """
    smallest = min(len(rows.x) for rows in sets)
    if smallest < FEW:
        return [CANDIDATES[-1]] * len(sets)
    repeats = int(np.clip(round(1_000 / smallest), 1, 3))
    generator = torch.Generator().manual_seed(estimator.seed_)
    inside, outside = estimator._hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
    trial = copy.copy(estimator)
    trial.n_members = min(estimator.n_members, MEMBERS)
    trial.early_stopping, trial.verbose, trial._callbacks = False, False, ()
    bounds = np.repeat(CANDIDATES, len(inside)).tolist()
    trial._train(inside * len(CANDIDATES), bounds, at_most=TRIAL_STEPS)
    held_out = outside * len(CANDIDATES)
    log_probs = trial._held_out_log_probs(held_out, DRAWS)
    scores = [np.average(values, weights=rows.weight) for values, rows in zip(log_probs, held_out, strict=True)]
    mean = np.reshape(scores, (len(CANDIDATES), len(sets), repeats)).mean(-1)  # [candidates, sets]
    return [CANDIDATES[best] for best in mean.argmax(0)]
