"""The fast form of diagonal layers: compiled kernels, and one call for layers one after the other.

A layer alone draws by :func:`fused_draw`. Inside :func:`fused_runs`, which the objective opens, each run of
``[layer, activation, layer, ...]`` in an ``nn.Sequential`` or a :class:`~vmg.nn.MLP`, and each layer elsewhere, draws
and takes its divergence as one node of autograd's graph. The numbers drawn, and the gradients, are those of the layers
called one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.fused.divergence import DiagonalKL
from vmg.fused.stack import DiagonalDraw, kernels_serve, sample_stack
from vmg.math.linalg import NARROW, is_traced
from vmg.nn.bayesian import BayesianModule, DrawnRun, has_hooks, no_autocast
from vmg.nn.matrix_gaussian import MatrixGaussianLinear, sample_diagonal
from vmg.nn.mlp import ACTIVATIONS, MLP, MODULES, Activation, Elementwise
from vmg.priors import log_uniform_at_bound

__all__ = ["fused_draw", "fused_runs"]


def fused_draw(layer: MatrixGaussianLinear, x: Tensor) -> Tensor | None:
    """One draw of a diagonal layer for x [*batch_shape, B, in]; None where the kernels cannot take these tensors."""
    if not kernels_serve(x, layer.row.log_scale):
        return None
    return sample_stack(x, [_prepare(layer, x)], check_finite=not x.requires_grad)[0]


def _prepare(layer: MatrixGaussianLinear, x: Tensor, *, with_kl: bool = False) -> DiagonalDraw:
    """The parameters, and new noise, for a draw at rows like those of x."""
    quantities: Any = layer.quantities()
    _, log_row, _, points, *_ = quantities
    shapes = [*([] if points is None else [points.shape]), (*x.shape[:-1], layer.out_features)]
    *point_noise, noise = library.standard_normal(*shapes, like=log_row, generator=layer.generator)
    kl = _divergence(layer) if with_kl else None
    return DiagonalDraw(
        quantities, (point_noise[0] if point_noise else None, noise), layer.damping, sample_diagonal, kl
    )


def _divergence(layer: MatrixGaussianLinear) -> DiagonalKL | None:
    """The paper's divergence as the kernels take it; None where the prior is none of theirs."""
    sizes, data = (layer.n_pseudo, layer.n_rows, layer.out_features), layer.pseudo_data
    coefficients = layer.prior.coefficients(layer.n_rows * layer.out_features)
    if coefficients is None:
        return None
    bound = 1.0 if data is None else data.max_noise
    at_bound = log_uniform_at_bound(bound.double() if isinstance(bound, Tensor) else bound)
    factored = data is not None and data.log_point_noise is not None
    return DiagonalKL(layer.kl_of_diagonal, coefficients, sizes, factored, at_bound)


# -- runs of layers ---------------------------------------------------------------------------------------------------

_FUNCTIONS = {module: function for function, module in MODULES.items() if module is not nn.Identity}
_ELEMENTWISE = {function: Elementwise(function) for function in ACTIVATIONS.values()}  # known to have no parameters


@contextmanager
def fused_runs(network: nn.Module) -> Iterator[list[DrawnRun]]:
    """Let runs of layers in ``network`` draw and take their divergence in one call; gives a list of these runs.

    The parameters must stay as they are inside. A call without a graph, in another thread, or of tensors that the
    kernels cannot take goes through the layers one by one and is not listed.
    """
    drawn: list[DrawnRun] = []
    replaced: list[nn.Module] = []
    try:
        if torch.is_grad_enabled() and not is_traced():
            for module, forward in _fused_forwards(network, drawn, set()):
                module.__dict__["forward"] = forward
                replaced.append(module)
        yield drawn
    finally:
        for module in replaced:
            module.__dict__.pop("forward", None)


def _fused_forwards(
    module: nn.Module, drawn: list[DrawnRun], seen: set[nn.Module]
) -> Iterator[tuple[nn.Module, Callable[..., Tensor]]]:
    """Modules that hold runs of layers, each with the function that takes the place of its ``forward``."""
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, BayesianModule):
        if _is_fusable(module):
            yield module, _Fused(module, [_Run([module], drawn)])
        return
    parts: list[Any] = [part for part in module._modules.values() if part is not None]
    is_chain = _is_own(module, "forward", nn.Sequential)
    if isinstance(module, MLP) and _is_own(module, "forward", MLP) and module.activation in _ELEMENTWISE:
        is_chain, activation = True, _ELEMENTWISE[module.activation]
        parts = [part for layer in module.layers for part in (layer, activation)][:-1]
    if is_chain:
        steps = _group(parts, drawn)
        if any(isinstance(step, _Run) for step in steps):
            yield module, _Fused(module, steps)
        parts = [step for step in steps if isinstance(step, nn.Module)]
    for part in parts:
        yield from _fused_forwards(part, drawn, seen)


