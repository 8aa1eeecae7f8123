"""What training reports: the objective's terms since the last report, to a history and to callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from vmg.training.averaging import Average
from vmg.training.hooks import Finished
from vmg.training.last_good import LastGood

__all__ = ["Callback", "History", "Progress", "Reports"]

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


@dataclass
class History:
    """What a training run reported, and why it ended."""

    records: list[Progress] = field(default_factory=list)
    stopped: str = ALL_DONE

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

    A report comes after :meth:`LastGood.keep`, from which the parameters themselves are put back.
    """

    def __init__(
        self,
        history: History,
        n_steps: int,
        callbacks: Sequence[Callback],
        average: Average | None,
        last_good: LastGood,
        device: torch.device,
    ) -> None:
        self._history, self._n_steps = history, n_steps
        self._callbacks, self._average, self._last_good = callbacks, average, last_good
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
            self._last_good.restore()
        if any(answers):
            self._history.stopped = f"stopped by a callback at step {done.step}"
