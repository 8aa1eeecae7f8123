"""Early stopping on held-out rows."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vmg.estimators.pseudo_data.training_sets import TrainingSet
from vmg.likelihoods import Likelihood
from vmg.nn.mlp import MLP
from vmg.training import Progress

__all__ = ["BestSoFar", "State"]

State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""``state_dict`` of a network and of its likelihood."""

VALIDATION_DRAWS = 32  # posterior draws behind one check


class Learner(Protocol):
    """What is asked of the estimator that trains."""

    network_: MLP
    likelihood_: Likelihood
    n_iter_no_change: int
    tol: float

    def _held_out_log_probs(self, held_out: list[TrainingSet], n_draws: int) -> list[NDArray[np.float64]]: ...


class BestSoFar:
    """Early stopping: keeps the state with the best held-out score and gives up when that no longer improves.

    Each set is judged by itself, so that none learns anything from another's rows.
    """

    def __init__(self, estimator: Learner, held_out: list[TrainingSet]) -> None:
        self._estimator, self._held_out = estimator, held_out
        self._waited = [0] * len(held_out)
        self.scores = [-math.inf] * len(held_out)
        self.states: list[State | None] = [None] * len(held_out)

    def __call__(self, progress: Progress) -> bool:
        e = self._estimator
        now: State | None = None
        log_probs = e._held_out_log_probs(self._held_out, VALIDATION_DRAWS)
        for k, rows in enumerate(self._held_out):
            if self._waited[k] >= e.n_iter_no_change:
                continue
            score = float(np.average(log_probs[k], weights=None if rows.weight is None else rows.weight.numpy()))
            if score > self.scores[k] + e.tol:
                now = now or (_clone(e.network_.state_dict()), _clone(e.likelihood_.state_dict()))
                self.scores[k], self.states[k], self._waited[k] = score, now, 0
            else:
                self._waited[k] += 1
        return min(self._waited) >= e.n_iter_no_change


def _clone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
