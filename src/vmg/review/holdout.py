"""Scores on held-out rows: which rows are held out, fits without them, and a file of what is done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators.regressor import TableRegressor
from vmg.estimators.table_model import MIN_CONFORMAL_ROWS, TableModel, prepare_table
from vmg.files import Run, append_lines
from vmg.fit.design import find_repeats
from vmg.review.comparison import OWN, Comparison, RowScores, join_scores, score_classes, score_numbers
from vmg.review.rivals import BASE_RATE, RIVALS, Rival, RivalRows, find_rivals
from vmg.tables.cells import Cells, TableError, as_frame, count, require_columns, row_hashes, to_texts
from vmg.tables.columns import IGNORED, TableChoices
from vmg.tables.dates import find_date_format, to_days, to_timestamps
from vmg.tables.encoder import TableEncoder
from vmg.tables.inputs import Task, fit_target, label_positions
from vmg.tables.numbers import to_numbers

__all__ = ["Holdout", "Plan", "TooFewRowsError", "compare", "compare_table"]

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
    gap : str or None
        Rows in the middle of this column's values are held out: a third of the rows, or each of as many blocks as there
        are folds, with two more at the ends that are always fitted to.
    """

    share: float = 0.2
    folds: int = 0
    by: str | None = None
    time: str | None = None
    gap: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise TableError(f"the share of rows to hold out must be between 0 and 1; got {self.share:g}")
        if self.folds == 1 or self.folds < 0:
            raise TableError(f"the number of folds must be at least 2; got {self.folds}")
        if sum(name is not None for name in (self.by, self.time, self.gap)) > 1:
            raise TableError("rows are held out by groups, by time or in gaps; got two of them")

    def splits(self, frame: pd.DataFrame, target: NDArray[Any], seed: int) -> list[Split]:
        """Positions of the rows to fit to and to score on; none where there are too few rows.

        Classes keep their shares in random splits, and copies of a row stay together.
        """
        n, n_held = len(frame), self.folds or 1
        if self.time is not None:  # each block is scored by what came before it
            order = np.argsort(_ordered_values(frame, self.time), kind="stable")
            size = max(1, round(self.share * n / n_held))
            splits = [
                (np.sort(order[: end - size]), np.sort(order[end - size : end]))
                for end in range(n - (n_held - 1) * size, n + 1, size)
            ]
        else:
            fold = self._fold_of_rows(frame, target, seed)
            held = [np.flatnonzero(fold == k) for k in range(n_held)]
            splits = [(np.setdiff1d(np.arange(n), rows), rows) for rows in held]
        return [(fitted, rows) for fitted, rows in splits if len(fitted) >= MIN_FITTED and len(rows) >= MIN_SCORED]

    def _fold_of_rows(self, frame: pd.DataFrame, target: NDArray[Any], seed: int) -> Rows:
        """The fold of each row; 0 is held out first, then 1, ..."""
        n, n_folds, rng = len(frame), self.folds or max(2, round(1 / self.share)), np.random.default_rng(seed)
        if self.gap is not None:
            values = _ordered_values(frame, self.gap)
            before = np.searchsorted(np.sort(values), values)  # rows with one value stay together
            return before * ((self.folds or 1) + 2) // n - 1
        groups = self.groups(frame)
        if self.by is not None:
            order = rng.permutation(groups.max() + 1)
            if len(order) < 2:
                raise TableError(f"the column '{self.by}' must have at least two groups to hold one out; it has one")
            return (order % min(n_folds, len(order)))[groups]
        order = rng.permutation(n)
        if target.dtype.kind != "f":  # go round the classes
            labels = np.unique(target, return_inverse=True)[1]
            order = order[np.argsort(labels[order], kind="stable")]
        fold = np.arange(n) % n_folds
        if not self.folds:
            n_held = round(self.share * n)
            fold = np.ones(n, dtype=np.int64)
            fold[((np.arange(n_held) + 0.5) * n / max(n_held, 1)).astype(np.int64)] = 0  # evenly over the classes
        return fold[np.argsort(order)][groups]

    def groups(self, frame: pd.DataFrame) -> Rows:
        """The rows that are one observation together: those of one group, or copies of a row.

        Each number is that of a group, or the position of the first copy.
        """
        if self.by is not None:
            require_columns(frame, [self.by])
            return pd.factorize(to_texts(frame[self.by]).fillna(""))[0]
        copies = pd.factorize(pd.util.hash_pandas_object(frame.astype(str), index=False))[0]
        different = frame[~pd.Series(copies).duplicated().to_numpy()]
        near = find_repeats(np.column_stack([_places(different[name]) for name in frame.columns]), None)[copies]
        return np.unique(near, return_index=True)[1][near]

    def words(self, splits: list[Split]) -> str:
        """A few words about the rows that were held out."""
        n = sum(len(held) for _, held in splits)
        rows = count(n, "row")
        if self.time is not None:
            return f"{rows}, the last by '{self.time}'"
        if self.gap is not None:
            return f"{rows} in {count(len(splits), 'gap')} of '{self.gap}'"
        whole = f" in whole groups of '{self.by}'" if self.by is not None else " at random"
        return f"{rows} in {len(splits)} folds{whole}" if self.folds else f"{rows}{whole}"

    def caution(self, frame: pd.DataFrame) -> str:
        """A sentence where rows have dates and those held out are not the last; else empty."""
        if self.time is not None or self.gap is not None:
            return ""
        typed = [name for name in frame.columns if frame[name].dtype.kind not in "biufc"]
        dates = [name for name in typed if find_date_format(Cells(frame[name])) is not None]
        if not dates:
            return ""
        how = "in whole groups" if self.by is not None else "at random"
        return f"Rows were held out {how}: that is no test of later dates; --time {dates[0]!r} holds out the last rows."


