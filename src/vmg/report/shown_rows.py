"""Which rows the report is about: all of a small table, else a sample of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.prediction import ClassPrediction
from vmg.tables.model import TableModel

__all__ = ["INTERVAL_ROWS", "SCORED_ROWS", "SEED", "Array", "Positions", "choose", "extremes", "scored_rows"]

Array = NDArray[np.float64]
Positions = NDArray[np.int64]

SEED = 0  # of every subsample: the same table gives the same page
SCORED_ROWS = 5_000  # rows behind every number on the page,
SCORED_DRAWS = 2**25  # or as many as give this many posterior draws of outputs, for the sake of memory
INTERVAL_ROWS = 400  # rows whose interval ends are found (a root search each in a mixture) for pictures and mean widths
CERTAIN_ROWS = 5


def choose(n: int, most: int, seed: int = SEED) -> Positions:
    """At most ``most`` of n positions, at random but always the same ones, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def scored_rows(model: TableModel, frame: pd.DataFrame) -> Positions:
    """Positions of the rows that are predicted and scored."""
    one = model.filled_dist(frame.iloc[:1])
    draws = one.samples if isinstance(one, ClassPrediction) else one.loc  # a Student t has one centre
    in_memory = SCORED_DRAWS // draws.size
    return choose(len(frame), min(SCORED_ROWS, max(in_memory, INTERVAL_ROWS)))


def extremes(uncertainty: Array) -> tuple[Positions, Positions]:
    """Positions of the most certain and the least certain rows, the most telling first; none is in both."""
    order = np.argsort(uncertainty, kind="stable")
    n = min(CERTAIN_ROWS, (len(order) + 1) // 2)
    return order[:n], order[n:][::-1][:n]
