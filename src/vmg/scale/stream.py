"""Fits to datasets of any size, in two passes and in memory that does not grow with the rows, and their updates.

The first pass takes a fair sample of rows, from which columns, scales, hidden layers and calibration are learned. The
second conditions the output layers on all rows, whose sums are all that they need. An update with new rows is another.
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg import processes
from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.estimators.table_estimator import MIN_ROWS
from vmg.estimators.table_model import prepare_table
from vmg.fit.design import InputRange, Standardiser, ordinary_rows
from vmg.fit.gaussian import RegressionEnsemble
from vmg.model_file import from_bytes, to_bytes
from vmg.scale.dataset import Dataset, open_dataset
from vmg.scale.pooling import Estimator
from vmg.tables import TableError
from vmg.tables.cells import Cells, CellTable, count, listing, require_columns
from vmg.tables.columns import TableChoices
from vmg.tables.inputs import EncodedRows, Task, label_positions, row_digests
from vmg.training import Callback

__all__ = ["RowSample", "Update", "condition_on_all", "fit_dataset", "fit_on_sample", "update_model"]

Array = NDArray[np.float64]

SAMPLE_ROWS = 65_536
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of predictions at the reference rows, which stand for training targets
KEY = "vmg: random key"  # a column of a sample
KNOWN_SHARE = 0.05  # of the rows of an update that the model has seen; some tables have equal rows by chance


def fit_dataset(
    source: str | os.PathLike[str],
    target: str,
    *,
    task: Task | None = None,
    exclude: Sequence[str] = (),
    choices: TableChoices | None = None,
    sample_rows: int = SAMPLE_ROWS,
    options: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    tell: Callable[[str], None] | None = None,
) -> TableModel:
    """Fit to every row of a dataset that has a target.

    Under ``torchrun`` (an initialised process group) processes share the rows. Each trains on the sample and calls the
    callbacks; all go on with what the first one has trained.

    Parameters
    ----------
    source : path
        What :func:`open_dataset` opens.
    target, task, exclude, choices, options, callbacks, tell
        As in :meth:`vmg.estimators.TableModel.fit`. Options are those of the estimator.
    sample_rows : int
        Rows that hidden layers and calibration learn from. A dataset with fewer is learned from whole.
    """
    choices, options = choices or TableChoices(), dict(options or {})
    dataset = open_dataset(source)
    require_columns(pd.DataFrame(columns=dataset.schema.names), [target, *exclude, *choices.named])
    left_out = list(dict.fromkeys([*exclude, *choices.ignored]))
    if target in left_out:
        raise TableError(f"the target '{target}' cannot be excluded")
    names = [name for name in dataset.schema.names if name not in left_out]
    seed = options.get("random_state")
    n_rows, n_without, sample = _first_pass(dataset, names, target, sample_rows, seed if isinstance(seed, int) else 0)
    if n_rows < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {n_rows}")
    if dataset.decimal_comma is not None:
        sample.attrs["decimal_comma"] = dataset.decimal_comma
    table = prepare_table(
        sample, target, choices.without(left_out), task=task, options=options, target_statistics=False
    )
    estimator, regression = table.estimator, table.target.task == "regression"
    notes = [*dataset.notes(), *table.notes]
    notes += [f"{count(n_without, 'row')} without a target left out."] if n_without else []
    notes += [f"Columns left out as asked: {listing(left_out)}."] if left_out else []
    notes.append(
        f"Columns, hidden layers and calibration learned from {len(sample):,} of {n_rows:,} rows, drawn at random"
        + ("; output layers from all." if regression else ", each counted for many.")
    )
    if tell is not None and processes.is_first():
        for note in notes:
            tell(note)
    fit_on_sample(estimator, table.features, table.values, n_rows, callbacks)
    if processes.rank_and_size()[1] > 1:  # all have the first one's bits
        sent = processes.send_bytes(to_bytes(*estimator.to_document()))
        estimator = type(estimator).from_document(*from_bytes(sent, "the first process's model"))
    estimator.read_with(table.inputs)
    model = table.model_of(estimator, target, choices, notes, table.values)
    if regression:
        condition_on_all(model, dataset, names, table.values)
    return model


def _first_pass(
    dataset: Dataset, names: Sequence[str], target: str, sample_rows: int, seed: int
) -> tuple[int, int, pd.DataFrame]:
    """The numbers of rows with and without a target, and a sample of those with one.

    Processes each read their own rows, and all get the numbers and the sample of all rows.
    """
    (rank, size), n_rows, n_without, sample = processes.rank_and_size(), 0, 0, RowSample(sample_rows)
    for piece in dataset.pieces[rank::size]:
        keys = np.random.default_rng([seed, piece.number])
        for frame in dataset.frames_of(piece, names):
            given = frame[~Cells(frame[target]).missing]
            n_rows, n_without = n_rows + len(given), n_without + len(frame) - len(given)
            sample.add(given, keys.random(len(given)))
    if size > 1:
        n_rows, n_without = np.sum(processes.gather([n_rows, n_without]), axis=0).tolist()
        for refused in processes.gather(dataset.refused):
            dataset.refused |= refused
        parts = processes.gather_bytes(sample.rows(with_keys=True).to_parquet(index=False))
        sample = RowSample(sample_rows)
        for part in parts:
            rows = pd.read_parquet(io.BytesIO(part))
            sample.add(rows.drop(columns=KEY), rows[KEY].to_numpy())
    return n_rows, n_without, sample.rows()


class RowSample:
    """The ``size`` rows with the smallest of random keys: all sets of so many rows are equally likely.

    Keys come from a generator for each piece of a dataset. So the sample does not depend on who reads which piece, and
    the sample of several samples is that of all rows.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1; got {size}")
        self._size, self._limit = size, np.inf
        self._frames: list[pd.DataFrame] = []

    def add(self, frame: pd.DataFrame, keys: Array) -> None:
        """Look at rows with their keys."""
        near = keys < self._limit
        if near.any():
            self._frames.append(frame[near].assign(**{KEY: keys[near]}))
        if sum(map(len, self._frames)) >= 2 * self._size:
            self._frames = [self.rows(with_keys=True)]
            self._limit = float(self._frames[0][KEY].iloc[-1])

    def rows(self, *, with_keys: bool = False) -> pd.DataFrame:
        """The sample, in random order."""
        frames = self._frames or [pd.DataFrame({KEY: np.zeros(0)})]
        smallest = pd.concat(frames, ignore_index=True).sort_values(KEY, ignore_index=True)[: self._size]
        return smallest if with_keys else smallest.drop(columns=KEY)


