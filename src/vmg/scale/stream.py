"""Fits to datasets of any size, in two passes and in memory that does not grow with the rows, and their updates.

The first pass takes counts of all columns and a fair sample of rows. What needs rows in memory is done on the sample:
kinds of columns, medians, scales, hidden layers, held-out rows and what they say of noise and ignorance. What is a sum
over rows is done on all of them: missing cells, levels and, in the second pass, the output layers' posterior.
An update with rows that have arrived since is a second pass over them.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vmg
from vmg import processes
from vmg.estimators import ESTIMATORS, TableClassifier, TableModel, TableRegressor
from vmg.files import Run
from vmg.fit.design import InputRange, Standardiser, ordinary_rows
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.trainer import members_shared
from vmg.metrics import base_rate
from vmg.model_file import ModelFileError, fingerprint_tensors, read_state, write_state
from vmg.scale.dataset import Dataset, open_dataset
from vmg.scale.statistics import RowSample, TableCounts, fit_encoder
from vmg.tables import TableError
from vmg.tables.cells import Cells, CellTable, RowDigest, count, listing
from vmg.tables.choices import TableChoices
from vmg.tables.encoder import decide_comma
from vmg.tables.inputs import EncodedRows, TableInputs, keep_rows, row_digests
from vmg.tables.target import Task, centred_target, fit_target, label_positions, target_scale
from vmg.training import Callback

__all__ = ["FitCheckpoint", "Update", "condition_on_all", "fit_dataset", "fit_on_sample", "update_model"]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

SAMPLE_ROWS = 65_536
MIN_ROWS = 5
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of predictions at the reference rows, which stand for training targets
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
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callbacks: Sequence[Callback] = (),
    tell: Callable[[str], None] | None = None,
) -> TableModel:
    """Fit to every row of a dataset that has a target.

    Under ``torchrun`` (an initialised process group) processes share the rows, and the members of the ensemble while
    these are trained on the sample; all end with the same model. Callbacks are called in every process.

    Parameters
    ----------
    source : path
        What :func:`open_dataset` opens.
    target, task, exclude, choices, options, callbacks, tell
        As in :meth:`vmg.estimators.TableModel.fit`. Options are those of the estimator.
    sample_rows : int
        Rows that hidden layers and calibration learn from. A dataset with fewer is learned from whole.
    checkpoint : path, optional
        A file that keeps what is done, after the sample and after every piece of about a million rows; each process
        has its own. It is removed at the end.
    resume : bool
        Go on from the checkpoint where it is there, with as many processes as before, to the same bits. A checkpoint
        of other rows or settings is refused. False starts again.
    """
    choices, options = choices or TableChoices(), dict(options or {})
    dataset = open_dataset(source)
    missing = [name for name in (target, *exclude, *choices.named) if name not in dataset.schema.names]
    if missing:
        raise TableError(f"the table has no column {listing(missing)}; it has {listing(dataset.schema.names)}")
    left_out = list(dict.fromkeys([*exclude, *choices.ignored]))
    names = [name for name in dataset.schema.names if name not in left_out]
    if target not in names:
        raise TableError(f"the target '{target}' cannot be excluded")
    seed = options.get("random_state")
    of_sample = seed if isinstance(seed, int) else 0
    counts, sample, n_without, digest = _first_pass(dataset, names, target, sample_rows, of_sample)
    if counts.n_rows < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {counts.n_rows}")
    if dataset.decimal_comma is not None:
        sample.attrs["decimal_comma"] = dataset.decimal_comma
    table = CellTable(sample, training=True)
    encoder = fit_encoder(table, counts, choices, target)
    known = fit_target(table[target], task, decide_comma(table, choices))
    encoder, features = encoder.with_trends(
        encoder.transform(table), centred_target(known.values), target_scale(known.values)
    )
    regression = known.task == "regression"
    notes = [*dataset.notes(), known.reason]
    notes += [f"{count(n_without, 'row')} without a target left out."] if n_without else []
    notes += [f"Columns left out as asked: {listing(left_out)}."] if left_out else []
    notes += encoder.describe()
    notes.append(
        f"Hidden layers and calibration learned from {len(sample):,} of {counts.n_rows:,} rows, drawn at random"
        + ("; output layers from all." if regression else ", each counted for many.")
    )
    if tell is not None and processes.is_first():
        for note in notes:
            tell(note)
    settings: dict[str, Any] = {"columns": names, "target": target, "task": task, "sample_rows": sample_rows}
    settings |= {"choices": choices.to_document(), "options": repr(sorted(options.items())), "rows": digest}
    kept = FitCheckpoint(checkpoint, settings, resume=resume)
    estimator, done = kept.load() or (None, [])
    if estimator is None:
        kind = TableRegressor if regression else TableClassifier
        several = processes.rank_and_size()[1] > 1
        if several and not isinstance(seed, Integral):
            seed = processes.send(int(np.random.default_rng().integers(2**31)))
        estimator = kind(**{**options, "random_state": seed})
        fit_on_sample(estimator, features, known.values, counts, target, callbacks)
        if several:  # all have the first one's bits
            estimator = kind.from_document(*processes.send(estimator.to_document()))
        kept.save(estimator, done)
    estimator.read_with(TableInputs(encoder, keep_rows(encoder, table, known.values)))
    model = TableModel(
        *(estimator, target, known.task, known.decimal_comma, tuple(notes), known.unit),
        choices=choices,
        base_rate=base_rate(known.values),
    )
    if regression:
        condition_on_all(model, dataset, names, known.values, done, lambda: kept.save(model.estimator, done))
    kept.remove()
    return model


def _first_pass(
    dataset: Dataset, names: Sequence[str], target: str, sample_rows: int, seed: int
) -> tuple[TableCounts, pd.DataFrame, int, str]:
    """Counts and a sample of the rows with a target, the number of those without, and a digest of all rows.

    Processes each read their own rows, and all get what they have found together.
    """
    (rank, size), n_without, digests = processes.rank_and_size(), 0, {}
    counts, sample = TableCounts(), RowSample(sample_rows, seed)
    for piece in dataset.pieces[rank::size]:
        digest = RowDigest()
        for frame in dataset.frames_of(piece, names):
            digest.add(frame)
            given = frame[~Cells(frame[target]).missing]
            n_without += len(frame) - len(given)
            counts.add(given)
            sample.add(given, piece.number)
        digests[f"{piece.number:09d}"] = digest.hexdigest()
    if size > 1:
        own: list[Any] = [vars(counts), sample.to_bytes(), n_without, digests, dataset.refused]
        counts, sample, n_without = TableCounts(), RowSample(sample_rows, seed), 0
        for counted, rows, without, of_pieces, refused in processes.gather(own):
            counts.merge(**counted)
            sample.merge(rows)
            n_without += without
            digests |= of_pieces
            dataset.refused |= refused
    whole = hashlib.sha256("".join(digests[number] for number in sorted(digests)).encode())
    return counts, sample.rows(), n_without, whole.hexdigest()


# -- hidden layers from a sample, output layers from all rows ---------------------------------------------------------


def fit_on_sample(
    estimator: Estimator,
    X: Array,
    y: NDArray[Any],
    counts: TableCounts,
    target: str,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Fit an estimator to a sample, features X [n, D].

    Rows of a classifier's sample stand for all rows: each counts n_rows/n times. A regressor's count once, since
    :func:`condition_on_all` comes after.
    """
    units = [Standardiser.fit(X)]
    with members_shared():
        if isinstance(estimator, TableRegressor):
            estimator.fit(X, y, callbacks=callbacks, scaling=[*units, Standardiser.fit(y[:, None])])
            return
        classes = np.unique(y)  # and those that the sample missed, written as its own are
        if classes.dtype.kind == "U":
            classes = np.unique([*classes, *filter(None, counts.columns[target])])
        weight = np.full(len(X), counts.n_rows / len(X))
        estimator.partial_fit(X, y, classes, weight, callbacks=callbacks, scaling=units)


