"""The covariance between rows where targets are bent functions of what is Gaussian."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["bent_row_covariance"]

Array = NDArray[np.float64]


def bent_row_covariance(factor: Array, epistemic: Array, aleatoric: Array) -> Array:
    """Covariance [N, N, C] of rows whose functions correlate as FᵀF says, F [K, N, C], with given deviations [N, C].

    Rows have exactly these deviations; their correlation is that of the functions before they are bent.
    """
    between = np.einsum("knc,kmc->nmc", factor, factor)
    rows = np.arange(len(epistemic))
    size = np.sqrt(np.maximum(between[rows, rows], np.finfo(np.float64).tiny))  # [N, C]
    between *= (epistemic / size)[:, None] * (epistemic / size)[None]
    between[rows, rows] = epistemic**2 + aleatoric**2
    return between
