"""Call a model: with one draw of its weights for all calls, in eval mode, with any kind of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from vmg.nn.bayesian import BayesianModule

__all__ = ["Draws", "call", "evaluating", "fixed_draw", "output_tensor", "split_rows"]


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
        for layer, weight in zip(self._layers, self._weights[number], strict=True):
            layer.drawn = weight

    @contextmanager
    def in_use(self) -> Iterator[Draws]:
        """Use these draws inside the block, the first one to begin with, and restore the model afterwards."""
        before = [layer.drawn for layer in self._layers]
        self.use(0)
        try:
            yield self
        finally:
            for layer, weight in zip(self._layers, before, strict=True):
                layer.drawn = weight


def fixed_draw(model: nn.Module, n: int = 1) -> AbstractContextManager[Draws]:
    """Make the model a fixed function inside the block: every call uses one set of weights, drawn on entry.

    With ``n`` > 1 there are as many functions, and iterating over what ``as`` gives uses one after the other::

        with vmg.nn.fixed_draw(model, 20) as draws:
            outputs = torch.stack([model(x) for _ in draws])  # [20, ...]

    Weights keep their graph, so a training step inside is one draw for all its calls. All n sets are in memory.
    """
    return Draws(model, n).in_use()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set the model to eval mode inside the block, and every module back to its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The model's output tensor for inputs that are a tensor, a sequence of arguments, or a mapping of keywords."""
    if isinstance(inputs, Mapping):
        return output_tensor(model(**inputs))
    if isinstance(inputs, tuple | list):
        return output_tensor(model(*inputs))
    return output_tensor(model(inputs))


def output_tensor(output: Any) -> Tensor:
    """The tensor in an output: itself, ``logits`` of a mapping (as Hugging Face models give), or its only tensor."""
    parts = output
    if isinstance(output, Mapping):
        parts = output["logits"] if "logits" in output else list(output.values())
    if isinstance(parts, Tensor):
        return parts
    tensors = [part for part in parts if isinstance(part, Tensor)] if isinstance(parts, tuple | list) else []
    if len(tensors) != 1:
        raise TypeError(
            f"the model must give a tensor, a mapping with logits, or one tensor among others; got {type(output)} "
            f"with {len(tensors)} tensors"
        )
    return tensors[0]


def split_rows(inputs: Any, size: int) -> Iterator[Any]:
    """Inputs in pieces of at most ``size`` rows of dimension 0, which all tensors with as many rows share."""
    values = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple | list) else [inputs]
    )
    lengths = [len(value) for value in values if isinstance(value, Tensor) and value.dim()]
    if not lengths:
        raise ValueError(f"the inputs must hold a tensor with rows; got {type(inputs)}")
    for start in range(0, max(lengths[0], 1), size):
        yield _rows(inputs, slice(start, start + size), lengths[0])


def _rows(value: Any, rows: slice, n_rows: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _rows(part, rows, n_rows) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_rows(part, rows, n_rows) for part in value]
    if isinstance(value, Tensor) and value.dim() and len(value) == n_rows:
        return value[rows]
    return value