def condition_on_all(
    model: TableModel,
    dataset: Dataset,
    names: Sequence[str],
    sampled: Array,
    done: list[int],
    after_piece: Callable[[], None] = lambda: None,
) -> None:
    """Condition the output layers of a model of numbers on every row of a dataset, exactly.

    The posterior of output weights and noise depends on rows through sums alone (``RowStatistics``), so it is the one
    that all rows at once would give. Hidden layers and calibration stay those of the sample. Processes of a group each
    go through their own rows, and the sums are added up.

    Args:
        names: columns to read.
        sampled: targets of the sample, by which absurd ones are told.
        done: numbers of the pieces that were read before, whose sums the model has; those that are read are added.
        after_piece: called when a piece was read.
    """
    estimator, ensemble = model.estimator, model.estimator.ensemble_
    assert isinstance(estimator, TableRegressor) and isinstance(ensemble, RegressionEnsemble)
    if not done:
        ensemble.members.head.forget()
    rank, size = processes.rank_and_size()
    for piece in dataset.pieces[rank::size]:
        if piece.number in done:
            continue
        for frame in dataset.frames_of(piece, names):
            rows = _learnable(model, frame, sampled)
            if len(rows.y):
                estimator.partial_fit(rows.X, rows.y)
        done.append(piece.number)
        after_piece()
    ensemble = estimator.ensemble_
    assert isinstance(ensemble, RegressionEnsemble)
    processes.add_up_(list(ensemble.members.head.statistics))
    if not ensemble.members.head.count[0]:
        raise TableError(
            "no row of the dataset has a target that could be read as a number, although the sample's were"
        )
    low, high = ensemble.input_range.low, ensemble.input_range.high
    estimator.ensemble_ = replace(ensemble, input_range=InputRange(processes.smallest(low), -processes.smallest(-high)))


