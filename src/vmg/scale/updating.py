"""Arriving data: a fitted model that takes in the rows of a dataset, a batch at a time."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.fit.design import ordinary_rows
from vmg.fit.gaussian import RegressionEnsemble
from vmg.model_file import ModelFileError
from vmg.scale.dataset import open_dataset
from vmg.tables import TableError
from vmg.tables.cells import CellTable
from vmg.tables.missing import row_digests
from vmg.tables.target import label_positions
from vmg.tables.wording import count

__all__ = ["Update", "update_model"]

Array = NDArray[np.float64]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of predictions at the reference rows, which stand for training targets
KNOWN_SHARE = 0.05  # of the rows of an update that the model has seen; some tables have equal rows by chance


class Update(NamedTuple):
    """The model after an update, rows that it took in, rows that were left out, and sentences about them."""

    model: TableModel
    n_rows: int
    n_left_out: int
    notes: list[str]


def update_model(model: TableModel, source: str | os.PathLike[str], *, again: bool = False) -> Update:
    """Condition a model on the rows of a dataset that have a target; the given model stays as it is.

    Output layers of a regression take rows in exactly: the order of batches, and whether rows come at once, change
    nothing. Those of a classification take a natural-gradient step for each batch. Columns are read as in the fit;
    hidden layers and calibration stay, and a conformal calibration is forgotten. Targets that are absurd beside those
    of the training rows are left out, as in the fit.

    Parameters
    ----------
    model : TableModel
    source : path
        What :func:`open_dataset` opens.
    again : bool
        Take rows in that the model was fitted to, which then count twice. Without it, a dataset with many of them is
        refused.
    """
    estimator = copy.deepcopy(model.estimator)
    if not isinstance(estimator, TableRegressor | TableClassifier):
        raise ModelFileError(f"a {type(estimator).__name__} cannot be updated; fit it again")
    names = [*model.encoder.column_names, model.target]
    dataset = open_dataset(source, names)
    usual, known, reference = _usual_targets(model), _known_digests(model), model.reference
    n_rows, n_unusable, n_absurd, n_known = 0, 0, 0, 0
    for _, frame in dataset.frames(names):
        if isinstance(estimator, TableClassifier):
            place = label_positions(frame[model.target], estimator.classes_)
            given, y = place >= 0, estimator.classes_[place]
            taken = given
        else:
            y = model.read_target(frame[model.target])
            given = np.isfinite(y)
            taken = given.copy()
            taken[given] = ordinary_rows(y[given], estimator.likelihood_, usual) if given.any() else False
        n_unusable += int((~given).sum())
        n_absurd += int((given & ~taken).sum())
        if taken.any():
            X, targets = model.encoder.transform(CellTable(frame[taken], training=True)), y[taken]
            digests = row_digests(X, targets)
            n_known += int(np.isin(digests, known).sum())
            reference = None if reference is None else reference.with_digests(digests)
            n_rows += len(X)
            estimator.partial_fit(X, targets)
    if not n_rows:
        raise TableError(f"{dataset.name} has no row with a value in the target '{model.target}' that the model knows")
    if not again and n_known > KNOWN_SHARE * n_rows * _share_of_digests(model):
        raise TableError(
            f"the model has seen at least {count(n_known, 'row')} of {n_rows:,} in {dataset.name} before, and they "
            "would count twice; leave them out, or give --again (again=True)"
        )
    notes = dataset.notes()
    if n_absurd:
        notes.append(f"{count(n_absurd, 'row')} left out: the target is absurdly far beyond those of the fit.")
    if n_known:
        notes.append(f"At least {count(n_known, 'row')} seen by the model before, counted once more.")
    said = (*model.notes, f"Updated with {n_rows:,} rows of {dataset.name}.")
    updated = replace(model, estimator=estimator, reference=reference, notes=said)
    return Update(updated, n_rows, n_unusable + n_absurd, notes)


def _usual_targets(model: TableModel) -> Array | None:
    """Numbers that stand for the training targets: quantiles of the predictions at reference rows."""
    if not isinstance(model.estimator, TableRegressor) or model.reference is None:
        return None
    return np.asarray(model.estimator.predict_quantiles(model.reference.features, LEVELS)).ravel()


def _known_digests(model: TableModel) -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64) if model.reference is None else model.reference.digests


def _share_of_digests(model: TableModel) -> float:
    """The share of the rows that a model has seen whose digests it keeps."""
    ensemble, kept = model.estimator.ensemble_, len(_known_digests(model))
    seen = float(ensemble.members.head.count[0]) if isinstance(ensemble, RegressionEnsemble) else kept
    return min(1.0, kept / max(seen, 1.0))
