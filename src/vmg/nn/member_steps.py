"""The steps of a plain model for many members at once: values are [members, rows, ...], tensors [members, ...].

A step that is known to work on rows one by one is taken for all members together, in as few calls as one network takes.
Whatever else a model may hold is called for one member after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from vmg.nn.draws import output_tensor

__all__ = [
    "Convolve",
    "Elementwise",
    "MemberByMember",
    "Multiply",
    "Normalise",
    "RowByRow",
    "Step",
    "forms_of",
    "steps_of",
]

ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Dropout),
)
ROW_BY_ROW = (
    *(nn.Flatten, nn.Unflatten, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d),
    *(nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.Upsample, nn.Dropout2d),
)

Tensors = Mapping[str, Tensor]


class Turned:
    """A weight [outputs, inputs] as [inputs, outputs]: so the gradient of a batched product comes."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.mT

    back = __call__


class AsRow:
    """A bias as a matrix of one row, which a batched product adds to all."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(-2)

    def back(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(-2)


@dataclass(frozen=True)
class Multiply:
    """A linear layer: one batched product. Its tensors may be kept in a form that saves turning them in every call."""

    weight: str
    bias: str | None
    in_form: bool

    def __call__(self, tensors: Tensors, h: Tensor) -> Tensor:
        W, b = tensors[self.weight], None if self.bias is None else tensors[self.bias]
        if not self.in_form:
            W, b = Turned()(W), None if b is None else AsRow()(b)
        rows = h if h.dim() == 3 else h.flatten(1, -2)
        found = torch.bmm(rows, W) if b is None else torch.baddbmm(b, rows, W)
        return found if h.dim() == 3 else found.unflatten(1, h.shape[1:-1])


@dataclass(frozen=True)
class Convolve:
    """A convolution: members are groups of channels."""

    module: nn.Conv1d | nn.Conv2d
    weight: str
    bias: str | None

    def __call__(self, tensors: Tensors, h: Tensor) -> Tensor:
        n_members, layer = len(h), self.module
        W = tensors[self.weight].flatten(0, 1)  # [E · outputs, inputs, ...]
        b = None if self.bias is None else tensors[self.bias].flatten()
        channels = h.transpose(0, 1).flatten(1, 2)  # [n, E · inputs, ...]
        convolve = F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d
        found = convolve(channels, W, b, layer.stride, layer.padding, layer.dilation, n_members * layer.groups)
        return found.unflatten(1, (n_members, -1)).transpose(0, 1)


@dataclass(frozen=True)
class Normalise:
    """A layer norm, and what each member scales and shifts it by."""

    module: nn.LayerNorm
    name: str

    def __call__(self, tensors: Tensors, h: Tensor) -> Tensor:
        found = F.layer_norm(h, self.module.normalized_shape, None, None, self.module.eps)
        for kind in ("weight", "bias"):
            own = tensors.get(f"{self.name}{kind}")
            if own is not None:
                own = own.reshape(len(own), *[1] * (h.dim() - own.dim()), *own.shape[1:])
                found = found * own if kind == "weight" else found + own
        return found


@dataclass(frozen=True)
class Elementwise:
    """A module that does the same to every number."""

    module: nn.Module

    def __call__(self, tensors: Tensors, h: Tensor) -> Tensor:
        return self.module(h)


@dataclass(frozen=True)
class RowByRow:
    """A module without tensors that treats the rows of dimension 0 alike."""

    module: nn.Module

    def __call__(self, tensors: Tensors, h: Tensor) -> Tensor:
        return self.module(h.flatten(0, 1)).unflatten(0, h.shape[:2])


@dataclass(frozen=True)
class MemberByMember:
    """Any module, called once for each member with the member's own tensors and rows."""

    module: nn.Module
    names: dict[str, str]  # of its tensors: inside it, and inside the whole model

    def __call__(self, tensors: Tensors, *inputs: Any, **keywords: Any) -> Tensor:
        found = []
        for member in range(len(next(iter(tensors.values())))):
            own = {inner: tensors[name][member] for inner, name in self.names.items()}
            given, named = _of_member((inputs, keywords), member)
            found.append(output_tensor(functional_call(self.module, own, given, named)))
        return torch.stack(found)


def _of_member(value: Any, member: int) -> Any:
    if isinstance(value, Tensor) and value.dim():
        return value[member]
    if isinstance(value, tuple | list):
        return tuple(_of_member(part, member) for part in value)
    if isinstance(value, dict):
        return {name: _of_member(part, member) for name, part in value.items()}
    return value


Step = Multiply | Convolve | Normalise | Elementwise | RowByRow | MemberByMember


def forms_of(step: Step) -> dict[str, Turned | AsRow]:
    """The forms in which a step takes its tensors, where they are not those of the model."""
    if not isinstance(step, Multiply) or not step.in_form:
        return {}
    return {step.weight: Turned(), **({} if step.bias is None else {step.bias: AsRow()})}


def steps_of(module: nn.Module, names: list[str], prefix: str = "", *, in_form: bool = False) -> Iterator[Step]:
    """What to do, in turn, for the model that a module is, or is part of; ``names`` are of all the model's tensors."""
    kind = type(module)
    if _has_hooks(module):
        yield _member_by_member(module, names, prefix)
    elif kind is nn.Sequential:
        for name, part in module.named_modules(remove_duplicate=False):
            if name and "." not in name:
                yield from steps_of(part, names, f"{prefix}{name}.", in_form=in_form)
    elif kind is nn.Linear:
        yield Multiply(*_weight_and_bias(names, prefix), in_form)
    elif isinstance(module, nn.Conv1d | nn.Conv2d) and kind in (nn.Conv1d, nn.Conv2d) and _pads_zeros(module):
        yield Convolve(module, *_weight_and_bias(names, prefix))
    elif isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm:
        yield Normalise(module, prefix)
    elif kind in ELEMENTWISE:
        yield Elementwise(module)
    elif kind in ROW_BY_ROW and getattr(module, "start_dim", 1) > 0 and getattr(module, "dim", 1) != 0:
        yield RowByRow(module)
    else:
        yield _member_by_member(module, names, prefix)


def _weight_and_bias(names: list[str], prefix: str) -> tuple[str, str | None]:
    bias = f"{prefix}bias"
    return f"{prefix}weight", bias if bias in names else None


def _pads_zeros(module: nn.Conv1d | nn.Conv2d) -> bool:
    return module.padding_mode == "zeros"


def _has_hooks(module: nn.Module) -> bool:
    return any(
        getattr(module, kind)
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


def _member_by_member(module: nn.Module, names: list[str], prefix: str) -> MemberByMember:
    return MemberByMember(module, {name[len(prefix) :]: name for name in names if name.startswith(prefix)})
