"""Signs of life on standard error: the bar of a training run, and a spinner for all else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from vmg.training import Progress

__all__ = ["TrainingBar", "waiting"]


def waiting(label: str, *, quiet: bool = False) -> AbstractContextManager[object]:
    """A sign of life for work whose length is not known; silent off a terminal."""
    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status(label)


class TrainingBar:
    """A training callback that shows the bound, its two terms and the time left; silent off a terminal."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[terms]}"),
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
        terms = f"bound {progress.elbo:.3f} = fit {progress.expected_log_likelihood:.3f} - KL {progress.kl:.3f}"
        self._bars.update(self._task, total=progress.n_steps, completed=progress.step, terms=terms)
