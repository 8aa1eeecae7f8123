"""Fitting a table's model to a dataset of any size, in two passes and in memory that does not grow with its rows.

The first pass takes statistics of all columns and a fair sample of rows. What needs rows in memory is done on the
sample: kinds of columns, medians, hidden layers, held-out rows and what they say of noise and ignorance. What is a
sum over rows is done on all of them: counts, levels, scales and, in the second pass, the output layers' posterior.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.estimators.preparing import keep_rows
from vmg.fit.design import Standardiser
from vmg.fit.shared_members import members_shared
from vmg.scale import sharing
from vmg.scale.checkpoint import KeptFit, RowsRead
from vmg.scale.conditioning import condition_on_all, fit_on_sample
from vmg.scale.dataset import Dataset, open_dataset
from vmg.scale.encoding import fit_encoder, fit_scaling
from vmg.scale.parts import Piece
from vmg.scale.row_sample import RowSample
from vmg.scale.statistics import TableStatistics
from vmg.tables import TableEncoder, TableError
from vmg.tables.numbers import to_numbers
from vmg.tables.target import Task, fit_target
from vmg.tables.wording import count, listing
from vmg.training import Callback

__all__ = ["SAMPLE_ROWS", "fit_dataset"]

SAMPLE_ROWS = 65_536
MIN_ROWS = 5


def fit_dataset(
    source: str | os.PathLike[str],
    target: str,
    *,
    task: Task | None = None,
    exclude: Sequence[str] = (),
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
    target, task, exclude, options, callbacks, tell
        As in :meth:`vmg.estimators.TableModel.fit`. Options are those of the estimator.
    sample_rows : int
        Rows that hidden layers and calibration learn from. A dataset with fewer is learned from whole.
    checkpoint : path, optional
        A file that keeps what is done, after the sample and after every piece of about a million rows; each process
        has its own. It is removed at the end.
    resume : bool
        Go on from the checkpoint where it is there: with as many processes as before, to the same bits. With another
        number sums are added in another order, and files must be where the processes that go on find them. False
        starts anew.
    """
    dataset = open_dataset(source)
    missing = [name for name in (target, *exclude) if name not in dataset.schema.names]
    if missing:
        raise TableError(f"the table has no column {listing(missing)}; it has {listing(dataset.schema.names)}")
    names = [name for name in dataset.schema.names if name not in exclude]
    estimator_options = dict(options or {})
    seed = estimator_options.get("random_state")
    statistics, sample, n_without = _first_pass(
        dataset, names, target, sample_rows, seed if isinstance(seed, int) else 0
    )
    if statistics.n_rows < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {statistics.n_rows}")
    found = fit_target(sample[target], task)
    columns = sample.drop(columns=[target])
    encoder = fit_encoder(columns, statistics)
    encoded = encoder.transform(columns)
    notes = [*dataset.notes(), found.reason]
    notes += [f"{count(n_without, 'row')} without a target left out."] if n_without else []
    notes += encoder.describe()
    notes.append(
        f"Hidden layers and calibration learned from {len(sample):,} of {statistics.n_rows:,} rows, drawn at random"
        + ("; output layers from all." if found.task == "regression" else ", each counted for many.")
    )
    if tell is not None and sharing.is_first():
        for note in notes:
            tell(note)
    scaling = [fit_scaling(encoder, encoded, statistics)]
    kind = TableRegressor if found.task == "regression" else TableClassifier
    estimator = kind(**{**estimator_options, "random_state": _common_seed(seed)})
    classes = None
    if isinstance(estimator, TableRegressor):
        scaling.append(_target_scaling(found.values, statistics, target))
    else:
        classes = _all_classes(found.values, statistics, target)
    settings = [names, target, task, sample_rows, repr(sorted(estimator_options.items()))]
    pieces = [[piece.part.name, list(piece.groups), piece.n_rows] for piece in dataset.pieces]
    kept = KeptFit(checkpoint, [pieces, *settings], resume=resume)
    resumed = kept.load()
    if resumed is not None:
        estimator, start, read_before = resumed
    else:
        with members_shared():
            fit_on_sample(
                estimator,
                encoded,
                found.values,
                n_rows=statistics.n_rows,
                scaling=scaling,
                classes=classes,
                callbacks=callbacks,
            )
        estimator, start, read_before = sharing.send(estimator), RowsRead.none(encoded.shape[1]), frozenset()
        kept.save(estimator, start)
    if isinstance(estimator, TableRegressor):
        regressor = estimator
        rest = _encoded(dataset, names, target, encoder, found.decimal_comma, read_before)
        condition_on_all(regressor, rest, start, lambda done: kept.save(regressor, done))
    kept.remove()
    return TableModel(
        *(encoder, estimator, target, found.task, found.decimal_comma, tuple(notes)),
        reference=keep_rows(encoder, columns, found.values),
    )


def _common_seed(seed: Any) -> Any:
    """A seed that is the same in all processes; the given one, where there is one process or it is a number."""
    if sharing.shard()[1] == 1 or isinstance(seed, Integral):
        return seed
    return sharing.send(int(np.random.default_rng().integers(2**31)))


def _first_pass(
    dataset: Dataset, names: Sequence[str], target: str, sample_rows: int, seed: int
) -> tuple[TableStatistics, pd.DataFrame, int]:
    """Statistics of all columns, a sample of rows, and the number of rows without a target; of all processes."""
    statistics, sample, n_without = TableStatistics(), RowSample(sample_rows, seed), 0
    for piece, frame in dataset.frames(names, shard=sharing.shard()):
        given = frame[frame[target].notna()]
        n_without += len(frame) - len(given)
        statistics.add(given)
        sample.add(given, piece.number)
    found = sharing.gather((statistics, sample, n_without, dataset.refused))
    statistics, sample, n_without, _ = found[0]
    for more, rows, without, refused in found[1:]:
        statistics.merge(more)
        sample.merge(rows)
        n_without += without
        dataset.refused += [part for part in refused if part not in dataset.refused]
    return statistics, sample.rows(), n_without


def _encoded(
    dataset: Dataset,
    names: Sequence[str],
    target: str,
    encoder: TableEncoder,
    decimal_comma: bool,
    read_before: frozenset[int] = frozenset(),
) -> Iterator[tuple[int, Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]]]:
    """Features and numeric targets of the pieces that were not read before, a batch at a time.

    Rows whose target is no finite number are left out.
    """

    def batches(piece: Piece) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        for frame in dataset.frames_of(piece, names):
            values = to_numbers(frame[target], decimal_comma).values
            given = np.isfinite(values)
            yield encoder.transform(frame[given]), values[given]

    for piece in dataset.own_pieces(sharing.shard()):
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
    found, levels = np.unique(sampled), statistics.columns[target].levels
    return np.unique([*found, *levels]) if found.dtype.kind == "U" else found
