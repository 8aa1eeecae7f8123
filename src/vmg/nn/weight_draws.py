"""One set of weights for a whole model: draws that are functions, the same at every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from vmg.nn.bayesian import BayesianModule

__all__ = ["Draws", "evaluating", "fixed_draw"]


class Draws:
    """Several draws of all weights of a model, of which one is in use at a time.

    Iterating uses each in turn, again and again the same.
    """

    def __init__(self, model: nn.Module, n: int, *, prior: bool = False) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1; got {n}")
        self._layers = [m for m in model.modules() if isinstance(m, BayesianModule)]
        self._weights = [[layer.draw_weights(prior=prior) for layer in self._layers] for _ in range(n)]
        if all(weight is None for weight in self._weights[0]):
            raise ValueError(f"{type(model).__name__} holds no Bayesian layer; see vmg.nn.bayesianize")

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self)):
            self.use(number)
            yield number

    def use(self, number: int) -> None:
        """Let every call of the model use draw ``number``."""
        self._assign(self._weights[number])

    def _assign(self, weights: Sequence[Any]) -> None:
        for layer, weight in zip(self._layers, weights, strict=True):
            layer.drawn = weight

    @contextmanager
    def in_use(self) -> Iterator[Draws]:
        """The model with these draws, the first to begin with; as it was before, afterwards."""
        before = [layer.drawn for layer in self._layers]
        self.use(0)
        try:
            yield self
        finally:
            self._assign(before)


@contextmanager
def fixed_draw(model: nn.Module, n: int = 1) -> Iterator[Draws]:
    """Inside, the model is a function: every call uses one set of weights, drawn on entry.

    With ``n`` > 1 there are as many functions, and iterating over what ``as`` gives uses one after the other::

        with vmg.nn.fixed_draw(model, 20) as draws:
            outputs = torch.stack([model(x) for _ in draws])  # [20, ...]

    Weights keep their graph, so a training step inside is one draw for all its calls. All n sets are in memory.
    """
    with Draws(model, n).in_use() as draws:
        yield draws


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, and every module back in its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