def _group(modules: Sequence[nn.Module], drawn: list[DrawnRun]) -> list[Any]:
    """Modules in their order, the longest runs of ``[layer, activation, layer, ...]`` taken together."""
    steps: list[Any] = []
    while modules:
        stop = 1
        if _is_fusable(modules[0]):
            while stop + 1 < len(modules) and _follows(modules[: stop + 2]):
                stop += 2
        steps.append(_Run(modules[:stop], drawn) if _is_fusable(modules[0]) else modules[0])
        modules = modules[stop:]
    return steps


def _follows(modules: Sequence[Any]) -> bool:
    """Whether the last two modules, an activation and a layer, belong to the run of those before."""
    *_, last, activation, layer = modules
    if _function(activation) is None or not _is_fusable(layer) or layer in modules[:-1]:
        return False
    return last.out_features == layer.in_features and last.batch_shape == layer.batch_shape


def _function(module: nn.Module) -> Activation | None:
    """The function without parameters that a module applies; None if it is something else."""
    if has_hooks(module) or (isinstance(module, nn.GELU) and module.approximate != "none"):
        return None
    if type(module) is Elementwise:
        return module.function if module.function in _ELEMENTWISE else None
    return _FUNCTIONS.get(type(module))


def _is_fusable(layer: Any) -> bool:
    """Whether a call of the layer is the paper's sampler, marginal rows and diagonal covariances, and nothing else."""
    return (
        _is_own(layer, "forward")
        and layer.is_diagonal
        and layer.sampling == "marginal"
        and layer.drawn is None
        and layer.row.log_scale.dtype not in NARROW
        and not has_hooks(layer)
    )


def _is_own(module: Any, method: str, kind: type[nn.Module] = MatrixGaussianLinear) -> bool:
    """Whether a module is of this kind, and neither a derived class nor a user has replaced the method."""
    kept = getattr(type(module), method) is getattr(kind, method) and method not in module.__dict__
    return isinstance(module, kind) and kept


class _Fused:
    """The ``forward`` of a module that holds runs, in the thread that made it."""

    def __init__(self, module: nn.Module, steps: Sequence[Any]) -> None:
        self._module, self._steps, self._thread = module, steps, threading.get_ident()

    def __call__(self, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if arguments or options or threading.get_ident() != self._thread:
            return type(self._module).forward(self._module, x, *arguments, **options)
        for step in self._steps:
            x = step(x)
        return x


class _Run:
    """Layers with an activation between them."""

    def __init__(self, modules: Sequence[Any], drawn: list[DrawnRun]) -> None:
        self._modules, self._drawn = modules, drawn
        self._layers: list[MatrixGaussianLinear] = list(modules[::2])
        self._activations: list[Any] = [_function(module) for module in modules[1::2]]
        # the paper's divergence is part of the call, where no derived class has another
        self._with_kl = all(_is_own(layer, "kl_divergence") and layer.uses_marginal_kl for layer in self._layers)

    def __call__(self, x: Tensor) -> Tensor:
        first = self._layers[0]
        if x.dim() not in (2, len(first.batch_shape) + 2) or not torch.is_grad_enabled():
            return self._one_by_one(x)
        rows = first.as_rows(x)
        rows = rows.expand(*first.batch_shape, *rows.shape[-2:])
        if not kernels_serve(rows, first.row.log_scale):
            return self._one_by_one(x)
        with no_autocast(rows):
            draws = [_prepare(layer, rows, with_kl=self._with_kl) for layer in self._layers]
            out, kl = sample_stack(rows, draws, self._activations, check_finite=not x.requires_grad)
        if kl is not None:
            self._drawn.append(DrawnRun(self._layers, kl))
        return out

    def _one_by_one(self, x: Tensor) -> Tensor:
        for module in self._modules:
            x = type(module).forward(module, x)  # none has hooks, and a layer's own ``forward`` may be this run's
        return x
