"""Early stopping on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.variational.training_sets import TrainingSet
from vmg.likelihoods import Likelihood
from vmg.nn.mlp import MLP
from vmg.training import Progress

__all__ = ["BestSoFar", "EarlyStopping", "State"]

State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""``state_dict`` of a network and of its likelihood."""

VALIDATION_DRAWS = 32  # posterior draws behind one check


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when held-out rows have not improved by ``tol`` for ``patience`` checks."""

    fraction: float = 0.1  # of the rows that is held out
    patience: int = 10
    tol: float = 1e-4


class BestSoFar:
    """A callback of training: keeps the state with the best held-out score, and ends training when none improves.

    Each set is judged by itself, so that none learns anything from another's rows.

    Args:
        network, likelihood: what is being trained.
        held_out: rows of each set.
        log_probs: gives log p(y) of the held-out rows of each set, under the present state.
        rule: when to stop.
    """

    def __init__(
        self,
        network: MLP,
        likelihood: Likelihood,
        held_out: list[TrainingSet],
        log_probs: Callable[[], list[NDArray[np.float64]]],
        rule: EarlyStopping,
    ) -> None:
        self._modules, self._held_out, self._log_probs, self._rule = (network, likelihood), held_out, log_probs, rule
        self._waited = [0] * len(held_out)
        self.scores = [-math.inf] * len(held_out)
        self.states: list[State | None] = [None] * len(held_out)

    def __call__(self, progress: Progress) -> bool:
        now: State | None = None
        log_probs = self._log_probs()
        for k, rows in enumerate(self._held_out):
            if self._waited[k] >= self._rule.patience:
                continue
            score = float(np.average(log_probs[k], weights=None if rows.weight is None else rows.weight.numpy()))
            if score > self.scores[k] + self._rule.tol:
                network, likelihood = self._modules
                now = now or (_copied(network.state_dict()), _copied(likelihood.state_dict()))
                self.scores[k], self.states[k], self._waited[k] = score, now, 0
            else:
                self._waited[k] += 1
        return min(self._waited) >= self._rule.patience


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
