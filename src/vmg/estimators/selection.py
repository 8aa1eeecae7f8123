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

CANDIDATES = (0.07, 0.25, 0.5)
"""Bounds on √α that are tried: the paper's √0.005 for tables, its 0.25 for images, and one for very noisy targets."""

FEW, MANY = 20, 10_000
"""Below FEW rows the cautious bound is taken untried; above MANY the precise one, as overfitting is no danger there."""

HELD_OUT = 0.2  # of the rows in each trial
TRIAL_STEPS = 2_000
"""A trial's steps, at most. Much shorter trials favour small bounds, which fit, and overfit, sooner."""

DRAWS = 64  # posterior draws behind a trial's score


def choose_max_noise(estimator: BaseVMG, sets: list[TrainingSet]) -> list[float]:
    """The better bound for each training set, judged by the log-likelihood of held-out rows.

    Small sets are split several times. All trials of one candidate train as one batched network; a set's choice
    depends on its own rows alone.
    """
    smallest = min(len(rows.x) for rows in sets)
    if smallest < FEW or smallest > MANY:
        return [CANDIDATES[-1] if smallest < FEW else CANDIDATES[0]] * len(sets)
    repeats = int(np.clip(round(1_500 / smallest), 1, 3))
    generator = torch.Generator().manual_seed(estimator.seed_)
    repeated = [rows for rows in sets for _ in range(repeats)]
    inside, outside = estimator._hold_out(repeated, HELD_OUT, generator)
    scores = []
    for candidate in CANDIDATES:
        trial = copy.copy(estimator)
        trial.max_noise_, trial.n_members, trial.early_stopping, trial.verbose = candidate, 1, False, False
        trial._train(inside, at_most=TRIAL_STEPS)
        scores.append([log_probs.mean() for log_probs in trial._held_out_log_probs(outside, DRAWS)])
    mean = np.reshape(scores, (len(CANDIDATES), len(sets), repeats)).mean(-1)  # [candidates, sets]
    return [CANDIDATES[best] for best in mean.argmax(0)]
