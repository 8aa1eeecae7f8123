"""Progress of a training run: the learning rate over time, the average of parameters, reports and callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vmg.objective import ElboTerms
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.rows import Batch

__all__ = [
    "Average",
    "Callback",
    "Finished",
    "History",
    "Hook",
    "Progress",
    "Reports",
    "Schedule",
    "constant",
    "cosine",
    "print_progress",
]

Schedule = Callable[[float], float]
"""Learning-rate factor as a function of the finished share of training, 0 to 1."""


def constant(progress: float) -> float:
    """The same learning rate throughout, as in the paper."""
    return 1.0


def cosine(progress: float) -> float:
    """A factor that falls from one to zero along half a cosine (Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


class Finished(NamedTuple):
    """A step that was taken: its number, from one on, the learning rate, its rows, and the objective before it."""

    step: int
    learning_rate: float
    batch: Batch
    terms: ElboTerms


Hook = Callable[[Finished], None]
"""Called after every step, or at every report; it may raise :class:`~vmg.training.TrainingError`."""


class Average:
    """Exponential average of parameters over steps, free of bias towards the start [LW16, §4]."""

    def __init__(self, parameters: GroupedParameters, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"averaging must be in [0, 1) or None; got {decay}")
        self._parameters, self._decay, self._steps = parameters, decay, 0
        self.values: list[Tensor] = parameters.snapshot()

    def update(self, done: Finished) -> None:
        """Take in the present parameters; after t steps their weights are β^(t−s) (1 − β)/(1 − β^t)."""
        self._steps += 1
        decay = self._decay * (1 - self._decay ** (self._steps - 1)) / (1 - self._decay**self._steps)
        get_ema_multi_avg_fn(decay)(self.values, [t.detach() for t in self._parameters.tensors], None)

    def put_in_place(self) -> None:
        """Let the network hold the averages."""
        self._parameters.restore(self.values)

    def state(self) -> dict[str, Tensor]:
        """The averages and the number of steps behind them."""
        return {str(k): value for k, value in enumerate(self.values)} | {"steps": torch.tensor(self._steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state` gave."""
        self.values = [state[str(k)] for k in range(len(self.values))]
        self._steps = int(state["steps"])


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
    """Print one line about training; the objective is the lower bound or the log posterior, a row."""
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


class Reports:
    """Gathers the terms of every step, and at a report calls the callbacks while the averaged parameters are in place.

    ``restore`` puts the parameters themselves back afterwards.
    """

    def __init__(
        self,
        history: History,
        n_steps: int,
        callbacks: Sequence[Callback],
        average: Average | None,
        restore: Callable[[], None],
        device: torch.device,
    ) -> None:
        self._history, self._n_steps = history, n_steps
        self._callbacks, self._average, self._restore = callbacks, average, restore
        self._sums, self._count = torch.zeros(2, device=device), 0
        self._started = time.perf_counter() - (history.last.seconds if history.records else 0.0)

    def add(self, done: Finished) -> None:
        """Take in the terms of a step."""
        self._sums += torch.stack([done.terms.expected_log_likelihood.mean(), done.terms.kl.mean()])
        self._count += 1

    def report(self, done: Finished) -> None:
        """Write a record, and ask the callbacks whether training goes on."""
        fit, kl = (self._sums / self._count).tolist()
        self._sums.zero_()
        self._count = 0
        seconds = time.perf_counter() - self._started
        progress = Progress(done.step, self._n_steps, fit - kl, fit, kl, done.learning_rate, seconds)
        self._history.records.append(progress)
        averaged = self._average is not None and bool(self._callbacks)
        if self._average is not None and averaged:
            self._average.put_in_place()
        answers = [callback(progress) for callback in self._callbacks]
        if averaged:
            self._restore()
        if any(answers):
            self._history.stopped = f"stopped by a callback at step {done.step}"