# -- hidden layers from a sample, output layers from all rows ---------------------------------------------------------


def fit_on_sample(
    estimator: Estimator, X: Array, y: NDArray[Any], n_rows: int, callbacks: Sequence[Callback] = ()
) -> None:
    """Fit an estimator to a sample of ``n_rows`` rows, features X [n, D].

    Rows of a classifier's sample stand for all rows: each counts n_rows/n times. A regressor's count once, since
    :func:`condition_on_all` comes after.
    """
    units, weight = [Standardiser.fit(X)], None
    if isinstance(estimator, TableRegressor):
        units.append(Standardiser.fit(y[ordinary_rows(y, "student"), None]))  # no unit of absurd targets
    else:
        weight = np.full(len(X), n_rows / len(X))
    estimator.fit(X, y, weight, callbacks=callbacks, scaling=units)


def condition_on_all(model: TableModel, dataset: Dataset, names: Sequence[str], sampled: Array) -> None:
    """Condition the output layers of a model of numbers on every row of a dataset, exactly.

    The posterior of output weights and noise depends on rows through sums alone (``RowStatistics``), which processes of
    a group add up. ``names`` are columns to read, ``sampled`` targets that tell which ones are absurd.
    """
    estimator, ensemble = model.estimator, model.estimator.ensemble_
    assert isinstance(estimator, TableRegressor) and isinstance(ensemble, RegressionEnsemble)
    ensemble.members.head.forget()
    rank, size = processes.rank_and_size()
    for piece in dataset.pieces[rank::size]:
        for frame in dataset.frames_of(piece, names):
            X, y, _ = _learnable(model, frame, sampled)
            if len(y):
                estimator.partial_fit(X, y)
    ensemble = estimator.ensemble_
    assert isinstance(ensemble, RegressionEnsemble)
    processes.add_up_(list(ensemble.members.head.statistics))
    if not ensemble.members.head.count[0]:
        raise TableError("no row of the dataset has a target that could be read as a number, but the sample's were")
    ends = processes.gather([ensemble.input_range.low.tolist(), ensemble.input_range.high.tolist()])
    low, high = np.min([low for low, _ in ends], axis=0), np.max([high for _, high in ends], axis=0)
    estimator.ensemble_ = replace(ensemble, input_range=InputRange(low, high))


