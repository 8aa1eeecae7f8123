"""Diagonal layers bound to memory: what a training step does again and again, without looking for it again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.bound_layer import Activation
from vmg.fused.layer_passes import fits
from vmg.fused.stack import BoundStack

if TYPE_CHECKING:
    from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["BoundLayers"]


class BoundLayers:
    """Layers and an activation between them as a :class:`~vmg.fused.stack.BoundStack`, for rows of x's kind.

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
        self._tensors = [one.parameters for one in draws]
        self._addresses = [_addresses(own) for own in self._tensors]
        self.stack = BoundStack(draws, x, activation, checked=True)

    def serves(self, layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> bool:
        """Whether layers and rows still are as they were bound."""
        if self._kind != (x.shape, x.dtype, activation) or self._thread != threading.get_ident():
            return False
        bound = zip(layers, self._plans, self._tensors, self._addresses, self._settings, strict=True)
        for layer, plan, tensors, addresses, settings in bound:
            own = layer.own_tensors()
            if any(a is not b for a, b in zip(own, tensors, strict=True)) or _addresses(own) != addresses:
                return False
            if layer.draw_settings() != settings or not fits(plan, (*own, None, None), x.dtype):
                return False
        return True

    def refill(self, layers: Sequence[MatrixGaussianLinear]) -> None:
        """Draw new noise, and move that of the pseudo-data back into its bounds."""
        for layer, noises in zip(layers, self._noises, strict=True):
            if layer.pseudo_data is not None:
                layer.pseudo_data.project_()
            library.fill_normal(noises, layer.generator)


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]
