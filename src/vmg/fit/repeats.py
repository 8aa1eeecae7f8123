"""Rows that occur more than once, exactly or up to rounding.

A copy of a row that a member has seen is no test of it: held-out scores would look far too good, and intervals would be
far too narrow. So copies stay together when rows are held out, and count once in what these say.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

__all__ = ["find_repeats"]

Array = NDArray[np.float64]

CLOSE = 0.02  # of a standard deviation, over the number of rows: strangers as close in a column are one row in fifty
MOST_CLOSE = 1e-3  # standard deviations
NEIGHBOURS = 3  # that a row is compared with, along a random direction


def find_repeats(x: Array, y: NDArray[np.generic] | None) -> NDArray[np.int64]:
    """Number [N] of each different row of inputs x [N, D] and targets y [N, ...], the same for its copies.

    Rows are copies if all columns are nearly equal, and one column has values that no other row has. Where columns have
    few values, such as categories, equal rows are to be expected and each counts.
    """
    n_rows = len(x)
    columns = [x] if y is None else [x, np.asarray(y, dtype=np.float64).reshape(n_rows, -1)]
    values = _standard(np.concatenate(columns, 1))
    close = min(MOST_CLOSE, CLOSE / n_rows)
    direction = np.random.default_rng(0).uniform(0.5, 1.5, values.shape[1])
    order = np.argsort(values @ direction, kind="stable")
    ordered = values[order]
    pairs = []
    for step in range(1, min(NEIGHBOURS, n_rows - 1) + 1):
        alike = (np.abs(ordered[step:] - ordered[:-step]) <= close).all(1)
        pairs.append(np.stack([order[:-step][alike], order[step:][alike]]))
    joined = np.concatenate(pairs, 1) if pairs else np.zeros((2, 0), dtype=np.int64)
    if not joined.shape[1]:
        return np.arange(n_rows)
    links = sparse.coo_array((np.ones(joined.shape[1], dtype=np.int8), tuple(joined)), shape=(n_rows, n_rows))
    _, label = csgraph.connected_components(links, directed=False)
    return _without_coincidences(values, np.asarray(label, dtype=np.int64))


def _standard(values: Array) -> Array:
    """Columns in units of their standard deviation; infinite bounds lie far outside."""
    finite = np.isfinite(values)
    values = np.where(finite, values, np.sign(values) * 1e3 * np.abs(np.where(finite, values, 0.0)).max(initial=1.0))
    scale = values.std(0)
    return (values - values.mean(0)) / np.where(scale > 0, scale, 1.0)


def _without_coincidences(values: Array, label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take apart the sets of rows in which every column has values that other rows have too."""
    size = np.bincount(label)
    several = np.flatnonzero(size > 1)
    order = np.argsort(label, kind="stable")
    ends = np.cumsum(size)
    copies = np.zeros(len(size), dtype=np.bool_)
    for column in values.T:
        ordered, grouped = np.sort(column), column[order]
        low, high = (part.reduceat(grouped, ends - size)[several] for part in (np.minimum, np.maximum))
        inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "left")
        copies[several] |= inside == size[several]
    alone = ~copies[label]
    label = label.copy()
    label[alone] = len(size) + np.arange(int(alone.sum()))
    return np.unique(label, return_inverse=True)[1].astype(np.int64)
