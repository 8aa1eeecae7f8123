"""Training by the variational objective."""

from vmg.training.loop import train
from vmg.training.progress import Callback, History, Progress, Schedule, constant, cosine, print_progress
from vmg.training.rows import Minibatches
from vmg.training.state import Checkpoint, TrainingError

__all__ = [
    "Callback",
    "Checkpoint",
    "History",
    "Minibatches",
    "Progress",
    "Schedule",
    "TrainingError",
    "constant",
    "cosine",
    "print_progress",
    "train",
]
