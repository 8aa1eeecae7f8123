"""The record of a model's training, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vmg.report.network import network_summary
from vmg.report.shown_rows import Array, Positions

__all__ = ["TrainingCurve", "training_curve"]


@dataclass(frozen=True)
class TrainingCurve:
    """The objective and its two terms over optimiser steps, per row: objective = fit − complexity.

    Of an ensemble with the output layer integrated out it is the log posterior of hidden weights, and the complexity
    what it cost to leave their draws of the prior; with pseudo-data it is the bound, and the complexity a divergence.
    """

    name: str
    step: Positions
    objective: Array
    fit: Array
    complexity: Array
    stopped: str

    @property
    def late_gain(self) -> float:
        """What the last fifth of training added to the objective."""
        start = np.searchsorted(self.step, 0.8 * self.step[-1])
        return float(self.objective[-1] - self.objective[min(start, len(self.objective) - 1)])


def training_curve(estimator: Any) -> TrainingCurve | None:
    """What training reported; None where the model has no record of it."""
    history = getattr(estimator, "history_", None)
    if history is None or not history.records:
        return None
    rows = np.array([(r.step, r.elbo, r.expected_log_likelihood, r.kl) for r in history.records])
    gaps = np.diff(rows[:, 0])
    if len(gaps) > 1 and gaps[-1] < gaps[0] / 2:  # the last report rests on the few steps left over: mostly noise
        rows = rows[:-1]
    step, objective, fit, complexity = rows.T
    name = "log posterior" if network_summary(estimator).n_pseudo is None else "bound"
    return TrainingCurve(name, step.astype(np.int64), objective, fit, complexity, history.stopped)
