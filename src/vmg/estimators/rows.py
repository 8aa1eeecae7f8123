"""Rows as callers give them: sparse ones made dense, and those without weight left out."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight

__all__ = ["MAX_DENSE_CELLS", "drop_unweighted_rows", "to_dense"]

Array = NDArray[np.float64]

MIN_WEIGHT = 1.5
"""Sum of the weights of all rows below which they were hardly meant to count rows."""

MAX_DENSE_CELLS = 2**27
"""Most numbers of a sparse table, zeros included; more would take over a gigabyte."""


def to_dense(X: Any) -> Any:
    """A sparse table, such as that of a one-hot encoder, as an array; anything else as it is."""
    if not sparse.issparse(X):
        return X
    cells = int(np.prod(X.shape, dtype=np.float64))
    if cells > MAX_DENSE_CELLS:
        raise ValueError(
            f"a sparse X must have at most {MAX_DENSE_CELLS:,} cells, zeros included, as it is made dense; got "
            f"{X.shape[0]:,} rows of {X.shape[1]:,}. Encode fewer categories, or give a data frame."
        )
    return X.toarray()


def drop_unweighted_rows(X: Any, y: NDArray[Any], sample_weight: Any) -> tuple[Any, NDArray[Any], Array | None]:
    """The rows with a positive weight, and their weights."""
    if sample_weight is None:
        return X, y, None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.sum() > 0:
        raise ValueError("sample_weight must have a positive sum; got all zeros")
    kept = weight > 0
    if weight.sum() < MIN_WEIGHT and kept.sum() > 1:
        warnings.warn(
            f"sample_weight sums to {weight.sum():.3g}: a weight of 1 is one row, so {kept.sum():,} rows count as "
            "hardly one. Multiply it by the number of rows if it is normalised.",
            UserWarning,
            stacklevel=4,
        )
    return X[kept], y[kept], weight[kept]
