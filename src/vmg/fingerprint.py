"""Short digests of what a training run depends on, so that a run goes on only from a file of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["fingerprint_function", "fingerprint_modules", "fingerprint_tensors", "tensor_bytes"]

PIECE = 4096  # rows that are copied at once, so that a mapped table is never in memory whole
PROBES = 33  # places at which a function is read


def fingerprint_tensors(tensors: Mapping[str, Tensor | None]) -> str:
    """Fingerprint of names, types, shapes and every bit."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        if tensor is None:
            digest.update(json.dumps([name, None]).encode())
            continue
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for piece in tensor_bytes(tensor.detach()):
            digest.update(piece)
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> Iterator[bytes]:
    """The bytes of a tensor's numbers in their order, piece by piece."""
    for piece in tensor.split(PIECE) if tensor.dim() else (tensor,):
        yield piece.cpu().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy().tobytes()


def fingerprint_function(function: Callable[[float], float]) -> str:
    """Fingerprint of a function by its values between 0 and 1; the last place is just below 1, where a step may be."""
    values = [function(k / PROBES) for k in range(PROBES)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def fingerprint_modules(modules: nn.Module) -> str:
    """Fingerprint of the classes of all parts and their options, without their tensors."""
    parts = [
        [name, _name(type(part)), {key: _option(value) for key, value in sorted(vars(part).items()) if _is_option(key)}]
        for name, part in modules.named_modules()
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _is_option(key: str) -> bool:
    return not key.startswith("_") and key not in ("training", "generator")


def _option(value: Any) -> Any:
    """A JSON value that differs where options differ; of an object only its class is told."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_option(item) for item in value]
    if isinstance(value, Tensor):
        return fingerprint_tensors({"": value})
    return _name(value if callable(value) and hasattr(value, "__qualname__") else type(value))


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
