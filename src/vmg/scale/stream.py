"""Fits to datasets of any size, in two passes and in memory that does not grow with the rows.

The first pass takes statistics of all columns and a fair sample of rows. What needs rows in memory is done on the
sample: kinds of columns, medians, hidden layers, held-out rows and what they say of noise and ignorance. What is a
sum over rows is done on all of them: counts, levels, scales and, in the second pass, the output layers' posterior.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vmg import processes
from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.estimators.table_inputs import keep_rows
from vmg.fit.design import InputRange, Standardiser, ordinary_rows, squash
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.trainer import members_shared
from vmg.scale.checkpoint import Estimator, FitCheckpoint, RowsRead
from vmg.scale.dataset import Dataset, Piece, Refused, open_dataset
from vmg.scale.statistics import RowSample, TableStatistics, fit_encoder, fit_scaling
from vmg.tables import TableEncoder, TableError
from vmg.tables.cells import CellTable, RowDigest, no_value
from vmg.tables.choices import TableChoices
from vmg.tables.encoder import decide_comma
from vmg.tables.numbers import to_numbers
from vmg.tables.scores import base_rate
from vmg.tables.target import Target, Task, fit_target
from vmg.tables.wording import count, listing
from vmg.training import Callback

__all__ = ["SAMPLE_ROWS", "condition_on_all", "fit_dataset", "fit_on_sample"]

Array = NDArray[np.float64]
Batches = Iterable[tuple[Array, Array]]
Pieces = Iterable[tuple[int, Batches]]

SAMPLE_ROWS = 65_536
MIN_ROWS = 5


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
    choices, estimator_options = choices or TableChoices(), dict(options or {})
    dataset = open_dataset(source)
    missing = [name for name in (target, *exclude, *choices.named) if name not in dataset.schema.names]
    if missing:
        raise TableError(f"the table has no column {listing(missing)}; it has {listing(dataset.schema.names)}")
    left_out = list(dict.fromkeys([*exclude, *choices.ignored]))
    names = [name for name in dataset.schema.names if name not in left_out]
    if target not in names:
        raise TableError(f"the target '{target}' cannot be excluded")
    seed = estimator_options.get("random_state")
    first = _first_pass(dataset, names, target, sample_rows, seed if isinstance(seed, int) else 0)
    statistics, sample = first.statistics, first.sample.rows()
    if statistics.n_rows < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {statistics.n_rows}")
    if dataset.decimal_comma is not None:
        sample.attrs["decimal_comma"] = dataset.decimal_comma
    table = CellTable(sample, training=True)
    encoder = fit_encoder(table, statistics, choices, target)
    read = fit_target(table[target], task, decide_comma(table, choices))
    encoded = encoder.transform(table)
    notes = [*dataset.notes(), read.reason]
    notes += [f"{count(first.n_without, 'row')} without a target left out."] if first.n_without else []
    notes += [f"Columns left out as asked: {listing(left_out)}."] if left_out else []
    notes += encoder.describe()
    notes.append(
        f"Hidden layers and calibration learned from {len(sample):,} of {statistics.n_rows:,} rows, drawn at random"
        + ("; output layers from all." if read.task == "regression" else ", each counted for many.")
    )
    if tell is not None and processes.is_first():
        for note in notes:
            tell(note)
    scaling = [fit_scaling(encoder, encoded, statistics)]
    kind = TableRegressor if read.task == "regression" else TableClassifier
    estimator = kind(**{**estimator_options, "random_state": _common_seed(seed)})
    classes = None
    if isinstance(estimator, TableRegressor):
        scaling.append(_target_scaling(read.values, statistics, target))
    else:
        classes = _all_classes(read.values, statistics, target)
    settings: dict[str, Any] = {"columns": names, "target": target, "task": task, "sample_rows": sample_rows}
    settings |= {"choices": choices.to_document(), "options": repr(sorted(estimator_options.items()))}
    kept = FitCheckpoint(checkpoint, {**settings, "rows": first.digest}, resume=resume)
    resumed = kept.load()
    if resumed is not None:
        estimator, start = resumed
    else:
        with members_shared():
            fit_on_sample(
                estimator,
                encoded,
                read.values,
                n_rows=statistics.n_rows,
                scaling=scaling,
                classes=classes,
                callbacks=callbacks,
            )
        estimator, start = _first_ones(estimator), RowsRead.none(encoded.shape[1])
        kept.save(estimator, start)
    if isinstance(estimator, TableRegressor):
        regressor = estimator
        rest = _encoded(dataset, names, target, encoder, read, start.pieces)
        condition_on_all(regressor, rest, read.values, start, lambda done: kept.save(regressor, done))
    kept.remove()
    return TableModel(
        *(encoder, estimator, target, read.task, read.decimal_comma, tuple(notes), read.unit),
        reference=keep_rows(encoder, table, read.values),
        choices=choices,
        base_rate=base_rate(read.values),
    )


def _common_seed(seed: Any) -> Any:
    """A seed that is the same in all processes; the given one, where there is one process or it is a number."""
    if processes.rank_and_size()[1] == 1 or isinstance(seed, Integral):
        return seed
    return processes.send(int(np.random.default_rng().integers(2**31)))


def _first_ones(estimator: Estimator) -> Estimator:
    """The estimator of the first process, in all of them."""
    if processes.rank_and_size()[1] == 1:
        return estimator
    tensors, document = processes.send(estimator.to_document())
    return estimator if processes.is_first() else type(estimator).from_document(tensors, document)


class _FirstPass(NamedTuple):
    """Result of the first pass: statistics and a sample of rows with a target, and a digest of all rows."""

    statistics: TableStatistics
    sample: RowSample
    n_without: int
    digest: str


def _first_pass(dataset: Dataset, names: Sequence[str], target: str, sample_rows: int, seed: int) -> _FirstPass:
    """Read all rows once; processes each read their own, and all get what they have found together."""
    statistics, sample, n_without = TableStatistics(), RowSample(sample_rows, seed), 0
    digests: dict[int, RowDigest] = {}
    for piece, frame in dataset.frames(names, shard=processes.rank_and_size()):
        digests.setdefault(piece.number, RowDigest()).add(frame)
        given = frame[~no_value(frame[target])]
        n_without += len(frame) - len(given)
        statistics.add(given)
        sample.add(given, piece.number)
    texts = {f"{number:09d}": digest.hexdigest() for number, digest in digests.items()}
    if processes.rank_and_size()[1] > 1:
        own: list[Any] = [statistics.to_document(), sample.to_document(), n_without, texts]
        refused = [[part.name, part.reason] for part in dataset.refused]
        statistics, sample, n_without, texts = TableStatistics(), RowSample(sample_rows, seed), 0, {}
        for of_columns, rows, without, digests_of_others, parts in processes.gather([*own, refused]):
            statistics.merge(TableStatistics.from_document(of_columns))
            sample.merge(rows)
            n_without += without
            texts |= digests_of_others
            dataset.refused += [part for part in starmap(Refused, parts) if part not in dataset.refused]
    whole = hashlib.sha256("".join(texts[number] for number in sorted(texts)).encode())
    return _FirstPass(statistics, sample, n_without, whole.hexdigest())


def _encoded(
    dataset: Dataset,
    names: Sequence[str],
    target: str,
    encoder: TableEncoder,
    read: Target,
    read_before: Sequence[int],
) -> Iterator[tuple[int, Iterator[tuple[Array, Array]]]]:
    """Features and numeric targets of the pieces that were not read before, a batch at a time.

    Rows whose target is no finite number are left out.
    """

    def batches(piece: Piece) -> Iterator[tuple[Array, Array]]:
        for frame in dataset.frames_of(piece, names):
            values = to_numbers(frame[target], read.decimal_comma, read.unit).values
            given = np.isfinite(values)
            yield encoder.transform(CellTable(frame[given], training=True)), values[given]

    for piece in dataset.own_pieces(processes.rank_and_size()):
        if piece.number not in read_before:
            yield piece.number, batches(piece)


def _target_scaling(sampled: NDArray[Any], statistics: TableStatistics, target: str) -> Standardiser:
    numbers = statistics.columns[target].numbers
    if numbers is None:  # numbers that are written as texts
        return Standardiser.fit(sampled[:, None])
    scale = numbers.scale
    return Standardiser(numbers.mean, np.where(scale > 0, scale, 1.0))


def _all_classes(sampled: NDArray[Any], statistics: TableStatistics, target: str) -> NDArray[Any]:
    """Classes of the sample and those that it missed, written as the sample's are."""
    classes, levels = np.unique(sampled), statistics.columns[target].levels
    return np.unique([*classes, *levels]) if classes.dtype.kind == "U" else classes