def _learnable(
    model: TableModel, frame: pd.DataFrame, usual: Array | None
) -> tuple[EncodedRows, NDArray[Any], tuple[int, int]]:
    """Features and targets of the rows that a model can learn from, and the numbers of others.

    These are rows without a target that the model knows, and rows whose target is absurd beside the ``usual`` ones.
    """
    estimator = model.estimator
    if isinstance(estimator, TableClassifier):
        place = label_positions(Cells(frame[model.target]), estimator.classes_)
        y, given = estimator.classes_[place], place >= 0
        taken = given
    else:
        y = model.read_target(frame[model.target])
        given = np.isfinite(y)
        taken = given.copy()
        taken[given] = ordinary_rows(y[given], estimator.likelihood_, usual) if given.any() else False
    X = model.encoder.transform(CellTable(frame[taken], training=True))
    return EncodedRows(X), y[taken], (int((~given).sum()), int((given & ~taken).sum()))


# -- rows that have arrived since -------------------------------------------------------------------------------------


class Update(NamedTuple):
    """The model after an update, rows that it took in, rows that were left out, and sentences about them."""

    model: TableModel
    n_rows: int
    n_left_out: int
    notes: list[str]


def update_model(model: TableModel, source: str | os.PathLike[str], *, again: bool = False) -> Update:
    """Condition a model on the rows of a dataset that have a target; the given model stays as it is.

    Output layers that are integrated out take rows in exactly, in any order; those of other likelihoods and of a
    classification take a natural-gradient step for each batch. Hidden layers and calibration stay, a conformal
    calibration is forgotten. Targets that are absurd beside those of the training rows are left out.

    Parameters
    ----------
    model : TableModel
    source : path
        What :func:`open_dataset` opens.
    again : bool
        Take rows in that the model was fitted to, which then count twice. Without it, a dataset with many of them is
        refused.
    """
    was_calibrated = model.estimator.conformal_scores_ is not None
    model = replace(model, estimator=copy.deepcopy(model.estimator))
    estimator, reference, usual = model.estimator, model.inputs.reference, None
    known = reference.digests
    if isinstance(estimator, TableRegressor):
        usual = np.asarray(estimator.predict_quantiles(EncodedRows(reference.features), LEVELS)).ravel()
    ensemble = estimator.ensemble_  # only regressions in closed form count their rows
    n_seen = float(ensemble.members.head.count[0]) if isinstance(ensemble, RegressionEnsemble) else 0.0
    share_of_digests = min(1.0, len(known) / max(n_seen, 1.0))
    names = [*model.encoder.column_names, model.target]
    dataset = open_dataset(source, names)
    n_rows, n_unusable, n_absurd, n_known = 0, 0, 0, 0
    for frame in dataset.frames(names):
        X, y, left_out = _learnable(model, frame, usual)
        n_unusable, n_absurd = n_unusable + left_out[0], n_absurd + left_out[1]
        if len(y):
            digests = row_digests(X.features, y)
            n_rows, n_known = n_rows + len(y), n_known + int(np.isin(digests, known).sum())
            reference = reference.with_digests(digests)
            estimator.partial_fit(X, y)
    if not n_rows:
        raise TableError(f"{dataset.name} has no row with a value in the target '{model.target}' that the model knows")
    if not again and n_known > KNOWN_SHARE * n_rows * share_of_digests:
        raise TableError(
            f"the model has seen at least {count(n_known, 'row')} of {n_rows:,} in {dataset.name} before, and they "
            "would count twice; leave them out, or give --again (again=True)"
        )
    notes = dataset.notes()
    if was_calibrated:
        notes.append(
            "Intervals are no longer calibrated: the update has changed the model that they were calibrated for."
        )
    if n_absurd:
        notes.append(f"{count(n_absurd, 'row')} left out: the target is absurdly far beyond those of the fit.")
    if n_known:
        notes.append(f"At least {count(n_known, 'row')} seen by the model before, counted once more.")
    said = (*model.notes, f"Updated with {n_rows:,} rows of {dataset.name}.")
    estimator.inputs_ = replace(model.inputs, reference=reference)
    return Update(replace(model, notes=said), n_rows, n_unusable + n_absurd, notes)
