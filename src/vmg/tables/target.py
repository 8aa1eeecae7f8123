"""The column to predict: whether it asks for regression or classification, and its values."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import holds_collections, plain, to_texts
from vmg.tables.columns import LARGEST, MIN_NUMBER_SHARE
from vmg.tables.numbers import find_unit, to_numbers
from vmg.tables.wording import TableError, count, listing

__all__ = ["Target", "Task", "centred_target", "fit_target", "known_labels", "label_positions", "require_numbers"]

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


def fit_target(column: pd.Series, task: Task | None = None, decimal_comma: bool | None = None) -> Target:
    """Values of a target column without holes, and the task (None: inferred) with the reason for it."""
    name, column = str(column.name), plain(column)
    if holds_collections(column):
        raise TableError(f"the target '{name}' must hold one number or text a row; got lists or structures")
    unit = "" if pd.api.types.is_numeric_dtype(column) else find_unit(column) or ""
    numbers = to_numbers(column, decimal_comma, unit)
    decided = pd.api.types.is_bool_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype)
    numeric = not np.isnan(numbers.values).any() and not decided
    n_distinct = int((column if pd.api.types.is_numeric_dtype(column) else to_texts(column)).nunique())
    if n_distinct == 1:
        raise TableError(f"the target '{name}' is always '{to_texts(column).iloc[0]}': there is nothing to learn")
    many = n_distinct > FEW_VALUES or 2 * n_distinct > len(column)
    mostly_numbers = 1 - float(np.isnan(numbers.values).mean()) >= MIN_NUMBER_SHARE
    if task == "regression" or (task is None and many and mostly_numbers and not decided):
        require_numbers(column, numbers.values)
    if task is None:
        if numeric:
            task = "regression" if many else "classification"
            reason = f"Task: {task}, as the target '{name}' is a number with {n_distinct:,} different values."
            if task == "classification" or n_distinct <= 2 * FEW_VALUES:
                other = "regression" if task == "classification" else "classification"
                reason = f"{reason[:-1]} (--task {other} takes it otherwise)."
        else:
            task, kind = "classification", "true or false" if pd.api.types.is_bool_dtype(column) else "text"
            reason = f"Task: classification, as the target '{name}' is {kind} with {n_distinct:,} different values."
    else:
        reason = f"Task: {task}, as asked."
    if task == "regression":
        require_range(name, numbers.values)
        return Target(task, numbers.values, numbers.decimal_comma, reason, unit)
    if len(column) < MIN_CLASS_ROWS * n_distinct:
        raise TableError(
            f"the target '{name}' has {n_distinct:,} different values in {count(len(column), 'row')}, too many to be "
            "classes" + ("; use the task regression" if numeric else " and they are not numbers")
        )
    return Target(task, _class_labels(column), numbers.decimal_comma, reason)


def centred_target(values: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in units of their spread, or 0/1 of each class (one of two classes), with mean zero: [N, outputs]."""
    if values.dtype.kind == "f":
        columns = values[:, None] / np.abs(values).max()
        columns = columns - columns.mean(0)
        return columns / max(float(columns.std()), np.finfo(np.float64).tiny)
    classes, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:MOST_EFFECTS])
    chosen = frequent[1:] if len(classes) == 2 else frequent
    shares = (places[:, None] == chosen).astype(np.float64)
    return shares - shares.mean(0)


def require_numbers(column: pd.Series, values: NDArray[np.float64]) -> None:
    """Raise a TableError that names the cells of a target which could not be read as finite numbers."""
    strange = plain(column)[np.isnan(values)]
    if len(strange):
        raise TableError(
            f"the target '{column.name}' must hold finite numbers; got {listing(strange.map(str).unique())} in "
            f"{count(len(strange), 'row')} of {len(column):,}"
        )


def require_range(name: str, values: NDArray[Any]) -> None:
    """Raise a TableError where squares of the target leave the range of floating-point numbers."""
    largest = float(np.abs(values).max())
    if not SMALLEST <= largest <= LARGEST:
        raise TableError(
            f"the target '{name}' must have its largest value between {SMALLEST:g} and {LARGEST:g} in size; got "
            f"{largest:g}. Use another unit."
        )


def _class_labels(column: pd.Series) -> NDArray[Any]:
    """Classes as whole numbers where all are written as such, else as texts: "01" is not "1"."""
    texts = to_texts(column).to_numpy(dtype=str)
    values = to_numbers(column).values
    if pd.api.types.is_bool_dtype(column) or not (values == np.round(values)).all():  # NaN is not equal to itself
        return texts
    numbers = values.astype(np.int64)
    return numbers if (numbers.astype(str) == texts).all() else texts


def label_positions(column: pd.Series, classes: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each cell among ``classes``, which are in order; -1 where it is none of them, or missing."""
    texts = to_texts(column)
    is_text = classes.dtype.kind == "U"
    labels = texts.to_numpy(dtype=str) if is_text else to_numbers(column).values
    place = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    return np.where((classes[place] == labels) & texts.notna().to_numpy(), place, -1)


def known_labels(column: pd.Series, classes: NDArray[Any]) -> NDArray[Any]:
    """Classes of rows to come, written as ``classes`` are."""
    place = label_positions(column, classes)
    unknown = place < 0
    if unknown.any():
        strange = listing(plain(column)[unknown].map(str).unique()[:3])
        raise TableError(f"the target '{column.name}' must be one of {listing(classes)}; got {strange}")
    return classes[place]
