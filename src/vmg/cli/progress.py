"""Signs of life on standard error: the bar of a training run, and a spinner for all else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from vmg.training import Progress

__all__ = ["LOG_POSTERIOR", "TrainingBar", "waiting"]

LOG_POSTERIOR = ("log posterior", "complexity")
"""Terms of the estimators: the log posterior of hidden weights, and what it costs them to leave their prior."""


def waiting(label: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """A sign of life for work whose length is not known; silent off a terminal."""
    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status(label)


class TrainingBar:
    """A training callback that shows the objective, its two terms and the time left; silent off a terminal.

    ``terms`` names the objective, and what is taken off the fit to get it.
    """

    def __init__(self, label: str, *, quiet: bool = False, terms: tuple[str, str] = ("bound", "KL")) -> None:
        self._objective, self._price = terms
        console = Console(stderr=True)
        self._bars = Bars(
            SpinnerColumn(),  # it moves from the first moment on, before the length of the work is known
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[terms]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bars.add_task(label, total=None, terms="")

    def __enter__(self) -> TrainingBar:
        if not self._bars.disable:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._bars.disable:  # older versions of rich print an empty line even then
            self._bars.stop()

    def __call__(self, progress: Progress) -> None:
        fit, price = progress.expected_log_likelihood, progress.kl
        terms = f"{self._objective} {progress.elbo:.3f} = fit {fit:.3f} - {self._price} {price:.3f}"
        self._bars.update(self._task, total=progress.n_steps, completed=progress.step, terms=terms)
