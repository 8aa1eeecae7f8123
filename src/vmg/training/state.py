"""The state of a run: its parameters, their average, the last good ones, and the file that keeps all of it.

A run that was killed at any moment goes on from its last file to the same bits. Its next step depends on the
parameters, Adam's moments, the average, the order of the epoch's rows and the place in it, and the generator: all of
these are in the file, which is replaced whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vmg.files import Run
from vmg.math.linalg import all_finite
from vmg.model_file import ModelFileError, read, stripped, write
from vmg.nn.bayesian import BayesianModule, kl_divergence
from vmg.training.progress import ALL_DONE, History, Progress

__all__ = ["Average", "Checkpoint", "KeptRun", "LastGood", "TrainingError"]


class Average:
    """Exponential average of parameters over steps, free of bias towards the start [LW16, §4]."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"averaging must be in [0, 1) or None; got {decay}")
        self._parameters, self._decay, self._steps = parameters, decay, 0
        self.values = [parameter.detach().clone() for parameter in parameters]

    def update(self) -> None:
        """Take in the present parameters; after t steps their weights are β^(t−s) (1 − β)/(1 − β^t)."""
        self._steps += 1
        decay = self._decay * (1 - self._decay ** (self._steps - 1)) / (1 - self._decay**self._steps)
        get_ema_multi_avg_fn(decay)(self.values, [t.detach() for t in self._parameters], None)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Let the network hold the averages."""
        for parameter, value in zip(self._parameters, self.values, strict=True):
            parameter.copy_(value)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages and the number of steps behind them."""
        return {str(k): value for k, value in enumerate(self.values)} | {"steps": torch.tensor(self._steps)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        self.values = [state[str(k)] for k in range(len(self.values))]
        self._steps = int(state["steps"])


class TrainingError(RuntimeError):
    """The objective stopped being finite; the network holds its last good parameters."""


class LastGood:
    """The parameters and buffers at the last report at which all of them were finite; the network is first."""

    def __init__(self, modules: nn.ModuleList) -> None:
        self._modules = modules
        self._state: dict[str, Tensor] = {}
        self.keep()

    def keep(self) -> bool:
        """Remember the present values, if they are finite; whether they are."""
        state = self._modules.state_dict()
        finite = all(all_finite(value) for value in state.values())
        if finite:
            self._state.clear()  # before the copy: there are never two
            self._state |= {name: value.clone() for name, value in state.items()}
        return finite

    def restore(self) -> None:
        """Put the remembered values back."""
        self._modules.load_state_dict(self._state)

    def failure(self, step: int, learning_rate: float, x: Tensor) -> TrainingError:
        """Put the good values back and say where training broke."""
        culprit = _first_non_finite(self._modules[0], x)
        if self._state:
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
    names = {module: name for name, module in network.named_modules() if isinstance(module, BayesianModule)}
    culprits: list[str] = []

    def look(module: BayesianModule, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not torch.isfinite(output).all():
            culprits.append(f"the output of layer {names[module]}")

    with ExitStack() as hooks, torch.no_grad(), suppress(ValueError):  # a layer refuses what the one before it made
        for module in names:
            hooks.callback(module.register_forward_hook(look).remove)
        network(x)
    culprits += [f"the KL of layer {name}" for module, name in names.items() if not all_finite(kl_divergence(module))]
    return culprits[0] if culprits else "the likelihood"


# -- on disk ----------------------------------------------------------------------------------------------------------

HOLDS = "training run"
MAX_BYTES = 2**40  # a run of a large network has more to keep than a model has


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


@dataclass(frozen=True)
class KeptRun:
    """A run whose state is kept at a checkpoint: read before the first step, written at reports.

    A file of a run with other ``settings`` is refused.
    """

    checkpoint: Checkpoint
    settings: Mapping[str, Any]
    history: History
    parts: Mapping[str, Any]  # with the methods ``state_dict`` and ``load_state_dict``, by name
    optimiser: torch.optim.Optimizer
    generator: torch.Generator | None

    def resume(self, n_steps: int) -> int:
        """Go on from the file, where there is one; the number of steps done, all of them where the run was stopped."""
        path, history = self.checkpoint.path, self.history
        if not path.exists():
            return 0
        tensors, document = read(path, max_bytes=MAX_BYTES)
        if document.get("holds") != HOLDS:
            raise ModelFileError(f"{path} must hold a {HOLDS}; got {document.get('holds')!s:.40}")
        Run(self.settings).require_same(document.get("run"), path)
        try:
            history.records += [Progress(**report) for report in document["reports"]]
            history.stopped, done = str(document["stopped"] or ALL_DONE), history.last.step
            self._load(tensors)
        except (LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} does not hold a whole {HOLDS}: {error}") from error
        return n_steps if history.was_stopped else done

    def write(self) -> None:
        """Write the file at a report, if it is this one's turn, the last one or the one that stopped the run."""
        history, checkpoint = self.history, self.checkpoint
        last = history.was_stopped or history.last.step == history.last.n_steps
        if last or len(history.records) % checkpoint.every == 0:
            document = {"reports": [asdict(record) for record in history.records], "stopped": history.stopped}
            checkpoint.path.parent.mkdir(parents=True, exist_ok=True)
            run = Run(self.settings).to_document()
            write(checkpoint.path, self._tensors(), {"holds": HOLDS, "run": run, **document})

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors of the run's state, by name."""
        state = {"generator": self._source().get_state()}
        for name, part in self.parts.items():
            state |= {f"{name}.{key}": tensor for key, tensor in part.state_dict().items()}
        for k, parameter in enumerate(self.optimiser.param_groups[0]["params"]):
            state |= {f"optimiser.{k}.{key}": value for key, value in self.optimiser.state[parameter].items()}
        return state

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`_tensors` gave."""
        for name, part in self.parts.items():
            part.load_state_dict(stripped(f"{name}.", tensors))
        for k, parameter in enumerate(self.optimiser.param_groups[0]["params"]):
            self.optimiser.state[parameter] = stripped(f"optimiser.{k}.", tensors)
        self._source().set_state(tensors["generator"])

    def _source(self) -> torch.Generator:
        return torch.default_generator if self.generator is None else self.generator
