"""Hyper-parameters chosen on held-out training rows: every candidate and every split as one batched network."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators.pseudo_data.training_sets import Array, TrainingSet, hold_out
from vmg_paper.baselines.base import Baseline

__all__ = ["HeldOutChoice"]

HELD_OUT = 0.2  # of the training rows, as in the source
TRIAL_STEPS = 4_000
"""A trial's steps, at most; much shorter trials favour what fits, and overfits, sooner."""

DRAWS = 64  # behind a trial's score
SMALL = 1_500
"""Tables with fewer rows are split several times, so that about this many rows are judged, but at most thrice."""

FEWEST = 10
"""Rows below which no trial is made and the last candidate, the most cautious, is taken."""


class HeldOutChoice(Baseline):
    """A number for each training set, such as a dropout rate, is the best of a few by held-out log-likelihood.

    It reaches the layers as ``rate``. What else is chosen with it, after the same trials, has ``_n_candidates``.
    """

    _is_trial: bool = False
    _n_candidates: int = 1

    @abstractmethod
    def _tried(self) -> Sequence[float]:
        """The numbers to try, the most cautious last; a single one is taken untried."""

    def _choose_max_noise(self, sets: list[TrainingSet]) -> list[float]:
        """The number of each training set."""
        tried = self._tried()
        smallest = min(len(rows.x) for rows in sets)
        if smallest < FEWEST or len(tried) * self._n_candidates == 1:
            return [tried[-1]] * len(sets)
        repeats = int(np.clip(round(SMALL / smallest), 1, 3))
        generator = torch.Generator().manual_seed(self.seed_)
        inside, outside = hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
        trial = copy.copy(self)
        trial.n_members, trial.early_stopping, trial.verbose, trial._callbacks = 1, False, False, ()
        trial._is_trial = True
        trial._train(inside * len(tried), np.repeat(tried, len(inside)).tolist(), at_most=TRIAL_STEPS)
        scores = trial._candidate_scores(outside * len(tried))
        shape = (len(tried), len(sets), repeats, self._n_candidates)
        mean = scores.reshape(shape).mean(2).swapaxes(0, 1).reshape(len(sets), -1)  # [sets, tried × candidates]
        best, best_candidate = np.divmod(mean.argmax(-1), self._n_candidates)
        self._take_candidates(best_candidate)
        return [tried[number] for number in best]

    def _candidate_scores(self, held_out: list[TrainingSet]) -> Array:
        """Log-likelihood of each held-out set under each candidate, [sets, candidates]."""
        log_probs = self._held_out_log_probs(held_out, DRAWS)
        return np.array(
            [[np.average(values, weights=rows.weight)] for values, rows in zip(log_probs, held_out, strict=True)]
        )

    def _take_candidates(self, candidates: NDArray[np.int64]) -> None:
        """Remember what was chosen besides, one number for each training set."""
        return None
