"""Diagonal layers bound to memory: what a training step does again and again, without looking for it again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.bound_layer import Activation
from vmg.fused.bound_stack import BoundStack

if TYPE_CHECKING:
    from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["BoundLayers"]


class BoundLayers:
    """Layers and an activation between them as a :class:`~vmg.fused.bound_stack.BoundStack`, for rows of x's kind.

    Parameters must fit the kernels. They are read where they are now; the noise is the stack's own.
    """

    def __init__(self, layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> None:
        self._thread = threading.get_ident()  # whose scratch memory the passes use
        self._kind = x.shape, x.dtype, activation
        self._plans = [layer.plan_draw(x.shape[:-1]) for layer in layers]
        self._settings = [layer.draw_settings() for layer in layers]
        self._noises = []
        for plan in self._plans:
            shapes = plan.shapes[-2:] if plan.sizes[-1] else plan.shapes[-1:]
            self._noises.append([torch.empty(shape, dtype=x.dtype) for shape in shapes])
        noises = zip(layers, self._noises, strict=True)
        draws = [layer.prepare_draw(x.shape[:-1], own, with_kl=True) for layer, own in noises]
        self._parameters = [[_bind(t) for t in one.parameters] for one in draws]
        pseudo_data = [layer.pseudo_data for layer in layers if layer.pseudo_data is not None]
        self._limits = [(t.data, *data.limits()) for data in pseudo_data for t in data.log_noises()]
        self.stack = BoundStack(draws, x, activation, checked=True)

    def serves(self, layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> bool:
        """Whether layers and rows still are as they were bound."""
        if self._kind != (x.shape, x.dtype, activation) or self._thread != threading.get_ident():
            return False
        for layer, bound, settings in zip(layers, self._parameters, self._settings, strict=True):
            if not all(map(_is_bound, bound, layer.own_tensors())) or layer.draw_settings() != settings:
                return False
        return True

    def refill(self, layers: Sequence[MatrixGaussianLinear]) -> None:
        """Draw new noise, and move that of the pseudo-data back into its bounds."""
        for log_noise, lowest, highest in self._limits:
            log_noise.clamp_(lowest, highest)
        for layer, noises in zip(layers, self._noises, strict=True):
            library.fill_normal(noises, layer.generator)


class _Bound(NamedTuple):
    """A parameter, and what the kernels know of it."""

    tensor: Tensor
    address: int
    shape: torch.Size
    dtype: torch.dtype


def _bind(tensor: Tensor | None) -> _Bound | None:
    return None if tensor is None else _Bound(tensor, tensor.data_ptr(), tensor.shape, tensor.dtype)


def _is_bound(bound: _Bound | None, tensor: Tensor | None) -> bool:
    if bound is None or tensor is None:
        return bound is None and tensor is None
    same, address, shape, dtype = bound
    return (
        tensor is same
        and tensor.data_ptr() == address
        and tensor.shape == shape
        and tensor.dtype is dtype
        and tensor.is_contiguous()
    )
