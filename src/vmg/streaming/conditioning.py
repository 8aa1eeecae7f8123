"""The second half of a streamed fit: hidden layers from a sample, output layers from all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators import VMGClassifier, VMGRegressor
from vmg.fit.outliers import ordinary_rows
from vmg.fit.regression import RegressionEnsemble
from vmg.fit.scaling import InputRange, Standardiser, soften
from vmg.streaming import sharing
from vmg.training import Callback

__all__ = ["condition_on_all", "fit_on_sample"]

Array = NDArray[np.float64]
Batches = Iterable[tuple[Array, Array]]


def fit_on_sample(
    estimator: VMGRegressor | VMGClassifier,
    X: Array,
    y: NDArray[Any],
    *,
    n_rows: int,
    scaling: Sequence[Standardiser],
    classes: NDArray[Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Fit an estimator to a sample of ``n_rows`` rows, in units that are those of all rows.

    Rows of a classifier's sample stand for all rows: each counts n_rows/n times. A regressor's count once, since
    :func:`condition_on_all` comes after.
    """
    if isinstance(estimator, VMGClassifier):
        weight = np.full(len(X), n_rows / len(X))
        estimator.partial_fit(X, y, classes, weight, callbacks=callbacks, scaling=scaling)
    else:
        estimator.fit(X, y, callbacks=callbacks, scaling=scaling)


@torch.no_grad()
def condition_on_all(estimator: VMGRegressor, batches: Batches) -> int:
    """Condition the output layers on every row of ``batches`` of X [n, D] and y [n], exactly; the number of rows.

    The posterior of output weights and noise depends on rows through sums alone (``RowStatistics``), so it is the one
    that all rows at once would give. Hidden layers and calibration stay those of the sample. Processes of a group each
    go through their own rows, and the sums are added up.
    """
    ensemble = estimator.ensemble_
    assert isinstance(ensemble, RegressionEnsemble)
    members = ensemble.members
    members.head.forget()
    n_rows, low, high = 0, np.inf * np.ones(estimator.n_features_in_), -np.inf * np.ones(estimator.n_features_in_)
    for X, y in batches:
        if not len(X):
            continue
        kept = ordinary_rows(y, estimator.likelihood_)  # mistakes are left out, as in the fit to the sample
        X, y = X[kept], y[kept]
        x = soften(estimator.input_scaling_.transform(X))
        targets = estimator.target_scaling_.transform(y.reshape(len(y), -1))
        members.update(torch.as_tensor(x), torch.as_tensor(targets), None)
        n_rows, low, high = n_rows + len(X), np.minimum(low, x.min(0)), np.maximum(high, x.max(0))
    sharing.add_up(list(members.head.statistics))
    low, high = sharing.smallest(low), -sharing.smallest(-high)
    estimator.ensemble_ = replace(ensemble, members=members, input_range=InputRange(low, high))
    return sum(sharing.gather(n_rows))