# -- hidden layers from a sample, output layers from all rows ---------------------------------------------------------


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
    sampled: Array | None = None,
    start: RowsRead | None = None,
    after_piece: Callable[[RowsRead], None] | None = None,
) -> int:
    """Condition the output layers on every row of ``pieces``, exactly; the number of rows.

    The posterior of output weights and noise depends on rows through sums alone (``RowStatistics``), so it is the one
    that all rows at once would give. Hidden layers and calibration stay those of the sample. Processes of a group each
    go through their own rows, and the sums are added up.

    Args:
        pieces: the number of each piece with batches of its X [n, D] and y [n].
        sampled: targets of the sample, by which absurd ones are told; those of each batch itself without them.
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
            kept = ordinary_rows(y, estimator.likelihood_, sampled)  # mistakes are left out, as in the fit
            X, y = X[kept], y[kept]
            x = squash(estimator.input_scaling_.transform(X))
            targets = estimator.target_scaling_.transform(y.reshape(len(y), -1))
            members.update(torch.as_tensor(x), torch.as_tensor(targets), None)
            done = done.and_also(x)
        done = done.after(number)
        if after_piece is not None:
            after_piece(done)
    processes.add_up_(list(members.head.statistics))
    n_rows = sum(processes.gather(done.n_rows))
    if not n_rows:
        raise TableError(
            "no row of the dataset has a target that could be read as a number, although the sample's were"
        )
    low, high = processes.smallest(done.low), -processes.smallest(-done.high)
    estimator.ensemble_ = replace(ensemble, members=members, input_range=InputRange(low, high))
    return n_rows
