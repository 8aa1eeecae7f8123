"""Weights of rows, as scikit-learn gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight

__all__ = ["weighed"]

Array = NDArray[np.float64]


def weighed(X: Array, y: NDArray[Any], sample_weight: Any) -> tuple[Array, NDArray[Any], Array | None]:
    """The rows that count, and their weights."""
    if sample_weight is None:
        return X, y, None
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not weight.sum() > 0:
        raise ValueError("sample_weight must have a positive sum; got all zeros")
    kept = weight > 0
    return X[kept], y[kept], weight[kept]
