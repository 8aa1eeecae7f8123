"""Sizes that a model file describes, checked against the tensors that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["require_shapes", "require_size"]


def require_shapes(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless each named tensor has its shape."""
    for name, shape in shapes.items():
        present = tuple(tensors[name].shape)
        if present != shape:
            raise ValueError(f"{name} must have the shape {shape}, as described; got {present}")


def require_size(name: str, value: Any) -> int:
    """The value; a ValueError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    return value
