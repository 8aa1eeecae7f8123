"""A fleet: one model for each group of a table's rows, in a folder of model files with an index.

A group is fitted as a table of its own would be, or pooled with the others. Each is written as soon as it is fitted; a
run that was killed goes on from there. The index comes last: a folder without one is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vmg
from vmg.estimators import TableModel
from vmg.estimators.table_estimator import FLAGS, MIN_ROWS
from vmg.estimators.table_model import prepare_table
from vmg.files import Run, file_stamp, replacing
from vmg.fit.design import ordinary_rows, use_threads
from vmg.model_file import ModelFileError, from_fields
from vmg.scale.parallel import run_parallel
from vmg.scale.pooling import Estimator, GroupTable, choose_group_likelihood, fit_pool
from vmg.tables import TableEncoder, TableError
from vmg.tables.cells import Cells, count, require_columns, row_hashes, to_texts
from vmg.tables.columns import TableChoices
from vmg.tables.inputs import ReferenceRows, TableInputs, Task, row_digests
from vmg.training import History

__all__ = ["Fleet", "FleetReport", "fit_fleet", "load_fleet", "load_table_model"]

Rows = NDArray[np.int64]

INDEX, MODELS = "index.json", "models"
OTHERS = "others.vmg"  # the model of groups that are not known
OTHER_GROUPS = "Model of groups that are not known."
LOADED_MODELS = 2_000  # that a process keeps
POOLED = ("auto", "student", "lognormal")  # likelihoods of groups that borrow from each other
MIN_REFERENCE = 32  # rows of a pooled group that unknown cells are drawn from; with fewer, rows of all groups


def load_table_model(path: str | os.PathLike[str]) -> TableModel:
    """The model of a table in a file; loaded again only where the file has changed."""
    return _load_once(os.fspath(path), file_stamp(path))


@lru_cache(maxsize=LOADED_MODELS)
def _load_once(path: str, stamp: tuple[int, ...]) -> TableModel:
    model = vmg.load(path)
    if not isinstance(model, TableModel):
        raise ModelFileError(f"{path} holds a {type(model).__name__} without a table's columns; use vmg.load in Python")
    return model


@dataclass(frozen=True)
class Fleet:
    """The models in the folder of :func:`fit_fleet`, each loaded when its first row comes; see :func:`load_fleet`.

    ``by`` is the column that tells groups apart, ``rows`` has the training rows of each group with a model, in the
    order of their files, and ``refused`` the other groups with the reason. A ``pooled`` fleet has a model of groups
    that are not known.
    """

    path: Path
    by: str
    target: str
    task: str
    rows: Mapping[str, int]
    refused: Mapping[str, str]
    pooled: bool
    notes: tuple[str, ...]

    @property
    def groups(self) -> list[str]:
        """Groups that have a model."""
        return list(self.rows)

    @cached_property
    def names(self) -> dict[str | None, str]:
        """The model file of each group, and for None of groups that are not known, below the fleet's folder."""
        names: dict[str | None, str] = {key: f"{MODELS}/{number:06d}.vmg" for number, key in enumerate(self.rows)}
        return names | ({None: f"{MODELS}/{OTHERS}"} if self.pooled else {})

    def about(self, group: str | None) -> str:
        """The note that the model of a group has."""
        return OTHER_GROUPS if group is None else f"Model of the group '{group}', {count(self.rows[group], 'row')}."

    @property
    def any_model(self) -> TableModel:
        """The model of groups that are not known, or else of the first group; all read columns in the same way."""
        return self._load(None if self.pooled else next(iter(self.rows)))

    @property
    def encoder(self) -> TableEncoder:
        """How columns become features; the same in all groups."""
        return self.any_model.encoder

    @property
    def choices(self) -> TableChoices:
        """Choices of the user about columns."""
        return self.any_model.choices

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of :func:`~vmg.tables.read_table` with which a file is read as at the fit."""
        reading = self.any_model.reading
        return {**reading, "texts": {**reading["texts"], self.by: ()}}

    def model(self, group: str) -> TableModel:
        """The model of a group, or the one for groups that are not known."""
        if group not in self.rows and not self.pooled:
            reason = self.refused.get(group)
            raise TableError(f"there is no model of '{group}'" + (f": {reason}" if reason else ""))
        return self._load(group if group in self.rows else None)

    def _load(self, group: str | None) -> TableModel:
        """The model of a group that has one; of groups that are not known, for None."""
        path = self.path / self.names[group]
        model = load_table_model(path)
        if (model.target, model.task) != (self.target, self.task):
            raise ModelFileError(f"{path} must hold a model of this fleet's target '{self.target}'; it does not")
        if (about := self.about(group)) not in model.notes:
            raise ModelFileError(f"{path} must hold the {about[0].lower()}{about[1:].rstrip('.')}; it holds another")
        return model

    def parts(self, frame: pd.DataFrame) -> list[tuple[TableModel, Rows]]:
        """Models with the positions of their rows in ``frame``; rows of groups without a model are in none."""
        keys = self._keys(frame)
        known = np.flatnonzero(keys.isin(self.groups))
        own = pd.Series(known).groupby(keys.to_numpy()[known]).indices
        parts = [(self._load(group), known[places]) for group, places in own.items()]
        others = np.setdiff1d(np.arange(len(frame)), known)
        return [*parts, (self._load(None), others)] if self.pooled and len(others) else parts

    def rows_of(self, frame: pd.DataFrame, group: str | None = None) -> tuple[str, TableModel, pd.DataFrame]:
        """A group, its model and its rows in ``frame``; the group with most rows and a model, if none is named."""
        keys = self._keys(frame)
        if group is None:
            known = keys.dropna() if self.pooled else keys[keys.isin(self.groups)]
            if known.empty:
                raise TableError("no row is of a group with a model")
            group = str(known.value_counts().index[0])
        model, rows = self.model(group), frame[(keys == group).to_numpy()]
        if rows.empty:
            raise TableError(f"no row is of the group '{group}'")
        return group, model, rows

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9, **how: Any) -> pd.DataFrame:
        """Predictions of each row by the model of its group; see :meth:`vmg.estimators.TableModel.predict_frame`.

        Rows of groups without a model have no prediction (missing cells) and the flag ``unseen`` with the column that
        tells groups apart, unless the fleet was pooled.
        """
        parts = self.parts(frame)
        if parts:
            tables = [model.predict_frame(frame.iloc[places], coverage, **how) for model, places in parts]
            places = np.concatenate([places for _, places in parts])
            predicted = pd.concat(tables, ignore_index=True).set_axis(places)
        else:
            predicted = self.any_model.predict_frame(frame.iloc[:1], coverage, **how | {"outside": "flag"}).iloc[:0]
        predicted = predicted.reindex(range(len(frame))).set_axis(frame.index)
        return predicted.assign(**{FLAGS: predicted[FLAGS].fillna(f"unseen:{self.by}")})

    def evaluate(self, frame: pd.DataFrame, coverage: float = 0.9) -> dict[str, float]:
        """The scores of :meth:`vmg.estimators.TableModel.evaluate`, each row scored by the model of its own group.

        Rows without a target or a model are left out. Scores of groups are averaged by their rows; ``r2`` is of all
        rows together.
        """
        return self._average(frame, lambda model, rows: model.evaluate(rows, coverage))

    def evaluate_base_rate(self, frame: pd.DataFrame, coverage: float = 0.9) -> dict[str, float]:
        """The scores that knowing the training targets of each group alone gives."""
        return self._average(frame, lambda model, rows: model.evaluate_base_rate(rows, coverage))

    def training_share(self, frame: pd.DataFrame) -> float:
        """The share of the rows with a target that the models were fitted to, as far as their files know."""
        return self._average(frame, lambda model, rows: {"share": model.training_share(rows)})["share"]

    def _average(
        self, frame: pd.DataFrame, score: Callable[[TableModel, pd.DataFrame], Mapping[str, float]]
    ) -> dict[str, float]:
        """Scores of groups as those of all rows: means weighted by rows, of squares for the root mean squared error."""
        require_columns(frame, [self.target])
        frame = frame[~Cells(frame[self.target]).missing]
        parts = [(model, frame.iloc[places]) for model, places in self.parts(frame)]
        if not parts:
            raise TableError(f"no row has both a value in the target '{self.target}' and a group with a model")
        scores, sizes = [score(model, rows) for model, rows in parts], [len(rows) for _, rows in parts]
        means = {name: float(np.average([one[name] for one in scores], weights=sizes)) for name in scores[0]}
        if "rmse" in means:
            means["rmse"] = float(np.sqrt(np.average([one["rmse"] ** 2 for one in scores], weights=sizes)))
            spread = float(np.std(np.concatenate([model.target_values(rows) for model, rows in parts])))
            means["r2"] = 1 - (means["rmse"] / spread) ** 2 if spread > 0 else float("nan")
        return means | ({"rows": sum(sizes)} if "rows" in means else {})

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """Groups of ``frame`` that have no model of their own."""
        return sorted(set(self._keys(frame).dropna()) - set(self.rows))

    def _keys(self, frame: pd.DataFrame) -> pd.Series:
        """The group of each row."""
        require_columns(frame, [self.by])
        return to_texts(frame[self.by])


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet in a folder that :func:`fit_fleet` wrote."""
    folder, place = Path(path), Path(path) / INDEX
    if not place.exists():
        unfinished = f"{folder} holds a fleet that is not finished; run its `vmg fit` again, which goes on"
        none = f"{folder} must hold a fleet, with its {INDEX}; there is none"
        raise ModelFileError(unfinished if (folder / MODELS).is_dir() else none)
    try:
        document = json.loads(place.read_text(encoding="utf-8"))
        if document.pop("holds") != "fleet":
            raise ValueError("it holds something else")
        fleet = from_fields(Fleet, {"path": folder, **document})
        if not (fleet.rows or fleet.pooled):
            raise ValueError("there must be a model")
        return fleet
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{place} does not describe a fleet: {error!r:.200}") from error


