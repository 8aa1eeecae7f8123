"""The nineteen regression tables of benchmarks of quality: nine of the paper's and ten more, with their splits.

The ten are read from ``tables/regression/<name>/`` in the folder ``VMG_DATA``: ``data.csv.gz`` without a header, the
target last, and ``folds.csv.gz`` with a 0/1 column for each fold, 1 = test.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from vmg_paper.data import TABLES, load_table, standard_splits
from vmg_paper.data.download import find_file

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

PAPER = tuple(name for name in TABLES if name != "year")
OTHERS = ("airfoil", "autompg", "elevators", "forest", "machine", "servo", "skillcraft", "sml", "solar", "stock")
ALL = PAPER + OTHERS


@cache
def load(name: str) -> tuple[Array, Array]:
    """Inputs [N, D] and targets [N]."""
    if name in PAPER:
        table = load_table(name)
        return table.X, table.y
    values = _read(name, "data")
    return np.ascontiguousarray(values[:, :-1]), values[:, -1].copy()


def splits(name: str, n_splits: int) -> list[tuple[Rows, Rows]]:
    """The first standard splits, or folds, as (training rows, test rows)."""
    if name in PAPER:
        return standard_splits(name)[:n_splits]
    return [(np.flatnonzero(fold == 0), np.flatnonzero(fold == 1)) for fold in _read(name, "folds").T[:n_splits]]


def _read(name: str, part: str) -> Array:
    path = f"tables/regression/{name}/{part}.csv.gz"
    file = find_file(path)
    if file is None:
        raise FileNotFoundError(f"{path} must be in the folder VMG_DATA; got none")
    return np.loadtxt(file, delimiter=",", dtype=np.float64, ndmin=2)
