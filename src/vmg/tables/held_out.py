"""A score that can be trusted: fits to a part of the rows, scored on the rest, fold by fold, resumable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from vmg.files import replacing
from vmg.tables.cells import no_value, to_texts
from vmg.tables.comparison import Comparison, FoldScores, compare_fold, join_folds
from vmg.tables.holdout import Holdout, Split
from vmg.tables.model import TableModel
from vmg.tables.target import Task, fit_target
from vmg.tables.wording import TableError

__all__ = ["FinishedFolds", "plan_splits", "run_digest", "score_held_out"]


class FinishedFolds:
    """Scores of the folds that are done, in a file beside the model until the fit is whole.

    ``run`` says what they are of; a file of another table or of other options is not used.
    """

    def __init__(self, path: Path, run: str, *, resume: bool) -> None:
        self.path, self._run = path, run
        self.folds: list[FoldScores] = self._read() if resume else []

    def _read(self) -> list[FoldScores]:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["run"] != self._run:
                raise TableError(f"{self.path} is of another table or other options; leave --resume out to begin anew")
            return [FoldScores(**fold) for fold in document["folds"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, TableError):
                raise
            raise TableError(f"{self.path} is damaged; leave --resume out to begin anew") from error

    def add(self, fold: FoldScores) -> None:
        """Keep one more."""
        self.folds.append(fold)
        document = {"run": self._run, "folds": [asdict(one) for one in self.folds]}
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
    rows = frame[~no_value(frame[target])]
    if not len(rows):
        return rows, "regression", []
    found = fit_target(rows[target], task, comma)
    return rows, found.task, holdout.splits(rows, found.values, seed)


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


def run_digest(path: str | os.PathLike[str], frame: pd.DataFrame, settings: Any) -> str:
    """What a run depends on, in short: the table's cells and all options."""
    digest = hashlib.sha256(json.dumps([os.fspath(path), list(frame.columns), settings], default=str).encode())
    for name in frame.columns:
        digest.update("\0".join(str(cell) for cell in to_texts(frame[name])).encode())
    return digest.hexdigest()
