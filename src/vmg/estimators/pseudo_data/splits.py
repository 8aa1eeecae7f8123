"""Many fits as one: every fold, split or resample of a table is a replica of one batched network."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils import check_random_state
from torch import Tensor, nn

from vmg.estimators.pseudo_data.base import PseudoDataEstimator, State
from vmg.training import Callback

__all__ = ["fit_splits"]

Estimator = TypeVar("Estimator", bound=PseudoDataEstimator)


def fit_splits(
    estimator: Estimator,
    X: Any,
    y: Any,
    splits: Iterable[tuple[ArrayLike, Any]],
    *,
    callbacks: Sequence[Callback] = (),
) -> list[Estimator]:
    """Fit a clone of ``estimator`` to the training rows of every split, all in one training run.

    Much faster than one fit after another on tables where a step's work is small. Each clone scales its own rows and
    is a complete fitted estimator; test rows are never looked at, but for the names of their classes: all clones have
    the classes of the whole table. With ``early_stopping`` each keeps the parameters that were its own best.

    Parameters
    ----------
    estimator : PseudoDataRegressor or PseudoDataClassifier
        Left as it is.
    X, y : array-like
        The whole table.
    splits : iterable of (train, test)
        Row indices, as from ``KFold().split(X)``.
    callbacks : sequence of callable
        Called with a :class:`~vmg.training.Progress` fifty times in the run; one that returns True ends it.

    Returns
    -------
    list of fitted estimators, one for each split
    """
    pairs = list(splits)
    if not pairs:
        raise ValueError("splits must hold at least one (train, test) pair; got none")
    if any(np.size(train) == 0 for train, _ in pairs):
        raise ValueError("every split must have training rows; got one without")
    leader = clone(estimator)
    leader._validate_params()
    X, y = leader._check_data(X, y, reset=True)
    leader.seed_ = int(check_random_state(leader.random_state).randint(2**31 - 1))

    fitted = [copy.deepcopy(leader) for _ in pairs]
    sets = [one._prepare(X[train], y[train], None) for one, (train, _) in zip(fitted, pairs, strict=True)]
    leader._callbacks = tuple(callbacks)
    bounds = leader._choose_max_noise(sets)
    states = leader._train(sets, bounds)
    for k, (one, bound, state) in enumerate(zip(fitted, bounds, states, strict=True)):
        one.max_noise_ = bound
        _hand_over(leader, one, state, slice(k * leader.n_members, (k + 1) * leader.n_members))
    return fitted


def _hand_over(leader: PseudoDataEstimator, one: PseudoDataEstimator, state: State, members: slice) -> None:
    """Make ``one`` a fitted estimator of its own, from its replicas in the leader's network."""
    one.network_ = one._make_network(one.n_features_in_, (leader.n_members,), one.max_noise_)
    one.likelihood_ = one._make_likelihood(1, np.repeat([one._target_unit()], leader.n_members, axis=0))
    for whole, part in zip(state, (one.network_, one.likelihood_), strict=True):
        _take_replicas(whole, part, members)
    one.history_, one.n_iter_ = leader.history_, leader.n_iter_


def _take_replicas(whole: dict[str, Tensor], part: nn.Module, members: slice) -> None:
    """Copy the chosen replicas' state; what replicas share is copied as it is."""
    target = part.state_dict()
    part.load_state_dict(
        {name: value if value.shape == target[name].shape else value[members] for name, value in whole.items()}
    )
