"""How long a network trains on a table, where the user does not say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["LONG", "STANDARD", "Budget"]

STEPS_END_AT = 40_000  # rows, from which steps grow no further
SMALLEST_BATCH, LARGEST_BATCH = 32, 256


@dataclass(frozen=True)
class Budget:
    """Steps grow with the root of the number of rows, batches with the number itself."""

    fewest_steps: int
    most_steps: int
    batches: int
    """Batches of an epoch, about, while their size is between the limits."""

    def steps(self, n_rows: int) -> int:
        """Steps of the optimiser."""
        grown = self.most_steps * math.sqrt(n_rows / STEPS_END_AT)
        return int(np.clip(grown, self.fewest_steps, self.most_steps))

    def batch_size(self, n_rows: int) -> int:
        """Rows of a minibatch, a power of two."""
        nearest = 2 ** round(math.log2(max(n_rows, 2) / self.batches))
        return int(np.clip(nearest, SMALLEST_BATCH, LARGEST_BATCH))


STANDARD = Budget(12_000, 20_000, batches=64)
LONG = Budget(30_000, 40_000, batches=128)
"""The budget of ensembles of regressors; see docs/table1.md."""