def _places(column: pd.Series) -> NDArray[np.float64]:
    """Numbers as they are, and a number for each other value; missing numbers lie apart."""
    if column.dtype.kind not in "iuf":
        return pd.factorize(column.astype(str))[0].astype(np.float64)
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isnan(values), np.inf, values)


def _ordered_values(frame: pd.DataFrame, name: str) -> NDArray[np.float64]:
    require_columns(frame, [name])
    cells = Cells(frame[name], training=True)
    date_format = find_date_format(cells)
    values = to_numbers(cells) if date_format is None else to_days(to_timestamps(cells, date_format))
    if np.isnan(values).any():
        raise TableError(
            f"the column '{name}' must hold dates or numbers in every row to hold rows out by it; "
            f"{count(int(np.isnan(values).sum()), 'row')} has none"
        )
    return values


class TooFewRowsError(TableError):
    """A table that has too few rows to hold some out."""


@dataclass(frozen=True)
class Plan:
    """Rows that have a target, read once, and which of them are held out."""

    rows: pd.DataFrame
    target: str
    task: Task
    values: NDArray[Any]
    splits: list[Split]
    groups: Rows  # the rows that are one observation together: copies, or those of one group where such are held out
    choices: TableChoices

    @classmethod
    def make(
        cls,
        frame: pd.DataFrame,
        target: str,
        task: Task | None,
        holdout: Holdout,
        choices: TableChoices,
        options: Mapping[str, Any],
    ) -> Plan:
        """A plan for a table; ``options`` have the seed, and limits: what is measured is the truth for all methods."""
        rows = frame[~Cells(frame[target]).missing]
        splits: list[Split] = []
        if len(rows):
            comma = frame.attrs.get("decimal_comma") if choices.decimal_comma is None else choices.decimal_comma
            known = fit_target(Cells(rows[target], training=True), task, comma)
            if known.task == "regression":
                known = known._replace(values=np.clip(known.values, *TableRegressor(**options).limits))
            splits = holdout.splits(rows, known.values, options["random_state"])
        if not splits:
            raise TooFewRowsError(f"{count(len(rows), 'row')} with a target are too few to hold some out")
        if known.task == "classification":  # no method can predict a class that no fitted row has
            splits = [(fitted, held[np.isin(known.values[held], known.values[fitted])]) for fitted, held in splits]
        return cls(rows, target, known.task, known.values, splits, holdout.groups(rows), choices)

    def score_own(self, model: TableModel, held: Rows, coverage: float) -> dict[str, list[float]]:
        """Scores of a model by row; intervals are those that it predicts, conformal ones where it has them."""
        rows = self.rows.iloc[held]
        if model.task == "classification":
            place = label_positions(Cells(rows[self.target]), model.estimator.classes_)
            return score_classes(model.probabilities(rows), place)
        truth, mean, log_prob, ends, crps = model.number_parts(rows, coverage)
        return score_numbers(truth, mean, log_prob, crps, ends)

    def rival_rows(self, split: Split) -> tuple[RivalRows, RivalRows]:
        """Rows to fit to and to score, as other methods take them: read as the default reads, but for the target."""
        left_out = [name for name in self.choices.ignored if name != self.target]
        fitted, held = (self.rows.iloc[part].drop(columns=left_out) for part in split)
        encoder = TableEncoder.fit(fitted, self.choices, target=self.target)
        return RivalRows.of(encoder, fitted), RivalRows.of(encoder, held)

    def score_rival(self, rival: Rival, split: Split, coverage: float) -> dict[str, list[float]]:
        """Scores of another method by row."""
        fitted, held = self.rival_rows(split)
        y, truth = (self.values[part] for part in split)
        if self.task == "classification":
            classes, places = np.unique(y, return_inverse=True)
            return score_classes(rival.predict_classes(fitted, places, held), np.searchsorted(classes, truth))
        predicted = rival.predict_numbers(fitted, y, held)
        return score_numbers(truth, predicted.mean, *predicted.score(truth, coverage))


