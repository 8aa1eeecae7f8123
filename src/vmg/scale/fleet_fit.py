"""Fitting a fleet into a folder: one model for each group of a table's rows.

Groups are fitted in batches, each written as soon as it is fitted; a run that was killed goes on from there. The index
comes last: a folder without one is unfinished.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vmg
from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.estimators.table_model import PreparedTable, prepare_table
from vmg.files import Run
from vmg.fit.design import MANY_ROWS, ordinary_rows
from vmg.likelihoods.families import LIKELIHOODS
from vmg.scale.fleet import MODELS, FleetIndex
from vmg.scale.group_fits import Estimator, GroupTable, choose_group_likelihood, fit_apart, fit_together
from vmg.scale.parallel import run_parallel
from vmg.scale.pooling import Pool, fit_pool
from vmg.tables import TableError
from vmg.tables.cells import RowDigest, require_columns, to_texts
from vmg.tables.choices import TableChoices
from vmg.tables.missing import ReferenceRows, row_digests
from vmg.tables.scores import base_rate
from vmg.tables.target import Task
from vmg.tables.wording import count

__all__ = ["FleetReport", "fit_fleet"]

OTHERS = "others.vmg"  # the model of groups that are not known
MIN_ROWS = 5  # of a group with a model of its own alone
BATCH_CELLS = 12_000  # rows of a batch, padding included: what fits into the caches of a core
MOST_PADDING = 1.3  # times the rows of the smallest group
POOLED = ("auto", "student", "lognormal")  # likelihoods of groups that borrow from each other
MIN_REFERENCE = 32  # rows of a pooled group that unknown cells are drawn from; with fewer, rows of all groups


@dataclass(frozen=True)
class FleetReport:
    """Report of a run: groups fitted now, groups whose files were there already, and groups without a model."""

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
    choices: TableChoices | None = None,
    options: Mapping[str, Any] | None = None,
    n_jobs: int = 1,
    tell: Callable[[str], None] | None = None,
) -> FleetReport:
    """Fit one model for each value of a column, and write them into a folder with an index.

    Parameters
    ----------
    frame : DataFrame
        Rows of all groups. Columns are read in one way for all of them.
    target, task, exclude, choices, options
        As in :meth:`vmg.estimators.TableModel.fit`. Options that are not given are those of small groups.
    by : str
        The column that tells groups apart.
    out : path
        A folder; what is in it of the same run is not fitted again.
    pool : bool
        Let groups share hidden layers and a learned prior of their output layers, so that a group of few rows borrows
        from the others. Groups that are not known are then predicted too, with more ignorance. Regression only.
    n_jobs : int
        As in :func:`vmg.scale.run_parallel`.
    tell : callable, optional
        Called with sentences about what is done.
    """
    options, choices = {"random_state": 0, **(options or {})}, choices or TableChoices()
    require_columns(frame, [target, by, *exclude])
    frame = frame.reset_index(drop=True)
    keys = to_texts(frame[by])
    if keys.isna().all():
        raise TableError(f"no row has both a target '{target}' and a group '{by}'")
    if by == target:
        raise TableError(f"the target must be another column than the groups'; got '{by}' for both")
    choices = replace(choices, types={name: kind for name, kind in choices.types.items() if name != by})
    columns = frame[keys.notna()].drop(columns=by)
    table = prepare_table(columns, target, task, [name for name in exclude if name != by], 0.0, choices, options)
    regression = table.target.task == "regression"
    if pool and (not regression or options.get("likelihood", "auto") not in POOLED):
        raise TableError(f"groups can be pooled in regression with the likelihoods {', '.join(POOLED)}; got another")
    keys = keys[table.rows.frame.index]
    groups = pd.Series(np.arange(len(keys))).groupby(keys.to_numpy()).indices
    rows: dict[str, NDArray[np.int64]] = {str(key): places for key, places in groups.items()}
    refused = _refused(rows, table.values, pool)
    notes = [*table.notes, f"{count(len(rows), 'group')} by '{by}'."]
    notes += [f"Group '{key}' has no model of its own: {reason}." for key, reason in refused.items()]
    for note in notes if tell is not None else ():
        tell(note)  # type: ignore[misc]

    digest = RowDigest()
    digest.add(table.rows.frame.assign(**{target: table.values, f"{by} ": keys}))
    seed = options.pop("random_state")
    settings = {"target": target, "by": by, "task": table.target.task, "pool": pool, "seed": seed}
    settings |= {"options": repr(sorted(options.items())), "choices": choices.to_document(), "rows": digest.hexdigest()}
    with Run({**settings, "version": vmg.__version__}).claim(out) as folder:
        (folder.path / MODELS).mkdir(exist_ok=True)
        files = {key: f"{number:06d}.vmg" for number, key in enumerate(rows) if key not in refused}
        tables = {
            key: GroupTable(number, table.features[rows[key]], table.values[rows[key]], options, seed)
            for number, key in enumerate(rows)
            if key in files
        }
        if regression and tables:
            choice = choose_group_likelihood(list(tables.values()))
            tables = {key: replace(one, likelihood=choice) for key, one in tables.items()}
        if pool:  # groups on their own leave absurd targets out themselves
            tables = {key: _ordinary(one, table.values) for key, one in tables.items()}
        make = _ModelMaker(table, target)

        def save(model: TableModel, name: str) -> None:
            model.save(folder.path / MODELS / name)
            folder.add(f"{MODELS}/{name}")

        done = [key for key, name in files.items() if folder.is_done(f"{MODELS}/{name}")]
        shared = None
        if pool and (len(done) < len(files) or not folder.is_done(f"{MODELS}/{OTHERS}")):
            shared = fit_pool(list(tables.values()), options, seed)
            about = "Model of groups that are not known."
            save(make(shared.estimator_of(None), np.arange(len(keys)), about), OTHERS)
        left = {tables[key].number: key for key in files if key not in set(done)}
        tasks = _tasks([tables[key] for key in left.values()], list(tables.values()), table.target.task, shared)
        fitted = []
        for position, estimators in run_parallel(fit_task, tasks, n_jobs=n_jobs):
            for group, estimator in zip(tasks[position].tables, estimators, strict=True):
                key = left.get(group.number)
                if key is not None:
                    about = f"Model of the group '{key}', {count(len(group.y), 'row')}."
                    save(make(estimator, rows[key], about, pooled=pool), files[key])
                    fitted.append(key)
        sizes = {key: len(rows[key]) for key in files}
        others = OTHERS if pool else None
        FleetIndex(by, target, table.target.task, files, sizes, refused, others, tuple(notes)).write(folder.path)
    return FleetReport(sorted(fitted), sorted(done), refused, notes)


class _ModelMaker:
    """Makes the table models of groups, which read columns in one way and keep reference rows of their own."""

    def __init__(self, table: PreparedTable, target: str) -> None:
        self._table, self._target = table, target
        self._given = np.column_stack([~marks["missing"] for marks in table.encoder.marks(table.rows)])
        self._digests = row_digests(table.features, table.values)

    def __call__(
        self, estimator: Estimator, rows: NDArray[np.int64], about: str, *, pooled: bool = False
    ) -> TableModel:
        """The model of a group with these rows; a small pooled one draws unknown cells from rows of all groups."""
        table, encoder = self._table, self._table.encoder
        near = np.arange(len(table.values)) if pooled and len(rows) < MIN_REFERENCE else rows
        reference = ReferenceRows.sample(
            table.features[near], self._given[near], encoder.feature_scales, encoder.widths, self._digests[near], seed=0
        )
        return TableModel(
            *(encoder, estimator, self._target, table.target.task, table.target.decimal_comma),
            notes=(table.target.reason, about),
            unit=table.target.unit,
            reference=reference,
            choices=table.choices,
            base_rate=base_rate(table.values[rows]),
        )


def fit_task(task: FleetTask) -> list[Estimator]:
    """Fit the groups of a task; the same numbers in any process."""
    if task.pool is not None:
        return [task.pool.estimator_of(table) for table in task.tables]
    if _is_together(task.tables[0], task.task):
        return list(fit_together(task.tables))
    kind: type[Estimator] = TableRegressor if task.task == "regression" else TableClassifier
    return [fit_apart(table, kind) for table in task.tables]


def _ordinary(table: GroupTable, values: NDArray[Any]) -> GroupTable:
    """A group without rows whose target is absurd beside those of all groups."""
    kept = ordinary_rows(table.y, table.likelihood.name, values)
    return replace(table, X=table.X[kept], y=table.y[kept])


def _is_together(table: GroupTable, task: Task) -> bool:
    """Whether a group is fitted with others: one of few rows whose output layer is integrated out."""
    return task == "regression" and len(table.y) < MANY_ROWS and LIKELIHOODS[table.likelihood.name].closed_form


def _tasks(left: Sequence[GroupTable], planned: Sequence[GroupTable], task: Task, pool: Pool | None) -> list[FleetTask]:
    """Batches with a group that is left; batches are made of all groups, so that they are the same after a kill."""
    wanted = {table.number for table in left}
    batches: list[list[GroupTable]] = []
    for table in sorted(planned, key=lambda table: (len(table.y), table.number)):
        alone = pool is None and not _is_together(table, task)
        last = batches[-1] if batches else []
        padded = len(table.y) * (len(last) + 1)
        if alone or not last or padded > BATCH_CELLS or len(table.y) > MOST_PADDING * len(last[0].y) + 8:
            batches.append([])
        batches[-1].append(table)
    return [FleetTask(tuple(batch), task, pool) for batch in batches if any(t.number in wanted for t in batch)]


def _refused(rows: Mapping[str, NDArray[np.int64]], y: NDArray[Any], pool: bool) -> dict[str, str]:
    """Groups that no model of their own can be fitted to, and the reason."""
    reasons: dict[str, str] = {}
    for key, places in rows.items() if not pool else ():
        if len(places) < MIN_ROWS:
            reasons[key] = f"it has {count(len(places), 'row')}, and a fit needs {MIN_ROWS}"
        elif len(np.unique(y[places])) < 2:
            reasons[key] = f"its target is always {y[places][0]}"
    return reasons
