"""The exponential average of parameters over training, which predicts better than the last of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vmg.training.flat_parameters import FlatParameters

__all__ = ["Average"]


class Average:
    """Exponential average of parameters over steps, free of bias towards the start [LW16, §4]."""

    def __init__(self, flat: FlatParameters, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"averaging must be in [0, 1) or None; got {decay}")
        self._flat, self._decay, self._steps = flat, decay, 0
        self.values: list[Tensor] = flat.snapshot()

    def update(self) -> None:
        """Take in the present parameters; after t steps their weights are β^(t−s) (1 − β)/(1 − β^t)."""
        self._steps += 1
        decay = self._decay * (1 - self._decay ** (self._steps - 1)) / (1 - self._decay**self._steps)
        get_ema_multi_avg_fn(decay)(self.values, [t.detach() for t in self._flat.tensors], None)

    def state(self) -> dict[str, Tensor]:
        """The averages and the number of steps behind them."""
        return {str(k): value for k, value in enumerate(self.values)} | {"steps": torch.tensor(self._steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what :meth:`state` gave."""
        self.values = [state[str(k)] for k in range(len(self.values))]
        self._steps = int(state["steps"])
