"""Diagonal layers bound to memory: what a training step does again and again, without looking for it again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.fused.bound_layer import Activation
from vmg.fused.bound_stack import BoundStack
from vmg.fused.layer_passes import fits
from vmg.fused.pass_memory import MOST

if TYPE_CHECKING:
    from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["BoundLayers", "may_bind"]


def may_bind(layer: MatrixGaussianLinear, x: Tensor) -> bool:
    """Whether the kernels can take a layer's parameters as they are, in memory of a modest size, from step to step."""
    plan, own, data = layer.plan_draw(x.shape[:-1]), _own_tensors(layer), layer.pseudo_data
    if plan.total > MOST or not fits(plan, (*own, None, None), x.dtype):
        return False
    if any(True for _ in layer.prior.parameters()) or (data is not None and isinstance(data.max_noise, Tensor)):
        return False  # these may change, in place or not
    return all(t is None or type(t) is nn.Parameter for t in own)


class BoundLayers:
    """Layers and an activation between them as a :class:`~vmg.fused.bound_stack.BoundStack`, for rows of x's kind.

    Parameters must fit the kernels. They are read where they are now; the noise is the stack's own.
    """

    def __init__(self, layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> None:
        self._thread = threading.get_ident()  # whose scratch memory the passes use
        self._kind = len(layers), x.shape, x.dtype, activation
        self._plans = [layer.plan_draw(x.shape[:-1]) for layer in layers]
        self._settings = [_settings(layer) for layer in layers]
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
        self._nodes = [_accumulator(t) for t in self.stack.parameters if t is not None and t.requires_grad]

    def serves(self, layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> bool:
        """Whether layers and rows still are as they were bound."""
        if self._kind != (len(layers), x.shape, x.dtype, activation) or self._thread != threading.get_ident():
            return False
        for layer, bound, settings in zip(layers, self._parameters, self._settings, strict=True):
            if not all(map(_is_bound, bound, _own_tensors(layer))) or _settings(layer) != settings:
                return False
        return True

    def refill(self, layers: Sequence[MatrixGaussianLinear]) -> None:
        """Draw new noise, and move that of the pseudo-data back into its bounds."""
        for log_noise, lowest, highest in self._limits:
            log_noise.clamp_(lowest, highest)
        for layer, noises in zip(layers, self._noises, strict=True):
            library.fill_normal(noises, layer.generator)


@torch.enable_grad()
def _accumulator(parameter: Tensor) -> object:
    """The node that adds to a parameter's gradient: autograd makes it anew at each step, if nobody holds it."""
    node = parameter.view_as(parameter).grad_fn
    return None if node is None else node.next_functions[0][0]


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


def _own_tensors(layer: MatrixGaussianLinear) -> tuple[Tensor | None, ...]:
    """M, log σ_r, log σ_c, the pseudo-points and the two logarithms of √α, None where there is no such parameter.

    A step asks for them before anything else, and ``__getattr__`` of modules is slow.
    """
    modules: dict[str, Any] = layer._modules
    row, column, pseudo_data = modules["row"], modules["column"], modules.get("pseudo_data")
    tensors = layer._parameters.get("loc"), row._parameters.get("log_scale"), column._parameters.get("log_scale")
    if pseudo_data is None:
        return *tensors, None, None, None
    own = pseudo_data._parameters
    return *tensors, own.get("points"), own.get("log_noise"), own.get("log_point_noise")


def _settings(layer: MatrixGaussianLinear) -> tuple[Any, ...]:
    """What a draw and its divergence depend on besides tensors."""
    modules: dict[str, Any] = layer._modules
    data, prior = modules.get("pseudo_data"), modules["prior"]
    max_noise = None if data is None else data.max_noise
    return layer.damping, layer.kl, max_noise, prior, prior.coefficients(layer.n_rows * layer.out_features)
