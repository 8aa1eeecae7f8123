"""The parameters to go back to when training breaks, and where it broke."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.math.linalg import all_finite
from vmg.nn.bayesian import BayesianModule, kl_divergence
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.hooks import Finished

__all__ = ["LastGood", "TrainingError"]


class TrainingError(RuntimeError):
    """The bound stopped being finite; the network holds its last good parameters."""


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
            f"the bound is not finite at step {step}, first in {culprit}; the parameters of the last good report are "
            f"restored. Lower the learning rate (now {learning_rate:g}) or check the scale of the data."
        )


def _first_non_finite(network: nn.Module, x: Tensor) -> str:
    """The name of the layer where NaN or infinity first shows: in its parameters, its output or its KL."""
    for name, parameter in network.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    entered: list[str] = []
    found: list[str] = []
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule):

            def enter(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                entered.append(name)

            def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                if not torch.isfinite(output).all():
                    found.append(f"the output of layer {name}")

            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(look)]
    try:
        with torch.no_grad():
            network(x)
    except ValueError as error:  # a layer may refuse what the layer before it made
        found.append(f"layer {entered[-1] if entered else ''}: {error}")
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return found[0]
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule) and not torch.isfinite(kl_divergence(module)).all():
            return f"the KL of layer {name}"
    return "the likelihood"
