"""Calling any model: several inputs, keyword inputs, outputs that are more than a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

__all__ = ["call", "output_tensor", "split_rows"]


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The model's output tensor for inputs that are a tensor, a sequence of arguments, or a mapping of keywords."""
    if isinstance(inputs, Mapping):
        return output_tensor(model(**inputs))
    if isinstance(inputs, tuple | list):
        return output_tensor(model(*inputs))
    return output_tensor(model(inputs))


def output_tensor(output: Any) -> Tensor:
    """The tensor in an output: itself, ``logits`` of a mapping (as Hugging Face models give), or its only tensor."""
    if isinstance(output, Tensor):
        return output
    values: Sequence[Any] = ()
    if isinstance(output, Mapping):
        if "logits" in output:
            return output["logits"]
        values = list(output.values())
    elif isinstance(output, tuple | list):
        values = output
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) != 1:
        raise TypeError(
            f"the model must give a tensor, a mapping with logits, or one tensor among others; got {type(output)} "
            f"with {len(tensors)} tensors"
        )
    return tensors[0]


def split_rows(inputs: Any, size: int) -> Iterator[Any]:
    """Inputs in pieces of at most ``size`` rows of dimension 0, which all tensors with as many rows share."""
    tensors = [value for value in _leaves(inputs) if isinstance(value, Tensor) and value.dim()]
    if not tensors:
        raise ValueError(f"the inputs must hold a tensor with rows; got {type(inputs)}")
    n_rows = len(tensors[0])
    for start in range(0, max(n_rows, 1), size):
        yield _rows(inputs, slice(start, start + size), n_rows)


def _leaves(inputs: Any) -> list[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple | list) else [inputs]


def _rows(value: Any, rows: slice, n_rows: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _rows(part, rows, n_rows) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_rows(part, rows, n_rows) for part in value]
    if isinstance(value, Tensor) and value.dim() and len(value) == n_rows:
        return value[rows]
    return value
