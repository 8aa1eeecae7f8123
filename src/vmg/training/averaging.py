"""The exponential average of parameters over training, which predicts better than the last of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.hooks import Finished

__all__ = ["Average"]


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
