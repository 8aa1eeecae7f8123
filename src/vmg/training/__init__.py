"""Training by the variational objective."""

from vmg.training.checkpoint import Checkpoint, TrainingError
from vmg.training.loop import train
from vmg.training.progress import Callback, History, Progress, Schedule, constant, cosine, print_progress
from vmg.training.rows import minibatches

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
    "print_progress",
    "train",
]
