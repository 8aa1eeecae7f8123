"""Sparse rows, such as those of a one-hot encoder, as the dense ones that networks read."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

__all__ = ["MAX_DENSE_CELLS", "dense"]

MAX_DENSE_CELLS = 2**27
"""Most numbers of a sparse table, zeros included; more would take over a gigabyte."""


def dense(X: Any) -> Any:
    """A sparse table as an array, anything else as it is; a ValueError where it is too large for that."""
    if not sparse.issparse(X):
        return X
    cells = int(np.prod(X.shape, dtype=np.float64))
    if cells > MAX_DENSE_CELLS:
        raise ValueError(
            f"a sparse X must have at most {MAX_DENSE_CELLS:,} cells, zeros included, as it is made dense; got "
            f"{X.shape[0]:,} rows of {X.shape[1]:,}. Encode fewer categories, or use vmg.FrameRegressor."
        )
    return X.toarray()
