"""Progress of a training run: the learning rate over time, steps, reports and callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Callback", "History", "Progress", "Schedule", "constant", "cosine", "print_progress"]

Schedule = Callable[[float], float]
"""Learning-rate factor as a function of the finished share of training, 0 to 1."""


def constant(progress: float) -> float:
    """The same learning rate throughout, as in the paper."""
    return 1.0


def cosine(progress: float) -> float:
    """A factor that falls from one to zero along half a cosine (Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


ALL_DONE = "all steps done"


@dataclass(frozen=True)
class Progress:
    """The state of training; terms are per datum, averaged over replicas and the steps since the last report."""

    step: int
    n_steps: int
    elbo: float
    expected_log_likelihood: float
    kl: float
    learning_rate: float
    seconds: float


def print_progress(progress: Progress) -> None:
    """Print one line about training; the objective is per row: ``vmg.elbo`` or a log posterior."""
    print(
        f"step {progress.step:>6}/{progress.n_steps}  objective {progress.elbo:9.4f}  "
        f"fit {progress.expected_log_likelihood:9.4f}  kl {progress.kl:8.4f}  {progress.seconds:6.1f} s"
    )


@dataclass
class History:
    """The reports of a training run, and why it ended."""

    records: list[Progress] = field(default_factory=list)
    stopped: str = ALL_DONE
    notes: tuple[str, ...] = ()  # sentences about the rows

    @property
    def was_stopped(self) -> bool:
        """Whether a callback ended the run before its last step."""
        return self.stopped != ALL_DONE

    @property
    def last(self) -> Progress:
        return self.records[-1]


Callback = Callable[[Progress], bool | None]
"""Called at every report; returning True ends training."""
