"""A fleet: one model for each group of a table's rows, in a folder of model files with an index.

Groups are fitted in batches, each written as soon as it is fitted; a run that was killed goes on from there. The index
comes last: a folder without one is unfinished.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vmg
from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.estimators.prediction_table import FLAGS
from vmg.estimators.preparing import PreparedTable, prepare_table
from vmg.estimators.table_model import Outside
from vmg.files import Run, replacing
from vmg.fit.design import MANY_ROWS
from vmg.model_file import ModelFileError
from vmg.scale.group_fits import Estimator, GroupTable, fit_apart, fit_together
from vmg.scale.parallel import run_parallel
from vmg.scale.pooling import Pool, fit_pool
from vmg.tables import TableError
from vmg.tables.cells import RowDigest, require_columns, to_texts
from vmg.tables.choices import TableChoices
from vmg.tables.missing import ReferenceRows, row_digests
from vmg.tables.scores import base_rate
from vmg.tables.target import Task
from vmg.tables.wording import count

__all__ = ["Fleet", "FleetIndex", "FleetReport", "fit_fleet", "load_fleet"]

INDEX, MODELS = "index.json", "models"
OTHERS = "others.vmg"  # the model of groups that are not known
LOADED_MODELS = 2_000  # that a process keeps
MIN_ROWS = 5  # of a group with a model of its own alone
BATCH_CELLS = 12_000  # rows of a batch, padding included: what fits into the caches of a core
MOST_PADDING = 1.3  # times the rows of the smallest group
MIN_REFERENCE = 32  # rows of a pooled group that unknown cells are drawn from; with fewer, rows of all groups


@dataclass(frozen=True)
class FleetIndex:
    """Which column tells groups apart, the file of each, its rows, and groups without a model, with the reason."""

    by: str
    target: str
    task: str
    files: Mapping[str, str]
    rows: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)
    others: str | None = None
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Call the fleet in a folder finished."""
        document = {"holds": "fleet", **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        with replacing(folder / INDEX) as temporary:
            temporary.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> FleetIndex:
        """The index of a finished fleet; names of files may not lead out of the folder."""
        place = folder / INDEX
        if not place.exists():
            raise ModelFileError(
                f"{folder} holds a fleet that is not finished; run its `vmg fit` again, which goes on"
                if (folder / MODELS).is_dir()
                else f"{folder} must hold a fleet, with its {INDEX}; there is none"
            )
        try:
            document = json.loads(place.read_text(encoding="utf-8"))
            if document["holds"] != "fleet":
                raise ValueError(f"it holds {document['holds']!r:.40}")
            fields = {name: document[name] for name in cls.__dataclass_fields__}
            files = [*fields["files"].values(), *([fields["others"]] if fields["others"] else [])]
            if not files or not all(isinstance(name, str) and Path(name).name == name for name in files):
                raise ValueError("files must have one plain name or more")
            texts = [*(fields[name] for name in ("by", "target", "task")), *fields["files"], *fields["refused"]]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("names must be texts")
            return cls(**{**fields, "notes": tuple(fields["notes"])})
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{place} does not describe a fleet: {error!r:.200}") from error


@dataclass(frozen=True)
class FleetReport:
    """What was done: groups fitted now, groups whose files were there already, and groups without a model."""

    fitted: list[str]
    found: list[str]
    refused: Mapping[str, str]
    notes: list[str]


# -- fitting ----------------------------------------------------------------------------------------------------------


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
    if pool and table.target.task != "regression":
        raise TableError("groups can be pooled in regression; the task is classification")
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


def _refused(rows: Mapping[str, NDArray[np.int64]], y: NDArray[Any], pool: bool) -> dict[str, str]:
    """Groups that no model of their own can be fitted to, and the reason."""
    reasons: dict[str, str] = {}
    for key, places in rows.items() if not pool else ():
        if len(places) < MIN_ROWS:
            reasons[key] = f"it has {count(len(places), 'row')}, and a fit needs {MIN_ROWS}"
        elif len(np.unique(y[places])) < 2:
            reasons[key] = f"its target is always {y[places][0]}"
    return reasons


# -- predicting -------------------------------------------------------------------------------------------------------


class Fleet:
    """The models in a fleet's folder, each loaded when its first row comes.

    Make one with :func:`fit_fleet`, get it back with :func:`load_fleet`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.index = FleetIndex.read(self.path)
        self.target, self.task = self.index.target, self.index.task
        self._loaded: OrderedDict[str, TableModel] = OrderedDict()

    @property
    def groups(self) -> list[str]:
        """Groups that have a model."""
        return list(self.index.files)

    @property
    def files(self) -> list[Path]:
        """The index and all model files."""
        names = [*self.index.files.values(), *([self.index.others] if self.index.others else [])]
        return [self.path / INDEX, *(self.path / MODELS / name for name in names)]

    @property
    def any_model(self) -> TableModel:
        """The model of groups that are not known, or else of the first group; all read columns in the same way."""
        return self._load(self.index.others or next(iter(self.index.files.values())))

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have: those of the models, and the one that tells groups apart."""
        return [*self.any_model.encoder.column_names, self.index.by]

    def model(self, group: str) -> TableModel:
        """The model of a group, or the one for groups that are not known."""
        name = self.index.files.get(group, self.index.others)
        if name is None:
            reason = self.index.refused.get(group)
            raise TableError(f"there is no model of '{group}'" + (f": {reason}" if reason else ""))
        return self._load(name)

    def _load(self, name: str) -> TableModel:
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name]
        path = self.path / MODELS / name
        model = vmg.load(path)
        if not isinstance(model, TableModel) or (model.target, model.task) != (self.target, self.task):
            raise ModelFileError(f"{path} must hold a model of this fleet's target '{self.target}'; it does not")
        group = next((key for key, file in self.index.files.items() if file == name), None)
        if group is not None and not any(note.startswith(f"Model of the group '{group}',") for note in model.notes):
            raise ModelFileError(f"{path} must hold the model of the group '{group}'; it holds another group's")
        self._loaded[name] = model
        if len(self._loaded) > LOADED_MODELS:
            self._loaded.popitem(last=False)
        return model

    def parts(self, frame: pd.DataFrame) -> list[tuple[TableModel, NDArray[np.int64]]]:
        """Models with the positions of their rows in ``frame``; rows of groups without a model are in none."""
        require_columns(frame, [self.index.by])
        names = [self.index.files.get(key, self.index.others) for key in to_texts(frame[self.index.by])]
        groups = pd.Series(np.arange(len(frame))).groupby(np.array(names, dtype=object)).indices
        return [(self._load(name), places) for name, places in groups.items()]

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9, *, outside: Outside = "flag") -> pd.DataFrame:
        """Predictions with a row for each row of ``frame``, each by the model of its own group.

        Rows of groups without a model have no prediction (missing cells) and the flag ``unseen`` with the column that
        tells groups apart, unless the fleet was pooled. ``outside`` is that of
        :meth:`vmg.estimators.TableModel.predict_frame`.
        """
        parts = self.parts(frame)
        if parts:
            tables = [model.predict_frame(frame.iloc[places], coverage, outside=outside) for model, places in parts]
            places = np.concatenate([places for _, places in parts])
            predicted = pd.concat(tables, ignore_index=True).set_axis(places)
        else:
            predicted = self.any_model.predict_frame(frame.iloc[:1], coverage).iloc[:0]
        predicted = predicted.reindex(range(len(frame))).set_axis(frame.index)
        return predicted.assign(**{FLAGS: predicted[FLAGS].fillna(f"unseen:{self.index.by}")})

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """Groups of ``frame`` that have no model of their own."""
        require_columns(frame, [self.index.by])
        return sorted(set(to_texts(frame[self.index.by]).dropna()) - set(self.index.files))


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet in a folder that :func:`fit_fleet` wrote."""
    return Fleet(path)