# -- comparisons ------------------------------------------------------------------------------------------------------


def compare_table(
    frame: pd.DataFrame,
    target: str,
    *,
    holdout: Holdout,
    task: Task | None,
    choices: TableChoices,
    options: Mapping[str, Any],
    rivals: Sequence[str] | None = None,
    coverage: float = 0.9,
    conformal: float = 0.0,
    results: Path | None = None,
    resume: bool = True,
    watch: Callable[[str], AbstractContextManager[Any]] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare the default for tables with other methods; see :func:`compare`.

    ``task``, ``conformal``, ``choices`` and ``options`` are those of :meth:`vmg.estimators.TableModel.fit`.
    ``resume=False`` removes ``results`` first. ``watch`` makes a training callback from the label of a fit, as a
    context manager.
    """
    plan = Plan.make(frame, target, task, holdout, choices, options)
    names = [name for name in RIVALS if RIVALS[name].package == "sklearn"] if rivals is None else rivals
    others, notes = find_rivals([BASE_RATE, *names], classes=plan.task == "classification")
    notes = [] if rivals is None else notes
    if conformal and round(conformal * min(len(fitted) for fitted, _ in plan.splits)) < MIN_CONFORMAL_ROWS:
        conformal, notes = 0.0, [*notes, "Held-out fits have too few rows to calibrate; their intervals are not."]
    settings: dict[str, Any] = {"task": task, "conformal": conformal, "options": options}
    digest = hashlib.sha256(row_hashes(frame)).hexdigest()
    rows = {"columns": list(frame.columns), "rows": digest, "held out": asdict(holdout)}
    run = Run({**rows, "target": target, **settings, "choices": asdict(choices), "coverage": coverage})
    if results is not None and not resume:
        results.unlink(missing_ok=True)
    fields = list(RowScores.__dataclass_fields__)
    records = [] if results is None else run.read(results, *fields) or []
    parts = [RowScores(**{name: record[name] for name in fields}) for record in records]
    done, n_splits = {(part.fold, part.method) for part in parts}, len(plan.splits)
    for number, name in product(range(n_splits), (OWN, *others)):
        if (number, name) in done:
            continue
        split, start, version = plan.splits[number], process_time(), ""
        if name == OWN:
            label = "Held-out fit" if n_splits == 1 else f"Held-out fit {number + 1} of {n_splits}"
            with nullcontext() if watch is None else watch(label) as bar:
                callbacks = [] if bar is None else [bar]
                own = plan.rows.iloc[split[0]]
                model = TableModel.fit(own, target, choices=choices, callbacks=callbacks, **settings)
            scores = plan.score_own(model, split[1], coverage)
        else:
            scores, version = plan.score_rival(others[name], split, coverage), others[name].version
        part = RowScores(number, name, **scores, seconds=process_time() - start, version=version)
        if results is not None:
            append_lines(results, [*([] if parts else [run.to_document()]), asdict(part)])
        parts.append(part)
        if tell is not None:
            tell(f"fold {number + 1} of {n_splits}: {name}, {part.seconds:.1f} s")
    asked = [part for name in (OWN, *others) for part in parts if part.method == name]
    groups = np.concatenate([plan.groups[held] for _, held in plan.splits])
    left_out = [name for name in (target, *choices.ignored) if name in plan.rows]
    caution = holdout.caution(plan.rows.drop(columns=left_out))
    made = join_scores(plan.task, asked, coverage, groups, by_group=holdout.by is not None)
    sentence, words = f"{made.sentence} {caution}".strip(), holdout.words(plan.splits)
    return replace(made, held_out=words, sentence=sentence, notes=tuple(notes))


def compare(
    X: Any,
    y: Any,
    *,
    rivals: Sequence[str] | None = None,
    folds: int = 5,
    by: str | None = None,
    time: str | None = None,
    gap: str | None = None,
    task: Task | None = None,
    coverage: float = 0.9,
    results: str | Path | None = None,
    random_state: int = 0,
    tell: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare the default for tables (``table``) with other methods on a table of your own, all on the same folds.

    Parameters
    ----------
    X : data frame or array [N, D]
        Numbers, words, dates; cells may be missing. Methods that take categories get them as they are.
    y : array [N]
        Numbers or classes.
    rivals : sequence of str, optional
        Names of :data:`vmg.review.rivals.RIVALS`, such as ``["gp", "catboost"]``; by default scikit-learn's.
    folds : int
        Each is held out in turn.
    by, time, gap : str, optional
        A column of X: rows with one value are held out together, later rows are predicted from earlier ones, or blocks
        inside its range are left out. The column that groups rows is no input.
    task : {"regression", "classification"}, optional
        By default inferred from y.
    coverage : float
        Of intervals.
    results : path, optional
        A file that gets a line for each fit. A comparison that is repeated with it runs only what is not in it.
    random_state : int
        Seed of folds and fits.
    tell : callable, optional
        Called with a sentence for each fit that is done, such as ``print``.

    Examples
    --------
    >>> import numpy as np, vmg
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> found = vmg.compare(X, np.sin(6 * X[:, 0]), rivals=["linear"], folds=2)
    >>> sorted(found.scores)
    ['base rate', 'linear', 'table']
    """
    if hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__"):
        frame = as_frame(X)
    else:
        frame = pd.DataFrame(np.asarray(X)).rename(columns="x{}".format)
    target = next(name for name in ("y", "target", "the target") if name not in frame.columns)
    frame = frame.assign(**{target: np.asarray(y)})
    settings: dict[str, Any] = {"task": task, "options": {"random_state": random_state}}
    settings["choices"] = TableChoices({by: IGNORED} if by is not None else {})
    prepare_table(frame, target, **settings)  # mistakes are said before any work
    settings |= {"rivals": rivals, "holdout": Holdout(folds=folds, by=by, time=time, gap=gap), "coverage": coverage}
    return compare_table(frame, target, **settings, results=None if results is None else Path(results), tell=tell)
