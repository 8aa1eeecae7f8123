"""Fitting a fleet into a folder: groups dealt out in batches, each written as soon as it is fitted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.fit.design import MANY_ROWS
from vmg.scale.fleet_folder import FleetFolder, FleetIndex
from vmg.scale.group_fits import Estimator, GroupTable, fit_apart, fit_together
from vmg.scale.parallel import spread
from vmg.scale.pooling import Pool, fit_pool
from vmg.tables import TableEncoder, TableError
from vmg.tables.cells import no_value, to_texts
from vmg.tables.target import Task, fit_target
from vmg.tables.wording import count, listing

__all__ = ["FleetReport", "fit_fleet"]

MIN_ROWS = 5  # of a group with a model of its own alone
BATCH_CELLS = 12_000  # rows of a batch, padding included: what fits into the caches of a core
MOST_PADDING = 1.3  # times the rows of the smallest group


@dataclass(frozen=True)
class FleetReport:
    """What was done: groups fitted now, groups whose files were there already, and groups without a model."""

    fitted: list[str]
    found: list[str]
    refused: Mapping[str, str]
    notes: list[str]


@dataclass(frozen=True)
class FleetTask:
    """Groups that are fitted together, or one that is fitted on its own; with a pool, groups that borrow from it."""

    tables: tuple[GroupTable, ...]
    task: Task
    pool: Pool | None = None


def fit_fleet(
    frame: pd.DataFrame,
    target: str,
    by: str,
    out: str | os.PathLike[str],
    *,
    task: Task | None = None,
    exclude: Sequence[str] = (),
    pool: bool = False,
    options: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    ray_address: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> FleetReport:
    """Fit one model for each value of a column, and write them into a folder with an index.

    Parameters
    ----------
    frame : DataFrame
        Rows of all groups. Columns are read in one way for all of them.
    target, task, exclude, options
        As in :meth:`vmg.estimators.TableModel.fit`. Options that are not given are those of small groups.
    by : str
        The column that tells groups apart.
    out : path
        A folder; what is in it of the same run is not fitted again.
    pool : bool
        Let groups share hidden layers and a learned prior of their output layers, so that a group of few rows borrows
        from the others. Groups that are not known are then predicted too, with more ignorance. Regression only.
    n_jobs, ray_address
        As in :func:`vmg.scale.spread`.
    tell : callable, optional
        Called with sentences about what is done.
    """
    options = dict(options or {})
    seed = options.pop("random_state", 0)
    missing = [name for name in (target, by, *exclude) if name not in frame.columns]
    if missing:
        raise TableError(f"the table has no column {listing(missing)}; it has {listing(frame.columns)}")
    keys = to_texts(frame[by])
    frame = frame[keys.notna() & ~no_value(frame[target])]
    keys = keys[frame.index] if frame.index.is_unique else to_texts(frame[by])
    if frame.empty:
        raise TableError(f"no row has both a target '{target}' and a group '{by}'")
    found = fit_target(frame[target], task)
    if pool and found.task != "regression":
        raise TableError("groups can be pooled in regression; the task is classification")
    encoder = TableEncoder.fit(frame.drop(columns=[target, by, *exclude]))
    X = encoder.transform(frame)
    rows = {str(key): place for key, place in pd.Series(np.arange(len(frame))).groupby(keys.to_numpy()).indices.items()}
    refused = _refused(rows, found.values, found.task, pool)
    notes = [found.reason, *encoder.describe(), f"{count(len(rows), 'group')} by '{by}'."]
    notes += [f"Group '{key}' has no model of its own: {reason}." for key, reason in refused.items()]
    for note in notes:
        if tell is not None:
            tell(note)

    folder = FleetFolder(out)
    settings = {
        "target": target,
        "by": by,
        "task": found.task,
        "pool": pool,
        "seed": seed,
        "options": repr(sorted(options.items())),
    }
    folder.claim({**settings, "columns": encoder.feature_names, "rows": _digest(X, found.values, keys)})
    files = {key: f"{number:06d}.vmg" for number, key in enumerate(rows) if key not in refused}
    tables = {
        key: GroupTable(number, X[rows[key]], found.values[rows[key]], options, seed)
        for number, key in enumerate(rows)
        if key in files
    }

    def save(estimator: Estimator, name: str, about: str) -> None:
        TableModel(encoder, estimator, target, found.task, found.decimal_comma, (*notes[:1], about)).save(
            folder.model(name)
        )

    done = [key for key, name in files.items() if folder.model(name).exists()]
    others, shared = None, None
    if pool:
        others = "others.vmg"
        if len(done) < len(files) or not folder.model(others).exists():
            shared = fit_pool(list(tables.values()), options, seed)
            save(shared.estimator_of(None), others, "Model of groups that are not known.")
    left = {tables[key].number: key for key in files if key not in set(done)}
    tasks = _tasks([tables[key] for key in left.values()], [tables[key] for key in files], found.task, shared)
    fitted = []
    for position, estimators in spread(fit_task, tasks, n_jobs=n_jobs, ray_address=ray_address):
        for table, estimator in zip(tasks[position].tables, estimators, strict=True):
            key = left.get(table.number)
            if key is not None:
                save(estimator, files[key], f"Model of the group '{key}', {count(len(table.y), 'row')}.")
                fitted.append(key)
    sizes = {key: len(rows[key]) for key in files}
    folder.write_index(FleetIndex(by, target, found.task, files, sizes, refused, others, tuple(notes)))
    return FleetReport(sorted(fitted), sorted(done), refused, notes)


def fit_task(task: FleetTask) -> list[Estimator]:
    """Fit the groups of a task; the same numbers in any process."""
    if task.pool is not None:
        return [task.pool.estimator_of(table) for table in task.tables]
    if task.task == "regression" and len(task.tables[0].y) < MANY_ROWS:
        return list(fit_together(task.tables))
    kind: type[Estimator] = TableRegressor if task.task == "regression" else TableClassifier
    return [fit_apart(table, kind) for table in task.tables]


def _tasks(left: Sequence[GroupTable], planned: Sequence[GroupTable], task: Task, pool: Pool | None) -> list[FleetTask]:
    """Batches with a group that is left; batches are made of all groups, so that they are the same after a kill."""
    wanted = {table.number for table in left}
    batches: list[list[GroupTable]] = []
    for table in sorted(planned, key=lambda table: (len(table.y), table.number)):
        alone = pool is None and (task == "classification" or len(table.y) >= MANY_ROWS)
        last = batches[-1] if batches else []
        padded = len(table.y) * (len(last) + 1)
        if alone or not last or padded > BATCH_CELLS or len(table.y) > MOST_PADDING * len(last[0].y) + 8:
            batches.append([])
        batches[-1].append(table)
    return [FleetTask(tuple(batch), task, pool) for batch in batches if any(t.number in wanted for t in batch)]


def _refused(rows: Mapping[str, NDArray[np.int64]], y: NDArray[Any], task: Task, pool: bool) -> dict[str, str]:
    """Groups that no model of their own can be fitted to, and why."""
    reasons: dict[str, str] = {}
    for key, places in rows.items():
        distinct = len(np.unique(y[places]))
        if len(places) < MIN_ROWS and not pool:
            reasons[key] = f"it has {count(len(places), 'row')}, and a fit needs {MIN_ROWS}"
        elif distinct < 2 and not pool:
            reasons[key] = f"its target is always {y[places][0]}"
    return reasons


def _digest(X: NDArray[np.float64], y: NDArray[Any], keys: pd.Series) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(X).tobytes())
    digest.update(json.dumps([[str(value) for value in y], list(keys)]).encode())
    return digest.hexdigest()
