"""What a fitted model consists of, as the report says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vmg.estimators.base import TableEstimator

__all__ = ["NetworkSummary", "network_summary"]


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
        if estimator.pseudo_data_ is None:
            features = estimator.ensemble_.members.features
            draws = estimator.get_params().get("n_draws")
            n_draws = None if draws is None else draws * features.n_members
            return NetworkSummary(features.hidden, features.activations, features.n_members, None, n_draws)
        estimator = estimator.pseudo_data_
    hidden = tuple(np.atleast_1d(estimator.hidden_layer_sizes).tolist())
    activation = estimator.activation if isinstance(estimator.activation, str) else "own activation"
    n_pseudo = tuple(np.atleast_1d(estimator.n_pseudo).tolist())
    n_draws = estimator.n_draws * estimator.n_members
    return NetworkSummary(hidden, (activation,), estimator.n_members, n_pseudo, n_draws)
