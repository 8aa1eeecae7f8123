"""Arriving data: a fitted model that takes in the rows of a dataset, a batch at a time."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.model_file import ModelFileError
from vmg.scale.dataset import open_dataset
from vmg.tables import TableError
from vmg.tables.numbers import to_numbers
from vmg.tables.target import label_positions

__all__ = ["Update", "update_model"]


class Update(NamedTuple):
    """The model after an update, rows that it took in, rows without a usable target, and what is to be said."""

    model: TableModel
    n_rows: int
    n_left_out: int
    notes: list[str]


def update_model(model: TableModel, source: str | os.PathLike[str]) -> Update:
    """Condition a model on the rows of a dataset that have a target; the given model stays as it is.

    Output layers of a regression take rows in exactly: the order of batches, and whether rows come at once, change
    nothing. Those of a classification take a natural-gradient step for each batch. Columns are read as in the fit;
    hidden layers and calibration stay, and a conformal calibration is forgotten.
    """
    estimator = copy.deepcopy(model.estimator)
    if not isinstance(estimator, TableRegressor | TableClassifier):
        raise ModelFileError(f"a {type(estimator).__name__} of an earlier version cannot be updated; fit it again")
    dataset = open_dataset(source, [*model.encoder.column_names, model.target])
    n_rows, n_left_out = 0, 0
    for _, frame in dataset.frames([*model.encoder.column_names, model.target]):
        column = frame[model.target]
        if isinstance(estimator, TableClassifier):
            place = label_positions(column, estimator.classes_)
            given, y = place >= 0, estimator.classes_[place]
        else:
            y = to_numbers(column, model.decimal_comma).values
            given = np.isfinite(y)
        n_left_out += len(frame) - int(given.sum())
        if given.any():
            n_rows += int(given.sum())
            estimator.partial_fit(model.encoder.transform(frame[given]), y[given])
    if not n_rows:
        raise TableError(f"{dataset.name} has no row with a value in the target '{model.target}' that the model knows")
    notes = (*model.notes, f"Updated with {n_rows:,} rows of {dataset.name}.")
    return Update(replace(model, estimator=estimator, notes=notes), n_rows, n_left_out, dataset.notes())
