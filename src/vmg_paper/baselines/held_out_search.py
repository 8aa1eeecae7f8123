"""Hyper-parameters chosen on held-out training rows: every candidate and every split as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg.variational.fitter import Fitter, TrainingSet
from vmg.variational.recipe import Trials, run_trials

__all__ = ["DRAWS", "RATES", "HeldOutSearch", "candidate_rates", "trial_scores"]

Array = NDArray[np.float64]

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
    fitter: Fitter, sets: list[TrainingSet], candidates: Sequence[Any], score: Callable[[Trials], Array]
) -> Array:
    """Train every candidate on a part of each set and score it on the rest: [sets, candidates, scores].

    ``score`` gives one or more numbers for each candidate and held-out set, [candidates x sets, scores].
    """
    trials = run_trials(fitter, sets, candidates, enough=SMALL, most_steps=TRIAL_STEPS)
    return score(trials).reshape(len(candidates), len(sets), trials.repeats, -1).mean(2).swapaxes(0, 1)


def _mean_log_probs(trials: Trials) -> Array:
    weights = [rows.weight for rows in trials.held_out]
    each = (zip(candidate, weights, strict=True) for candidate in trials.log_probs(DRAWS))
    return np.array([[np.average(values, weights=weight)] for pairs in each for values, weight in pairs])
