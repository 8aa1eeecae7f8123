"""Scores on held-out rows: which rows are held out, fits without them, and a file of what is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators.table_model import TableModel
from vmg.files import Run, RunError, replacing
from vmg.review.comparison import Comparison, FoldScores, compare_fold, join_folds
from vmg.tables.cells import Cells, RowDigest, TableError, count, to_texts
from vmg.tables.dates import find_date_format, to_days, to_timestamps
from vmg.tables.numbers import to_numbers
from vmg.tables.target import Task, fit_target

__all__ = ["FinishedFolds", "Holdout", "Split", "describe_run", "plan_splits", "score_held_out"]

Rows = NDArray[np.int64]
Split = tuple[Rows, Rows]  # to fit to, to score on

MIN_SCORED = 5
MIN_FITTED = 10


@dataclass(frozen=True)
class Holdout:
    """How rows are held out.

    Parameters
    ----------
    share : float
        Of the rows, where they are held out once.
    folds : int
        Above 1: each fold is held out in turn.
    by : str or None
        Rows with the same value in this column are held out together.
    time : str or None
        The last rows in the order of this column are held out.
    """

    share: float = 0.2
    folds: int = 0
    by: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise TableError(f"the share of rows to hold out must be between 0 and 1; got {self.share:g}")
        if self.folds == 1 or self.folds < 0:
            raise TableError(f"the number of folds must be at least 2; got {self.folds}")
        if self.by is not None and self.time is not None:
            raise TableError("rows are held out by groups or by time; got both")

    def splits(self, frame: pd.DataFrame, target: NDArray[Any], seed: int) -> list[Split]:
        """Positions of the rows to fit to and to score on; none where there are too few rows.

        Classes keep their shares in random splits, and copies of a row stay together.
        """
        n = len(frame)
        if self.time is not None:
            return self._by_time(frame)
        place = self._groups(frame) if self.by is not None else self._shuffled(target, n, seed)
        n_folds = self.folds or max(2, round(1 / self.share))
        if self.by is not None:
            order = np.random.default_rng(seed).permutation(place.max() + 1)
            n_folds = min(n_folds, len(order))
            if n_folds < 2:
                raise TableError(f"the column '{self.by}' must have at least two groups to hold one out; it has one")
            fold = (order % n_folds)[place]
        else:
            fold = _folds(place, n, n_folds, self.share if not self.folds else None)
            fold = fold[_first_copies(frame)]
        held = [np.flatnonzero(fold == k) for k in range(n_folds if self.folds else 1)]
        splits = [(np.setdiff1d(np.arange(n), rows), rows) for rows in held]
        return [split for split in splits if len(split[0]) >= MIN_FITTED and len(split[1]) >= MIN_SCORED]

    def _by_time(self, frame: pd.DataFrame) -> list[Split]:
        timestamps = _timestamps(frame, str(self.time))
        order = np.argsort(timestamps, kind="stable")
        n_folds = self.folds or 1
        n_held = max(1, round(self.share * len(frame) / (n_folds if self.folds else 1)))
        splits = []
        for k in range(n_folds, 0, -1):  # each block is scored by what came before it
            end = len(frame) - (k - 1) * n_held
            splits.append((np.sort(order[: end - n_held]), np.sort(order[end - n_held : end])))
        return [split for split in splits if len(split[0]) >= MIN_FITTED and len(split[1]) >= MIN_SCORED]

    def _groups(self, frame: pd.DataFrame) -> Rows:
        _require(frame, str(self.by))
        return pd.factorize(to_texts(frame[self.by]).fillna(""))[0]

    @staticmethod
    def _shuffled(target: NDArray[Any], n: int, seed: int) -> Rows:
        """Places of rows in an order that is random, and for classes goes round them."""
        order = np.random.default_rng(seed).permutation(n)
        if target.dtype.kind != "f":
            labels = np.unique(target, return_inverse=True)[1]
            order = order[np.argsort(labels[order], kind="stable")]
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        return place

    def words(self, splits: list[Split]) -> str:
        """A few words about the rows that were held out."""
        n = sum(len(held) for _, held in splits)
        rows = count(n, "row")
        if self.time is not None:
            return f"{rows}, the last by '{self.time}'"
        whole = f" in whole groups of '{self.by}'" if self.by is not None else " at random"
        return f"{rows} in {len(splits)} folds{whole}" if self.folds else f"{rows}{whole}"

    def caution(self, frame: pd.DataFrame) -> str:
        """A sentence where rows have dates and those held out are not the last; else empty."""
        if self.time is not None:
            return ""
        typed = [name for name in frame.columns if frame[name].dtype.kind not in "biufc"]
        dates = [name for name in typed if find_date_format(Cells(frame[name])) is not None]
        if not dates:
            return ""
        how = "in whole groups" if self.by is not None else "at random"
        return f"Rows were held out {how}: that is no test of later dates; --time {dates[0]!r} holds out the last rows."

    def to_document(self) -> dict[str, Any]:
        """The choices for a model file."""
        return {"share": self.share, "folds": self.folds, "by": self.by, "time": self.time}


def _folds(place: Rows, n: int, n_folds: int, share: float | None) -> Rows:
    """The fold of each row; with a share, fold 0 is that share of the rows and all else is another."""
    if share is None:
        return place % n_folds
    n_held = round(share * n)
    chosen = np.floor((np.arange(n_held) + 0.5) * n / max(n_held, 1)).astype(np.int64)  # evenly over the classes
    return np.where(np.isin(place, chosen), 0, 1)


def _first_copies(frame: pd.DataFrame) -> Rows:
    """The first row that has the same cells as each row."""
    copies, firsts = pd.factorize(pd.util.hash_pandas_object(frame.astype(str), index=False))
    return np.unique(copies, return_index=True)[1][copies] if len(firsts) < len(frame) else np.arange(len(frame))


def _timestamps(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    _require(frame, name)
    cells = Cells(frame[name], training=True)
    date_format = find_date_format(cells)
    values = to_numbers(cells) if date_format is None else to_days(to_timestamps(cells, date_format))
    if np.isnan(values).any():
        raise TableError(
            f"the column '{name}' must hold dates or numbers in every row to hold out the last; "
            f"{count(int(np.isnan(values).sum()), 'row')} has none"
        )
    return values


def _require(frame: pd.DataFrame, name: str) -> None:
    if name not in frame.columns:
        raise TableError(f"the table has no column '{name}' to hold rows out by")


class FinishedFolds:
    """Scores of the folds that are done, in a file beside the model until the fit is whole.

    A file of another run is refused.
    """

    def __init__(self, path: Path, run: Run, *, resume: bool) -> None:
        self.path, self._run = path, run
        self.folds: list[FoldScores] = self._read() if resume else []

    def _read(self) -> list[FoldScores]:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            self._run.require_same(document["run"], self.path)
            return [FoldScores(**fold) for fold in document["folds"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, RunError):
                raise
            raise RunError(f"{self.path} is damaged; leave --resume out to start again") from error

    def add(self, fold: FoldScores) -> None:
        """Keep one more."""
        self.folds.append(fold)
        document = {"run": self._run.to_document(), "folds": [asdict(one) for one in self.folds]}
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(document), encoding="utf-8")

    def remove(self) -> None:
        """Forget them: the fit is whole."""
        self.path.unlink(missing_ok=True)


def plan_splits(
    frame: pd.DataFrame, target: str, task: Task | None, holdout: Holdout, comma: bool | None, seed: int
) -> tuple[pd.DataFrame, Task, list[Split]]:
    """The rows with a target, the task, and what is held out of them."""
    if target not in frame.columns:  # the fit says so
        return frame, "regression", []
    rows = frame[~Cells(frame[target]).missing]
    if not len(rows):
        return rows, "regression", []
    known = fit_target(Cells(rows[target], training=True), task, comma)
    return rows, known.task, holdout.splits(rows, known.values, seed)


def score_held_out(
    rows: pd.DataFrame,
    task: Task,
    splits: list[Split],
    fit: Callable[[pd.DataFrame, int], TableModel],
    finished: FinishedFolds,
    coverage: float = 0.9,
) -> Comparison:
    """Fit and score each split that is not done yet; ``fit`` gets rows and the number of the split."""
    for number in range(len(finished.folds), len(splits)):
        inside, held = (rows.iloc[part] for part in splits[number])
        finished.add(compare_fold(fit(inside, number), inside, held, coverage))
    return join_folds(task, finished.folds[: len(splits)])


def describe_run(frame: pd.DataFrame, settings: Mapping[str, Any]) -> Run:
    """Everything that scores on held-out rows depend on: the table's cells and all options."""
    digest = RowDigest()
    digest.add(frame)
    return Run({"columns": list(frame.columns), "rows": digest.hexdigest(), **settings})
