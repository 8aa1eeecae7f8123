"""What a method of the comparison is: a name, and the estimator that it is on a given table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vmg.estimators import fit_splits

__all__ = ["LARGE", "Method", "hidden_layers"]

LARGE = ("protein", "year")


@dataclass(frozen=True)
class Method:
    """A method of the comparison."""

    name: str
    summary: str
    make: Callable[[str, int], Any]
    """The unfitted estimator for a table's name and a seed."""
    fit_splits: Callable[..., list[Any]] = fit_splits
    """(estimator, X, y, splits) to one fitted estimator for each split."""


def hidden_layers(table: str) -> tuple[int, ...]:
    """One hidden layer of 50 units, 100 for the large tables [LW16, §4.1]."""
    return (100,) if table in LARGE else (50,)