# -- fitting ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetReport:
    """Report of a run: groups fitted now, groups whose files were there already, and groups without a model."""

    fitted: list[str]
    found: list[str]
    refused: Mapping[str, str]
    notes: list[str]


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
    progress: Callable[[int, int], None] | None = None,
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
    progress : callable, optional
        Called with the numbers of groups that have a model so far, and of all.
    """
    options, choices = {"random_state": 0, **(options or {})}, choices or TableChoices()
    require_columns(frame, [target, by, *exclude])
    frame = frame.reset_index(drop=True)
    keys = to_texts(frame[by])
    if keys.isna().all():
        raise TableError(f"no row has both a target '{target}' and a group '{by}'")
    if by == target:
        raise TableError(f"the target must be another column than the groups'; got '{by}' for both")
    choices = choices.without([by])
    columns = frame[keys.notna()].drop(columns=by)
    exclude = [name for name in exclude if name != by]
    table = prepare_table(columns, target, choices, task=task, exclude=exclude, options=options)
    if pool and (table.target.task != "regression" or options.get("likelihood", "auto") not in POOLED):
        raise TableError(f"groups can be pooled in regression with the likelihoods {', '.join(POOLED)}; got another")
    keys = keys[table.rows.frame.index]
    groups = pd.Series(np.arange(len(keys))).groupby(keys.to_numpy()).indices
    rows: dict[str, Rows] = {str(key): places for key, places in groups.items()}
    refused = _refused(rows, table.values, pool)
    notes = [*table.notes, f"{count(len(rows), 'group')} by '{by}'."]
    notes += [f"Group '{key}' has no model of its own: {reason}." for key, reason in refused.items()]
    for note in notes if tell is not None else ():
        tell(note)  # type: ignore[misc]

    digest = hashlib.sha256(row_hashes(table.rows.frame.assign(**{target: table.values, f"{by} ": keys}))).hexdigest()
    seed = options.pop("random_state")
    settings = {"target": target, "by": by, "task": table.target.task, "pool": pool, "seed": seed}
    settings |= {"options": repr(sorted(options.items())), "choices": asdict(choices), "rows": digest}
    with Run({**settings, "version": vmg.__version__}).claim(out) as folder:
        (folder.path / MODELS).mkdir(exist_ok=True)
        sizes = {key: len(places) for key, places in rows.items() if key not in refused}
        fleet = Fleet(folder.path, by, target, table.target.task, sizes, refused, pool, tuple(notes))
        encoder, everybody = table.inputs.encoder, np.arange(len(keys))
        given = np.column_stack([~marks["missing"] for marks in encoder.marks(table.rows)])
        digests, usual = row_digests(table.features, table.values), np.ones(len(keys), dtype=np.bool_)
        if pool:
            asked = options.get("likelihood", "auto")
            choice = choose_group_likelihood(table.features, table.values, [rows[key] for key in sizes], asked, seed)
            usual = ordinary_rows(table.values, choice.name)

        numbers: dict[str | None, int] = {key: number for number, key in enumerate(rows)} | {None: 2**31}

        def table_of(group: str | None) -> GroupTable:
            """The rows of a group, and the parameters of its estimator."""
            own = int(np.random.default_rng([seed, numbers[group]]).integers(2**31 - 1))
            places = everybody[:0] if group is None else rows[group][usual[rows[group]]]
            return GroupTable(table.features[places], table.values[places], {**options, "random_state": own})

        def save(estimator: Estimator, group: str | None) -> None:
            """Write the model of a group, or for None of the unknown; a small pooled one draws cells from all rows."""
            own, history = everybody if group is None else rows[group], estimator.history_
            last = [replace(record, seconds=0.0) for record in history.records[-1:]]  # files have the same bits again
            estimator.history_ = History(last, history.stopped, history.notes)
            near = everybody if pool and len(own) < MIN_REFERENCE else own
            kept = ReferenceRows.sample(encoder, table.features[near], given[near], digests[near])
            estimator.read_with(TableInputs(encoder, kept))
            said = table.target.reason, fleet.about(group)
            model = table.model_of(estimator, target, choices, said, table.values[own])
            model.save(folder.path / fleet.names[group])
            folder.add(fleet.names[group])

        done = [key for key in sizes if folder.source_of(fleet.names[key]) is not None]
        left = [key for key in sizes if key not in set(done)]
        fit: Callable[[GroupTable], Estimator] = partial(fit_group, kind=type(table.estimator))
        if pool and (left or folder.source_of(fleet.names[None]) is None):
            shared = fit_pool([table_of(key) for key in sizes], choice, options, seed)
            fit, n_jobs = shared.estimator_of, 1  # a pooled group takes no longer than its way to another process
            with use_threads(1):
                save(shared.estimator_of(table_of(None)), None)
        tasks = [table_of(key) for key in left]
        for n_done, (position, estimator) in enumerate(run_parallel(fit, tasks, n_jobs=n_jobs), len(done) + 1):
            save(estimator, left[position])
            if progress is not None:
                progress(n_done, len(sizes))
        document = {"holds": "fleet", **{one.name: getattr(fleet, one.name) for one in fields(fleet)[1:]}}
        with replacing(folder.path / INDEX) as temporary:
            temporary.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return FleetReport(sorted(left), sorted(done), refused, notes)


def fit_group(table: GroupTable, *, kind: type[Estimator]) -> Estimator:
    """The model of one group by itself; the same numbers in any process."""
    return kind(**table.options).fit(table.X, table.y)


def _refused(rows: Mapping[str, Rows], y: NDArray[Any], pool: bool) -> dict[str, str]:
    """Groups that no model of their own can be fitted to, and the reason."""
    reasons: dict[str, str] = {}
    for key, places in rows.items() if not pool else ():
        if len(places) < MIN_ROWS:
            reasons[key] = f"it has {count(len(places), 'row')}, and a fit needs {MIN_ROWS}"
        elif len(np.unique(y[places])) < 2:
            reasons[key] = f"its target is always {y[places][0]}"
    return reasons
