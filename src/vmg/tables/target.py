"""The column to predict: whether it asks for regression or classification, and its values."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import Cells, TableError, count, listing
from vmg.tables.columns import LARGEST, MIN_NUMBER_SHARE
from vmg.tables.values import find_unit, has_decimal_commas, mixed_units, to_numbers

__all__ = [
    "Target",
    "Task",
    "centred_target",
    "fit_target",
    "known_labels",
    "label_positions",
    "require_numbers",
    "target_scale",
]

Task = Literal["regression", "classification"]

FEW_VALUES = 7
"""A number with at most this many different values is taken for a class; counts mostly have more."""

SMALLEST = 1e-150  # of a target's largest value: squares of its noise would be zero

MOST_EFFECTS = 10  # classes whose shares describe a category
MIN_CLASS_ROWS = 2  # on average; with fewer, texts are no classes


class Target(NamedTuple):
    """The target of training rows, none missing."""

    task: Task
    values: NDArray[Any]
    decimal_comma: bool
    reason: str
    unit: str = ""


def fit_target(cells: Cells, task: Task | None = None, decimal_comma: bool | None = None) -> Target:
    """Values of a target column without holes, and the task (None: inferred) with the reason for it."""
    name, column = cells.name, cells.column
    if cells.holds_collections():
        raise TableError(f"the target '{name}' must hold one number or text a row; got lists or structures")
    if task != "classification" and (units := mixed_units(cells)):
        raise TableError(f"the target '{name}' is in several units, {listing(units)}; write them in one")
    unit, comma = find_unit(cells), has_decimal_commas(cells) if decimal_comma is None else decimal_comma
    values = to_numbers(cells, comma, unit)
    is_boolean, finite = pd.api.types.is_bool_dtype(column), np.isfinite(values)
    decided = is_boolean or cells.is_category
    numeric = bool(finite.all()) and not decided
    n_distinct = cells.n_distinct
    if n_distinct == 1:
        raise TableError(f"the target '{name}' is always '{cells.levels[0]}': there is nothing to learn")
    many = n_distinct > FEW_VALUES or 2 * n_distinct > len(column)
    if task == "regression" or (task is None and many and finite.mean() >= MIN_NUMBER_SHARE and not decided):
        require_numbers(cells, values)
    if task is None:
        if numeric:
            task = "regression" if many else "classification"
            reason = f"Task: {task}, as the target '{name}' is a number with {n_distinct:,} different values."
            if task == "classification" or n_distinct <= 2 * FEW_VALUES:
                other = "regression" if task == "classification" else "classification"
                reason = f"{reason[:-1]} (--task {other} takes it otherwise)."
        else:
            task, kind = "classification", "true or false" if is_boolean else "text"
            reason = f"Task: classification, as the target '{name}' is {kind} with {n_distinct:,} different values."
    else:
        reason = f"Task: {task}, as asked."
    if task == "regression":
        require_range(name, values)
        return Target(task, values, comma, reason, unit)
    if len(column) < MIN_CLASS_ROWS * n_distinct:
        raise TableError(
            f"the target '{name}' has {n_distinct:,} different values in {count(len(column), 'row')}, too many to be "
            "classes" + ("; use the task regression" if numeric else " and they are not numbers")
        )
    return Target(task, _class_labels(cells), comma, reason)


def centred_target(values: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers [N] or [N, outputs] in units of their spread, or 0/1 of each class, with mean zero: [N, outputs]."""
    if values.dtype.kind == "f":
        columns, tiny = values.reshape(len(values), -1), np.finfo(np.float64).tiny
        columns = columns / np.maximum(np.abs(columns).max(0), tiny)
        columns = columns - columns.mean(0)
        return columns / np.maximum(columns.std(0), tiny)
    classes, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:MOST_EFFECTS])
    chosen = frequent[1:] if len(classes) == 2 else frequent
    shares = (places[:, None] == chosen).astype(np.float64)
    return shares - shares.mean(0)


def target_scale(values: NDArray[Any]) -> NDArray[np.float64] | None:
    """The spread of numbers [outputs], which is the unit of :func:`centred_target`; None for classes."""
    if values.dtype.kind != "f":
        return None
    largest = float(np.abs(values).max()) or 1.0
    return np.atleast_1d((values / largest).std(0) * largest)


def require_numbers(cells: Cells, values: NDArray[np.float64]) -> None:
    """Raise a TableError that names the cells of a target which could not be read as finite numbers."""
    strange = cells.column[~np.isfinite(values)]
    if len(strange):
        raise TableError(
            f"the target '{cells.name}' must hold finite numbers; got {listing(strange.map(str).unique())} in "
            f"{count(len(strange), 'row')} of {len(cells):,}"
        )


def require_range(name: str, values: NDArray[Any]) -> None:
    """Raise a TableError where squares of the target leave the range of floating-point numbers."""
    largest = float(np.abs(values).max())
    if not SMALLEST <= largest <= LARGEST:
        raise TableError(
            f"the target '{name}' must have its largest value between {SMALLEST:g} and {LARGEST:g} in size; got "
            f"{largest:g}. Use another unit."
        )


def _class_labels(cells: Cells) -> NDArray[Any]:
    """Classes as whole numbers where all are written as such, else as texts: "01" is not "1"."""
    texts, values = cells.levels.astype(str), to_numbers(Cells(pd.Series(cells.levels, dtype=object)))
    if not pd.api.types.is_bool_dtype(cells.column) and (values == np.round(values)).all():  # NaN equals nothing
        numbers = values.astype(np.int64)
        if (numbers.astype(str) == texts).all():
            return numbers[cells.codes]
    return texts[cells.codes]


def label_positions(cells: Cells, classes: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each cell among ``classes``, which are in order; -1 where it is none of them, or missing."""
    if not len(cells.levels):
        return np.full(len(cells), -1)
    is_text = classes.dtype.kind in "UO"
    labels = cells.levels.astype(str) if is_text else to_numbers(Cells(pd.Series(cells.levels, dtype=object)))
    place = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    return cells.spread(np.where(classes[place] == labels, place, -1), -1)


def known_labels(cells: Cells, classes: NDArray[Any]) -> NDArray[Any]:
    """Classes of rows to come, written as ``classes`` are."""
    place = label_positions(cells, classes)
    unknown = place < 0
    if unknown.any():
        strange = listing(cells.column[unknown].map(str).unique()[:3])
        raise TableError(f"the target '{cells.name}' must be one of {listing(classes)}; got {strange}")
    return classes[place]
