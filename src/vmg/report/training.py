"""The record of a model's training, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vmg.report.rows import Array, Positions

__all__ = ["TrainingCurve", "training_curve"]


@dataclass(frozen=True)
class TrainingCurve:
    """The bound and its two terms over optimiser steps, per row: bound = fit − complexity."""

    step: Positions
    bound: Array
    fit: Array
    complexity: Array
    stopped: str

    @property
    def late_gain(self) -> float:
        """What the last fifth of training added to the bound."""
        start = np.searchsorted(self.step, 0.8 * self.step[-1])
        return float(self.bound[-1] - self.bound[min(start, len(self.bound) - 1)])


def training_curve(estimator: Any) -> TrainingCurve | None:
    """What training reported; None where the model has no record of it."""
    history = getattr(estimator, "history_", None)
    if history is None or not history.records:
        return None
    rows = np.array([(r.step, r.elbo, r.expected_log_likelihood, r.kl) for r in history.records])
    gaps = np.diff(rows[:, 0])
    if len(gaps) > 1 and gaps[-1] < gaps[0] / 2:  # the last report rests on the few steps left over: mostly noise
        rows = rows[:-1]
    step, bound, fit, kl = rows.T
    return TrainingCurve(step.astype(np.int64), bound, fit, kl, history.stopped)
