"""A training run on disk: killed at any moment, it goes on from its last file to the same bits.

The next step of a run depends on the parameters, Adam's moments, the average, the order of the epoch's rows and the
place in it, and the generator. All of these are in the file, which :mod:`vmg.model_file` writes beside its place and
then renames: there is a whole file at any time, the old one or the new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vmg import model_file
from vmg.training.averaging import Average
from vmg.training.batches import Minibatches
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.hooks import Finished
from vmg.training.reporting import History, Progress

__all__ = ["Checkpoint", "KeptRun", "RunState", "Saved"]

HOLDS = "training run"
MAX_BYTES = 2**40  # a run of a large network has more to keep than a model has


@dataclass(frozen=True)
class RunState:
    """The parts of a run that change from step to step."""

    modules: nn.Module
    parameters: GroupedParameters
    optimiser: torch.optim.Optimizer
    average: Average | None
    batches: Minibatches
    generator: torch.Generator | None

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the run's state, by name."""
        found = _named("model", self.modules.state_dict())
        for k, parameter in enumerate(self.parameters.tensors):
            found |= _named(f"optimiser.{k}", self.optimiser.state[parameter])
        if self.average is not None:
            found |= _named("average", self.average.state())
        return found | _named("batches", self.batches.state()) | {"generator": self._source().get_state()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`tensors` gave."""
        self.modules.load_state_dict(_part("model", tensors))
        for k, parameter in enumerate(self.parameters.tensors):
            self.optimiser.state[parameter] = _part(f"optimiser.{k}", tensors)
        if self.average is not None:
            self.average.load_state(_part("average", tensors))
        self.batches.load_state(_part("batches", tensors))
        self._source().set_state(tensors["generator"])

    def _source(self) -> torch.Generator:
        return torch.default_generator if self.generator is None else self.generator


def _named(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{key}": tensor for key, tensor in tensors.items()}


def _part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key[len(name) + 1 :]: tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


@dataclass(frozen=True)
class Saved:
    """What a file holds: the state, the reports so far, and why the run ended if it has."""

    tensors: dict[str, Tensor]
    reports: list[dict[str, Any]]
    stopped: str | None


@dataclass(frozen=True)
class Checkpoint:
    """The file that keeps the state of a run.

    Args:
        path: of the file; where there is one, the run goes on from it.
        every: reports between writes; the last report is always written.
    """

    path: Path
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1; got {self.every}")

    def read(self, run: Mapping[str, Any]) -> Saved | None:
        """The file's contents; None where there is no file. It must be of a run with the same settings.

        ``run["same"]`` has digests of what is too large to be written out, by name.
        """
        if not self.path.exists():
            return None
        tensors, document = model_file.read(self.path, max_bytes=MAX_BYTES)
        if document.get("holds") != HOLDS:
            raise ValueError(f"{self.path} must hold a {HOLDS}; got {document.get('holds')}")
        kept = document.get("run")
        if not isinstance(kept, dict) or not isinstance(kept.get("same", {}), dict):
            raise model_file.ModelFileError(f"{self.path} does not hold a whole {HOLDS}: its settings are missing")
        hint = "Give another path, or remove the file to start anew."
        for name, value in run.items():
            if name != "same" and kept.get(name) != value:
                raise ValueError(f"{self.path} must be of a run with {name} = {value}; got {kept.get(name)}. {hint}")
        for name, digest in run.get("same", {}).items():
            if kept.get("same", {}).get(name) != digest:
                raise ValueError(f"{self.path} must be of a run with the same {name}; got another. {hint}")
        reports, stopped = document.get("reports"), document.get("stopped")
        if not isinstance(reports, list) or not (stopped is None or isinstance(stopped, str)):
            raise model_file.ModelFileError(f"{self.path} does not hold a whole {HOLDS}: its reports are missing")
        return Saved(tensors, reports, stopped)

    def restore(self, state: RunState, saved: Saved) -> None:
        """Let ``state`` go on from what was read."""
        try:
            state.load(saved.tensors)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise model_file.ModelFileError(f"{self.path} does not hold a whole {HOLDS}: {error}") from error

    def write(
        self, state: RunState, run: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], stopped: str | None
    ) -> None:
        """Put the run's state in the place of the last one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"holds": HOLDS, "run": dict(run), "reports": list(reports), "stopped": stopped}
        model_file.write(self.path, state.tensors(), document)


class KeptRun:
    """A run whose state is kept at a checkpoint: read before the first step, written at reports.

    Args:
        checkpoint: where.
        settings: of the run; a file of a run with others is refused.
        state: what changes from step to step.
        history: what was reported, which belongs to the state.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, Any], state: RunState, history: History) -> None:
        self._checkpoint, self._settings, self._state, self._history = checkpoint, settings, state, history

    def resume(self, n_steps: int) -> int:
        """Go on from the file, where there is one; how many of all steps are done, all where the run was stopped."""
        saved, history = self._checkpoint.read(self._settings), self._history
        if saved is None:
            return 0
        history.records += [Progress(**report) for report in saved.reports]
        self._checkpoint.restore(self._state, saved)
        if saved.stopped is not None:
            history.stopped = saved.stopped
            return n_steps
        return history.last.step if history.records else 0

    def write(self, done: Finished) -> None:
        """Write the file at a report, if it is this one's turn, the last one or the one that stopped the run."""
        history = self._history
        last = history.was_stopped or history.last.step == history.last.n_steps
        if last or len(history.records) % self._checkpoint.every == 0:
            reports = [asdict(record) for record in history.records]
            self._checkpoint.write(
                self._state, self._settings, reports, history.stopped if history.was_stopped else None
            )
