"""What a method of the comparison is: a name, and the estimator that it is on a given table."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vmg.training import Callback
from vmg.variational import fit_splits

__all__ = ["LARGE", "TableMethod", "fit_apart", "hidden_layers"]

LARGE = ("protein", "year")


@dataclass(frozen=True)
class TableMethod:
    """A method of the comparison."""

    name: str
    summary: str
    make: Callable[[str, int], Any]
    """The unfitted estimator for a table's name and a seed."""
    fit_splits: Callable[..., list[Any]] = fit_splits
    """(estimator, X, y, splits) to one fitted estimator for each split."""
    together: bool = True
    """Whether all splits train as one; otherwise each is a task of its own."""


def fit_apart(
    estimator: Any, X: Any, y: Any, splits: Iterable[tuple[Any, Any]], *, callbacks: Sequence[Callback] = ()
) -> list[Any]:
    """Fit a clone to the training rows of every split, one after another."""
    fitted = []
    for train, _ in splits:
        one = copy.deepcopy(estimator)  # not fitted yet
        fitted.append(one.fit(X[train], y[train], callbacks=callbacks))
    return fitted


def hidden_layers(table: str) -> tuple[int, ...]:
    """One hidden layer of 50 units, 100 for the large tables [LW16, §4.1]."""
    return (100,) if table in LARGE else (50,)
