"""All training/test splits of a table fitted as one batched network."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from vmg.training import Callback
from vmg.variational.estimators import VariationalEstimator

__all__ = ["fit_splits"]

Estimator = TypeVar("Estimator", bound=VariationalEstimator)


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
    estimator : VMGRegressor or VMGClassifier
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
    X, y, listeners = leader.start(X, y, callbacks)
    fitted = [copy.deepcopy(leader) for _ in pairs]
    sets = [one.prepare(X[train], y[train], None) for one, (train, _) in zip(fitted, pairs, strict=True)]
    fitter = replace(fitted[0].fitter(), callbacks=listeners)
    for one, trained in zip(fitted, fitter.fit(sets), strict=True):
        one.take(trained)
    return fitted
