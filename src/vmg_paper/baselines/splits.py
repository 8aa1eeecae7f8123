"""All training/test splits of a table fitted in one run, by whatever estimator."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_X_y

from vmg.training import Callback
from vmg.variational.estimators import VariationalEstimator
from vmg_paper.baselines.batched_regressor import BatchedRegressor, fit_together

__all__ = ["fit_splits"]

Estimator = TypeVar("Estimator", bound=BaseEstimator)


def fit_splits(
    estimator: Estimator,
    X: Any,
    y: Any,
    splits: Iterable[tuple[ArrayLike, Any]],
    *,
    callbacks: Sequence[Callback] = (),
) -> list[Estimator]:
    """Fit a clone of ``estimator`` to the training rows of every split.

    All clones of the paper's estimators and of the baselines train in one run, which is much faster than one fit after
    another on tables where a step's work is small; those of other estimators one after another. Each clone scales its
    own rows and is a complete fitted estimator; test rows are never looked at, but for the names of their classes: all
    clones have the classes of the whole table. With ``early_stopping`` each keeps the parameters that were its own
    best.

    Parameters
    ----------
    estimator : estimator
        Left as it is.
    X, y : array-like
        The whole table.
    splits : iterable of (train, test)
        Row indices, as from ``KFold().split(X)``.
    callbacks : sequence of callable
        Called with a :class:`~vmg.training.Progress` fifty times in the run; one that returns True ends it. A
        :class:`~vmg_paper.baselines.BatchedRegressor` calls none.

    Returns
    -------
    list of fitted estimators, one for each split
    """
    pairs = list(splits)
    if not pairs:
        raise ValueError("splits must hold at least one (train, test) pair; got none")
    if any(np.size(train) == 0 for train, _ in pairs):
        raise ValueError("every split must have training rows; got one without")
    if isinstance(estimator, BatchedRegressor):
        models: Any = [clone(estimator) for _ in pairs]
        X, y = check_X_y(X, y, dtype=np.float64, y_numeric=True)
        fit_together(models, [(X[train], y[train]) for train, _ in pairs])
        return models
    if not isinstance(estimator, VariationalEstimator):
        return [clone(estimator).fit(X[train], y[train], callbacks=callbacks) for train, _ in pairs]
    leader = clone(estimator)
    X, y, listeners = leader.start(X, y, callbacks)
    fitted = [copy.deepcopy(leader) for _ in pairs]
    sets = [one.prepare(X[train], y[train], None) for one, (train, _) in zip(fitted, pairs, strict=True)]
    fitter = replace(fitted[0].fitter(), callbacks=listeners)
    for one, trained in zip(fitted, fitter.fit(sets), strict=True):
        one.take(trained)
    return fitted
