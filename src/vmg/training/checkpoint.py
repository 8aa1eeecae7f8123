"""States to go back to: the last good parameters in memory, and a training run on disk.

A run that was killed at any moment goes on from its last file to the same bits. Its next step depends on the
parameters, Adam's moments, the average, the order of the epoch's rows and the place in it, and the generator. All of
these are in the file, which :mod:`vmg.model_file` writes beside its place and then renames: there is a whole file at
any time, the old one or the new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vmg import model_file
from vmg.files import Run
from vmg.likelihoods import Likelihood
from vmg.math.linalg import all_finite
from vmg.nn.bayesian import BayesianModule, kl_divergence
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.progress import Average, Finished, History, Progress
from vmg.training.rows import Minibatches

__all__ = ["Checkpoint", "KeptRun", "LastGood", "RunState", "TrainingError"]


HOLDS = "training run"
MAX_BYTES = 2**40  # a run of a large network has more to keep than a model has


class TrainingError(RuntimeError):
    """The objective stopped being finite; the network holds its last good parameters."""


class LastGood:
    """The parameters at the last report at which all of them were finite."""

    def __init__(self, network: nn.Module, likelihood: Likelihood, parameters: GroupedParameters) -> None:
        self._network, self._likelihood, self._parameters = network, likelihood, parameters
        self._values: list[Tensor] = []
        self._state: dict[str, Tensor] = {}
        self._remember()

    def keep(self, done: Finished) -> None:
        """Remember the present parameters; where they are not finite, go back to the last good ones and raise."""
        if not self._remember():
            raise self.failure(done.step, done.learning_rate, done.batch.x)

    def _remember(self) -> bool:
        """Remember the present parameters, if they are finite; say whether they are."""
        state = self._likelihood.state_dict()
        finite = all(all_finite(t.detach()) for t in (*self._parameters.tensors, *state.values()))
        if finite:
            self._parameters.copy_to(self._values)
            self._state = {name: value.clone() for name, value in state.items()}
        return finite

    def restore(self) -> None:
        """Put the remembered parameters back."""
        self._parameters.restore(self._values)

    def failure(self, step: int, learning_rate: float, x: Tensor) -> TrainingError:
        """Put the good parameters back and say where training broke."""
        culprit = _first_non_finite(self._network, x)
        if self._values:
            self._likelihood.load_state_dict(self._state)
            self.restore()
        return TrainingError(
            f"the objective is not finite at step {step}, first in {culprit}; the parameters of the last good report "
            f"are restored. Lower the learning rate (now {learning_rate:g}) or check the scale of the data."
        )


def _first_non_finite(network: nn.Module, x: Tensor) -> str:
    """The first layer with NaN or infinity in its parameters, its output or its KL, in words."""
    for name, parameter in network.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    entered: list[str] = []
    culprits: list[str] = []
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule):

            def enter(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                entered.append(name)

            def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                if not torch.isfinite(output).all():
                    culprits.append(f"the output of layer {name}")

            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(look)]
    try:
        with torch.no_grad():
            network(x)
    except ValueError as error:  # a layer may refuse what the layer before it made
        culprits.append(f"layer {entered[-1] if entered else ''}: {error}")
    finally:
        for hook in hooks:
            hook.remove()
    if culprits:
        return culprits[0]
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule) and not torch.isfinite(kl_divergence(module)).all():
            return f"the KL of layer {name}"
    return "the likelihood"


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
        state = _named("model", self.modules.state_dict())
        for k, parameter in enumerate(self.parameters.tensors):
            state |= _named(f"optimiser.{k}", self.optimiser.state[parameter])
        if self.average is not None:
            state |= _named("average", self.average.state())
        return state | _named("batches", self.batches.state()) | {"generator": self._source().get_state()}

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

    def read(self, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]], str | None] | None:
        """The state in the file, the reports so far, and why the run ended if it has; None where there is no file.

        The file must be of a run with the same settings; those that are too large to be written out are digests.
        """
        if not self.path.exists():
            return None
        tensors, document = model_file.read(self.path, max_bytes=MAX_BYTES)
        if document.get("holds") != HOLDS:
            raise ValueError(f"{self.path} must hold a {HOLDS}; got {document.get('holds')}")
        Run(settings).require_same(document.get("run"), self.path)
        reports, stopped = document.get("reports"), document.get("stopped")
        if not isinstance(reports, list) or not (stopped is None or isinstance(stopped, str)):
            raise self.damaged("its reports are missing")
        return tensors, reports, stopped

    def damaged(self, reason: object) -> model_file.ModelFileError:
        """The error for a file that lacks parts of a run."""
        return model_file.ModelFileError(f"{self.path} does not hold a whole {HOLDS}: {reason}")


class KeptRun:
    """A run whose state is kept at a checkpoint: read before the first step, written at reports.

    Args:
        checkpoint: the file.
        settings: of the run; a file of a run with others is refused.
        state: the parts of the run that change from step to step.
        history: the reports, which belong to the state.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Mapping[str, Any], state: RunState, history: History) -> None:
        self._checkpoint, self._settings, self._state, self._history = checkpoint, settings, state, history

    def resume(self, n_steps: int) -> int:
        """Go on from the file, where there is one; the number of steps done, all of them where the run was stopped."""
        saved, history = self._checkpoint.read(self._settings), self._history
        if saved is None:
            return 0
        tensors, reports, stopped = saved
        try:
            history.records += [Progress(**report) for report in reports]
            self._state.load(tensors)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise self._checkpoint.damaged(error) from error
        if stopped is not None:
            history.stopped = stopped
            return n_steps
        return history.last.step if history.records else 0

    def write(self, done: Finished) -> None:
        """Write the file at a report, if it is this one's turn, the last one or the one that stopped the run."""
        history, checkpoint = self._history, self._checkpoint
        last = history.was_stopped or history.last.step == history.last.n_steps
        if last or len(history.records) % checkpoint.every == 0:
            document = {
                "holds": HOLDS,
                "run": dict(self._settings),
                "reports": [asdict(record) for record in history.records],
                "stopped": history.stopped if history.was_stopped else None,
            }
            checkpoint.path.parent.mkdir(parents=True, exist_ok=True)
            model_file.write(checkpoint.path, self._state.tensors(), document)
