"""Which training rows each member of an ensemble never sees: random folds, and whole regions of the inputs.

Random folds say how well members predict rows like the others. Regions say how well they predict where there are no
rows: a member that has not seen a region must be unsure of it, and by how much is then measured, not assumed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["random_folds", "regions"]

Rows = NDArray[np.bool_]

SPARSITY = 2.0  # inputs that the direction of a region depends on, on average


def random_folds(n_rows: int, n_folds: int, rng: np.random.Generator) -> Rows:
    """Split rows into folds of equal size: True where fold k holds row n, [n_folds, N]."""
    if not 2 <= n_folds <= n_rows:
        raise ValueError(f"n_folds must be from 2 to the number of rows ({n_rows}); got {n_folds}")
    fold = np.empty(n_rows, dtype=np.int64)
    fold[rng.permutation(n_rows)] = np.arange(n_rows) % n_folds
    return np.asarray(fold == np.arange(n_folds)[:, None])


def regions(x: NDArray[np.float64], n_regions: int, share: float, rng: np.random.Generator) -> Rows:
    """Choose regions of standardised inputs x [N, D] that hold a ``share`` of the rows each: [n_regions, N].

    A region is what lies between two parallel planes, across a random direction of few inputs: a gap between other rows
    for every other region, one of the two ends for the rest.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be inside (0, 1); got {share}")
    n_rows, n_inputs = x.shape
    inside = np.zeros((n_regions, n_rows), dtype=np.bool_)
    for k in range(n_regions):
        direction = rng.standard_normal(n_inputs) * (rng.random(n_inputs) < SPARSITY / n_inputs)
        if not direction.any():
            direction[rng.integers(n_inputs)] = 1.0
        along = x @ direction + 1e-6 * rng.standard_normal(n_rows)  # equal rows in random order
        rank = along.argsort().argsort() / n_rows
        start = (1 - share) * (rng.random() if k % 2 else rng.integers(2))
        inside[k] = (rank >= start) & (rank < start + share)
    return inside