class _Learnable(NamedTuple):
    """Features and targets of rows that a model can learn from, and how many others there were."""

    X: EncodedRows
    y: NDArray[Any]
    n_unusable: int  # without a target, or with one that the model does not know
    n_absurd: int


def _learnable(model: TableModel, frame: pd.DataFrame, usual: Array | None) -> _Learnable:
    """The rows of a table that a model can learn from; ``usual`` targets tell which ones are absurd, as in the fit."""
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
    return _Learnable(EncodedRows(X), y[taken], int((~given).sum()), int((given & ~taken).sum()))


# -- fits that were killed --------------------------------------------------------------------------------------------


class FitCheckpoint:
    """The state of a streamed fit on disk, one file for each process; nothing is kept where no path is given.

    A file holds the estimator that was fitted to the sample, with the sums over the pieces that its process has read in
    the second pass. The first pass, which finds out what the columns are, is made again; it also gives the digest of
    all rows, by which a file of other data is refused.

    Parameters
    ----------
    path : path, optional
        The file; that of process k > 0 appends ``.k``.
    settings : mapping
        What the fit depends on; a file of another fit is refused, and so is another number of processes.
    resume : bool
        False removes the files of all processes that are there.
    """

    def __init__(self, path: str | os.PathLike[str] | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        rank, size = processes.rank_and_size()
        self.path = None if path is None else Path(os.fspath(path) + (f".{rank}" if rank else ""))
        self._run = Run({**settings, "processes": size, "version": vmg.__version__})
        if path is not None and not resume and rank == 0:
            base = Path(path)
            for file in base.parent.iterdir():
                if file.name == base.name or (file.stem == base.name and file.suffix[1:].isdecimal()):
                    file.unlink()

    def save(self, estimator: Estimator, pieces: Sequence[int]) -> None:
        """Keep the present state; a crash on the way leaves the last one."""
        if self.path is not None:
            tensors, document = estimator.to_document()
            write_state(self.path, self._run, "streamed fit", tensors, {"pieces": list(pieces), "estimator": document})

    def load(self) -> tuple[Estimator, list[int]] | None:
        """The state that was kept; None where a process of the run has kept none, or other networks than the rest."""
        state = None if self.path is None else read_state(self.path, self._run, "streamed fit")
        networks, kept = "", None
        if state is not None:
            tensors, document = state
            try:
                described = document["estimator"]
                estimator = ESTIMATORS[described["holds"]].from_document(tensors, described)
                kept = estimator, list(map(int, document["pieces"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ModelFileError(f"{self.path} is damaged; remove it to start again") from error
            networks = fingerprint_tensors(dict(estimator.ensemble_.members.features.state_dict()))
        return kept if set(processes.gather(networks)) == {networks} else None

    def remove(self) -> None:
        """Forget what was kept."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


# -- rows that have arrived since -------------------------------------------------------------------------------------


class Update(NamedTuple):
    """The model after an update, rows that it took in, rows that were left out, and sentences about them."""

    model: TableModel
    n_rows: int
    n_left_out: int
    notes: list[str]


def update_model(model: TableModel, source: str | os.PathLike[str], *, again: bool = False) -> Update:
    """Condition a model on the rows of a dataset that have a target; the given model stays as it is.

    Output layers that are integrated out take rows in exactly: the order of batches, and whether rows come at once,
    change nothing. Those of other likelihoods and of a classification take a natural-gradient step for each batch.
    Columns are read as in the fit; hidden layers and calibration stay, and a conformal calibration is forgotten.
    Targets that are absurd beside those of the training rows are left out, as in the fit.

    Parameters
    ----------
    model : TableModel
    source : path
        What :func:`open_dataset` opens.
    again : bool
        Take rows in that the model was fitted to, which then count twice. Without it, a dataset with many of them is
        refused.
    """
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
        rows = _learnable(model, frame, usual)
        n_unusable, n_absurd = n_unusable + rows.n_unusable, n_absurd + rows.n_absurd
        if len(rows.y):
            digests = row_digests(rows.X.features, rows.y)
            n_known += int(np.isin(digests, known).sum())
            reference = reference.with_digests(digests)
            n_rows += len(rows.y)
            estimator.partial_fit(rows.X, rows.y)
    if not n_rows:
        raise TableError(f"{dataset.name} has no row with a value in the target '{model.target}' that the model knows")
    if not again and n_known > KNOWN_SHARE * n_rows * share_of_digests:
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
    estimator.inputs_ = replace(model.inputs, reference=reference)
    return Update(replace(model, notes=said), n_rows, n_unusable + n_absurd, notes)
