"""A table of training rows made ready: the target and the task, features, what is set aside, what is worth saying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators.classifier import TableClassifier
from vmg.estimators.regressor import TableRegressor
from vmg.tables.cells import CellTable, no_value, require_columns
from vmg.tables.choices import TableChoices
from vmg.tables.encoder import TableEncoder, decide_comma
from vmg.tables.remarks import find_suspicions
from vmg.tables.target import Target, Task, centred_target, fit_target
from vmg.tables.wording import TableError, count, listing

__all__ = ["PreparedTable", "prepare_table"]

MIN_ROWS = 5
MIN_CONFORMAL_ROWS = 19  # fewer cannot promise a coverage of 95 %


class PreparedTable(NamedTuple):
    """A table that is ready for training."""

    estimator: TableRegressor | TableClassifier
    encoder: TableEncoder
    target: Target
    choices: TableChoices
    rows: CellTable
    values: NDArray[Any]
    features: NDArray[Any]
    aside: pd.DataFrame  # rows to calibrate with
    aside_values: NDArray[Any]
    notes: list[str]
    asks_likelihood: bool


def prepare_table(
    frame: pd.DataFrame,
    target: str,
    task: Task | None,
    exclude: Sequence[str],
    conformal: float,
    choices: TableChoices | None,
    options: Mapping[str, Any] | None,
    tell: Callable[[str], None] | None = None,
) -> PreparedTable:
    """Everything before training, with its notes told one by one; a TableError says what is wrong with the table."""
    choices, options = choices or TableChoices(), options or {}
    require_columns(frame, [target, *exclude, *choices.named])
    left_out = list(dict.fromkeys([*exclude, *choices.ignored]))
    if target in left_out:
        raise TableError(f"the target '{target}' cannot be excluded")
    has_target = ~no_value(frame[target])
    n_without = int((~has_target).sum())
    frame = frame[has_target]
    if len(frame) < MIN_ROWS:
        raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {len(frame)}")
    columns = frame.drop(columns=left_out)
    whole = CellTable(columns, training=True)
    found = fit_target(whole[target], task, decide_comma(whole, choices))
    kind = TableRegressor if found.task == "regression" else TableClassifier
    estimator = kind(**options)
    inside, outside = _split(len(frame), conformal, found.task, estimator.random_state)
    rows = CellTable(columns.iloc[inside], training=True) if len(outside) else whole
    values = found.values[inside]
    encoder = TableEncoder.fit(rows, choices, target=target)
    encoder, features = encoder.with_target(rows, centred_target(values))

    notes = [found.reason]
    if n_without:
        notes.append(f"{count(n_without, 'row')} without a target left out.")
    if len(outside):
        notes.append(f"{count(len(outside), 'row')} set aside to calibrate intervals.")
    if left_out:
        notes.append(f"Columns left out as asked: {listing(left_out)}.")
    notes += [*encoder.describe(), *find_suspicions(rows, encoder, target, values)]
    if tell is not None:
        for note in notes:
            tell(note)
    return PreparedTable(
        *(estimator, encoder, found, choices, rows, values, features),
        *(columns.iloc[outside], found.values[outside], notes, "likelihood" in options),
    )


def _split(n_rows: int, share: float, task: Task, seed: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Positions of the rows to fit to and of those to calibrate with, in their own order."""
    if not 0 <= share < 1:
        raise TableError(f"conformal must be a share of the rows from 0 to below 1; got {share}")
    if share == 0:
        return np.arange(n_rows), np.arange(0)
    if task != "regression":
        raise TableError("conformal calibrates intervals of regression; the task is classification")
    n_outside = round(share * n_rows)
    if n_outside < MIN_CONFORMAL_ROWS or n_rows - n_outside < MIN_ROWS:
        raise TableError(
            f"conformal needs at least {MIN_CONFORMAL_ROWS} rows to calibrate with and {MIN_ROWS} to fit to; "
            f"{share:g} of {count(n_rows, 'row')} leaves {n_outside} and {n_rows - n_outside}"
        )
    order = np.random.default_rng(seed).permutation(n_rows)
    return np.sort(order[n_outside:]), np.sort(order[:n_outside])
