"""Hyper-parameters chosen on held-out training rows: every candidate and every split as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.variational.fitter import Fitted, Fitter
from vmg.variational.rows import TrainingSet, hold_out

__all__ = ["DRAWS", "RATES", "HeldOutSearch", "candidate_rates", "trial_scores"]

Array = NDArray[np.float64]

HELD_OUT = 0.2  # of the training rows, as in the source
TRIAL_STEPS = 4_000
"""A trial's steps, at most; much shorter trials favour what fits, and overfits, sooner."""

DRAWS = 64  # behind a trial's score
SMALL = 1_500
"""Tables with fewer rows are split several times, so that about this many rows are judged, but at most thrice."""

FEWEST = 10
"""Rows below which no trial is made and the last candidate, the most cautious, is taken."""

RATES = (0.005, 0.01, 0.05, 0.1, 0.2)
"""Dropout rates that are tried: the grid of Gal & Ghahramani (2016) for the paper's tables, and one larger."""


def candidate_rates(rate: float | str) -> tuple[float, ...]:
    """The dropout rates to try: a given one, or those of the grid for "auto"."""
    if rate == "auto":
        return RATES
    if isinstance(rate, str):
        raise ValueError(f"rate must be a number in [0, 1) or 'auto'; got {rate!r}")
    return (float(rate),)


@dataclass(frozen=True)
class HeldOutSearch:
    """The candidate with the best held-out log-likelihood, for each training set."""

    candidates: Sequence[Any]
    """The most cautious last; a single one is taken untried."""

    @property
    def example(self) -> Any:
        return self.candidates[-1]

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[Any]]:
        best = [self.example] * len(sets)
        if len(self.candidates) > 1 and enough_rows(sets):
            scores = trial_scores(fitter, sets, self.candidates, _mean_log_probs)  # [sets, candidates, 1]
            best = [self.candidates[number] for number in scores[..., 0].argmax(-1)]
        return [[choice] * fitter.n_members for choice in best]


def enough_rows(sets: list[TrainingSet]) -> bool:
    """Whether trials are worth their while."""
    return min(len(rows.x) for rows in sets) >= FEWEST


def trial_scores(
    fitter: Fitter,
    sets: list[TrainingSet],
    candidates: Sequence[Any],
    score: Callable[[Fitter, Fitted, list[TrainingSet]], Array],
) -> Array:
    """Train every candidate on a part of each set and score it on the rest: [sets, candidates, scores].

    ``score`` gives one or more numbers for each of the held-out sets, [sets, scores].
    """
    smallest = min(len(rows.x) for rows in sets)
    repeats = int(np.clip(round(SMALL / smallest), 1, 3))
    generator = torch.Generator().manual_seed(fitter.seed)
    inside, outside = hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
    trial = replace(fitter, n_members=1, early_stopping=None, callbacks=(), most_steps=TRIAL_STEPS)
    choices = [[candidate] for candidate in candidates for _ in inside]
    trained, _ = trial.train(inside * len(candidates), choices)
    scores = score(trial, trained, outside * len(candidates))
    return scores.reshape(len(candidates), len(sets), repeats, -1).mean(2).swapaxes(0, 1)


def _mean_log_probs(trial: Fitter, trained: Fitted, held_out: list[TrainingSet]) -> Array:
    log_probs = trial.held_out_log_probs(trained.network, trained.likelihood, held_out, DRAWS)
    return np.array(
        [[np.average(values, weights=rows.weight)] for values, rows in zip(log_probs, held_out, strict=True)]
    )
