"""The second half of a streamed fit: hidden layers from a sample, output layers from all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableRegressor
from vmg.fit.design import InputRange, Standardiser, ordinary_rows, squash
from vmg.fit.gaussian import RegressionEnsemble
from vmg.scale import sharing
from vmg.scale.checkpoint import RowsRead
from vmg.training import Callback

__all__ = ["condition_on_all", "fit_on_sample"]

Array = NDArray[np.float64]
Batches = Iterable[tuple[Array, Array]]
Pieces = Iterable[tuple[int, Batches]]


def fit_on_sample(
    estimator: TableRegressor | TableClassifier,
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
    if isinstance(estimator, TableClassifier):
        weight = np.full(len(X), n_rows / len(X))
        estimator.partial_fit(X, y, classes, weight, callbacks=callbacks, scaling=scaling)
    else:
        estimator.fit(X, y, callbacks=callbacks, scaling=scaling)


@torch.no_grad()
def condition_on_all(
    estimator: TableRegressor,
    pieces: Pieces,
    start: RowsRead | None = None,
    after_piece: Callable[[RowsRead], None] | None = None,
) -> int:
    """Condition the output layers on every row of ``pieces``, exactly; the number of rows.

    The posterior of output weights and noise depends on rows through sums alone (``RowStatistics``), so it is the one
    that all rows at once would give. Hidden layers and calibration stay those of the sample. Processes of a group each
    go through their own rows, and the sums are added up.

    Args:
        pieces: the number of each piece with batches of its X [n, D] and y [n].
        start: what was read before, whose sums the estimator has; None begins anew.
        after_piece: called when a piece was read.
    """
    ensemble = estimator.ensemble_
    assert isinstance(ensemble, RegressionEnsemble)
    members = ensemble.members
    done = RowsRead.none(estimator.n_features_in_) if start is None else start
    if not done.pieces:
        members.head.forget()
    for number, batches in pieces:
        for X, y in batches:
            if not len(X):
                continue
            kept = ordinary_rows(y, estimator.likelihood_)  # mistakes are left out, as in the fit to the sample
            X, y = X[kept], y[kept]
            x = squash(estimator.input_scaling_.transform(X))
            targets = estimator.target_scaling_.transform(y.reshape(len(y), -1))
            members.update(torch.as_tensor(x), torch.as_tensor(targets), None)
            done = done.and_also(x)
        done = done.after(number)
        if after_piece is not None:
            after_piece(done)
    sharing.add_up(list(members.head.statistics))
    low, high = sharing.smallest(done.low), -sharing.smallest(-done.high)
    estimator.ensemble_ = replace(ensemble, members=members, input_range=InputRange(low, high))
    return sum(sharing.gather(done.n_rows))
