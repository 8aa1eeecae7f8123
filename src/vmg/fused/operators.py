"""The draw of a diagonal layer as an operator of PyTorch, ``torch.ops.vmg.sample_diagonal``.

PyTorch's compiler sees one node, with a shape, a gradient and a batching rule, and calls it as eager programs do: the
compiled kernels on the CPU, plain PyTorch elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vmg.fused import library, stack

__all__ = ["sample_diagonal"]

_TENSORS = (
    "Tensor x, Tensor? M, Tensor log_row, Tensor log_column, Tensor? points, Tensor? log_noise, "
    "Tensor? log_point_noise, Tensor? point_noise, Tensor noise"
)
_N_TENSORS, _N_LEARNED = 9, 7  # the noise of pseudo-data and outputs has no gradient
_NUMBERS = "float input_scale, float damping"


@torch.library.custom_op("vmg::sample_diagonal", mutates_args=(), schema=f"({_TENSORS}, {_NUMBERS}) -> Tensor")
def sample_diagonal(*arguments: Any) -> Tensor:
    """Outputs [..., B, C]; the arguments are those of :func:`vmg.fused.stack.sample_diagonal`, in order."""
    with torch.no_grad():
        return _draw(arguments[:_N_TENSORS], *arguments[_N_TENSORS:])


@torch.library.custom_op(
    "vmg::sample_diagonal_backward", mutates_args=(), schema=f"(Tensor g, {_TENSORS}, {_NUMBERS}) -> Tensor[]"
)
def _gradients(g: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of those of the first seven arguments that are there, by the kernels.

    Inside an operator PyTorch records nothing but the compiled draw.
    """
    tensors, numbers = arguments[:_N_TENSORS], arguments[_N_TENSORS:]
    return [gradient.contiguous() for gradient in _differentiate(g, tensors, *numbers)]


def _differentiate(g: Tensor, tensors: Sequence[Any], *numbers: float) -> Sequence[Tensor]:
    """Make the draw again, with the same noise, and take its gradients."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors[:_N_LEARNED]]
    with torch.enable_grad():
        out = _draw([*leaves, *tensors[_N_LEARNED:]], *numbers)
    return torch.autograd.grad(out, [t for t in leaves if t is not None], g, materialize_grads=True)


def _draw(tensors: Sequence[Any], input_scale: float, damping: float) -> Tensor:
    *inputs, noise = tensors
    return stack.sample_diagonal(*inputs, noise=noise, input_scale=input_scale, damping=damping)


@sample_diagonal.register_fake
def _(*arguments: Any) -> Tensor:
    return arguments[_N_TENSORS - 1].new_empty(arguments[_N_TENSORS - 1].shape)


@_gradients.register_fake
def _(g: Tensor, *arguments: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in arguments[:_N_LEARNED] if t is not None]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:_N_TENSORS])
    ctx.numbers = inputs[_N_TENSORS:]


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if library.serves(g):
        found = iter(_gradients(g, *saved, *ctx.numbers))
    else:
        found = iter(_differentiate(g, saved, *ctx.numbers))
    return (*(None if t is None else next(found) for t in saved[:_N_LEARNED]), None, None, None, None)


sample_diagonal.register_autograd(_backward, setup_context=_keep)


@sample_diagonal.register_vmap
def _(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
    """One more leading dimension, which the operation takes for replicas."""
    tensors = []
    for tensor, dim in zip(arguments[:_N_TENSORS], in_dims, strict=False):
        if tensor is not None:
            tensor = tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        tensors.append(tensor)
    return sample_diagonal(*tensors, *arguments[_N_TENSORS:]), 0
