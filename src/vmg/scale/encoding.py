"""How the columns of a dataset become numbers: kinds from a sample, counts and scales from all rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vmg.fit.design import Standardiser
from vmg.scale.statistics import TableStatistics
from vmg.tables import TableEncoder
from vmg.tables.cells import CellTable
from vmg.tables.choices import TableChoices
from vmg.tables.columns import CategoryColumn, Column, NumberColumn

__all__ = ["fit_encoder", "fit_scaling"]

Array = NDArray[np.float64]


def fit_encoder(
    sample: CellTable, statistics: TableStatistics, choices: TableChoices | None = None, target: str | None = None
) -> TableEncoder:
    """Find the kind of each column, its median and its format of dates on a sample.

    Counts of missing cells, and the levels of categories with theirs, are those of all rows.
    """
    encoder = TableEncoder.fit(sample, choices, target=target)
    return replace(encoder, columns=tuple(_counted(column, statistics) for column in encoder.columns))


def _counted(column: Column, statistics: TableStatistics) -> Column:
    found = statistics.columns[column.name]
    if isinstance(column, CategoryColumn) and found.levels:
        return CategoryColumn.of_counts(column.name, found.n_missing, found.levels) or column
    if isinstance(column, NumberColumn) and found.numbers is None:  # numbers that are written as texts
        return replace(column, n_missing=max(column.n_missing, found.n_missing))
    return replace(column, n_missing=found.n_missing)


def fit_scaling(encoder: TableEncoder, encoded: Array, statistics: TableStatistics) -> Standardiser:
    """Mean and standard deviation of each feature, over all rows where counts and moments of columns say them.

    Those of dates, booleans and numbers written as texts are of the sample, ``encoded`` [n, D].
    """
    sampled = Standardiser.fit(encoded)
    known = dict(zip(encoder.feature_names, zip(sampled.mean, sampled.scale, strict=True), strict=True))
    for column in encoder.columns:
        found = statistics.columns[column.name]
        if column.n_missing:
            known[f"{column.name}: missing"] = found.share(found.n_missing)
        if isinstance(column, NumberColumn) and found.numbers is not None:
            known[column.name] = found.filled(column.median)
        elif isinstance(column, CategoryColumn) and found.levels:
            for level in column.levels:
                known[f"{column.name} = {level}"] = found.share(found.levels[level])
            rest = found.n_rows - found.n_missing - sum(found.levels[level] for level in column.levels)
            if column.n_pooled:
                known[f"{column.name}: other"] = found.share(rest)
    mean, scale = (np.array([known[name][k] for name in encoder.feature_names]) for k in (0, 1))
    constant = scale <= 1e-10 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    return Standardiser(mean, np.where(constant, 1.0, scale))
