"""Training by the variational objective."""

from vmg.training.batches import minibatches
from vmg.training.checkpoint import Checkpoint
from vmg.training.loop import Callback, History, Progress, Schedule, TrainingError, constant, cosine, train

__all__ = [
    "Callback",
    "Checkpoint",
    "History",
    "Progress",
    "Schedule",
    "TrainingError",
    "constant",
    "cosine",
    "minibatches",
    "train",
]
