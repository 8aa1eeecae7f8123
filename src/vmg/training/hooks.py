"""What the training loop tells those that watch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vmg.objective import ElboTerms
from vmg.training.training_rows import Batch

__all__ = ["Finished", "Hook"]


class Finished(NamedTuple):
    """A step that was taken: its number, from one on, the learning rate, its rows, and the objective before it."""

    step: int
    learning_rate: float
    batch: Batch
    terms: ElboTerms


Hook = Callable[[Finished], None]
"""Called after every step, or at every report; it may raise :class:`~vmg.training.TrainingError`."""
