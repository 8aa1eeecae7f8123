"""Training by the variational objective."""

from vmg.training.batches import minibatches
from vmg.training.checkpoint import Checkpoint
from vmg.training.last_good import TrainingError
from vmg.training.loop import train
from vmg.training.reporting import Callback, History, Progress
from vmg.training.schedule import Schedule, constant, cosine

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
