"""Facts about a fitted model that the report shows: its networks and the record of their training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vmg.estimators.table_estimator import TableEstimator
from vmg.report.table_facts import Array, Positions

__all__ = ["NetworkSummary", "TrainingCurve", "network_summary", "training_curve"]


@dataclass(frozen=True)
class NetworkSummary:
    """Networks, their hidden layers and what stands behind a prediction."""

    hidden: tuple[int, ...]
    activations: tuple[str, ...]
    n_members: int
    n_pseudo: tuple[int, ...] | None  # pseudo-points of the layers; None where the output layer is integrated out
    n_draws: int | None  # of the posterior behind a prediction; None where it has a closed form


def network_summary(estimator: Any) -> NetworkSummary:
    """Read the networks off a fitted estimator, whatever its parameters have been set to since."""
    if isinstance(estimator, TableEstimator):
        features = estimator.ensemble_.members.features
        draws = estimator.get_params().get("n_draws")
        n_draws = None if draws is None else draws * features.n_members
        return NetworkSummary(features.hidden, features.activations, features.n_members, None, n_draws)
    hidden = tuple(np.atleast_1d(estimator.hidden_layer_sizes).tolist())
    activation = estimator.activation if isinstance(estimator.activation, str) else "own activation"
    n_pseudo = tuple(np.atleast_1d(estimator.n_pseudo).tolist())
    n_draws = estimator.n_draws * estimator.n_members
    return NetworkSummary(hidden, (activation,), estimator.n_members, n_pseudo, n_draws)


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
        """Gain of the objective over the last fifth of training."""
        start = np.searchsorted(self.step, 0.8 * self.step[-1])
        return float(self.objective[-1] - self.objective[min(start, len(self.objective) - 1)])


def training_curve(estimator: Any) -> TrainingCurve | None:
    """The record of training; None where the model has none."""
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
