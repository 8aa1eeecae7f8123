"""Draws of diagonal layers one after the other, an activation between them, as one node of autograd's graph.

One node for all layers saves a small network most of what autograd and Python cost. Where it takes the layers'
divergence along, each parameter has one gradient, instead of one from the draw and one from the divergence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.fused.divergence import DiagonalKL
from vmg.fused.passes import LayerPass, make_plan

__all__ = ["Activation", "DiagonalDraw", "kernels_serve", "sample_stack"]

Activation = Callable[[Tensor], Tensor]


class DiagonalDraw(NamedTuple):
    """The tensors and numbers that one draw of a layer depends on, but for its inputs."""

    parameters: tuple[Any, ...]  # M, log σ_r, log σ_c, points and the two logarithms of √α; None where there is none
    noises: tuple[Any, Any]  # of the points, or None, and of the outputs
    damping: float
    plain: Callable[..., Tensor]  # the same draw in PyTorch, of x, parameters, noises and damping
    kl: DiagonalKL | None = None  # the layer's divergence, where it is wanted too

    def in_pytorch(self, x: Tensor) -> Tensor:
        """The draw without kernels, which can be differentiated any number of times."""
        return self.plain(x, self.parameters, self.noises, self.damping)


def kernels_serve(*tensors: Tensor | None) -> bool:
    """Whether the kernels can take these tensors.

    They keep memory out of sight of hooks on saved tensors, such as those of activation checkpointing, so they stand
    aside for them. PyTorch says that such hooks are in use by refusing to switch them off.
    """
    if library.native(*tensors) is None:
        return False
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("hooks on saved tensors are in use"):
            return True
    except RuntimeError:
        return False


def sample_stack(
    x: Tensor, draws: Sequence[DiagonalDraw], activations: Sequence[Activation] = (), *, check_finite: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The outputs of the last layer, and the sum of the divergences [*batch_shape] or None where some layer has none.

    An activation, which must have no parameters, follows each layer but the last. The kernels must serve
    (:func:`kernels_serve`).
    """
    parameters = [t for draw in draws for t in draw.parameters]
    out, *kl = _Stack.apply(_Passes(draws, activations, x.shape), check_finite, x, *parameters)
    return out, kl[0] if kl else None


class _Passes:
    """The passes of all layers; it holds what the backward pass needs, but for the parameters."""

    def __init__(self, draws: Sequence[DiagonalDraw], activations: Sequence[Activation], shape: Sequence[int]) -> None:
        self.draws, self.activations, self.passes = draws, activations, []
        self.outputs: list[Tensor] = []  # of all layers but the last: after the activation if that is ReLU, else before
        self.with_kl = all(draw.kl is not None for draw in draws)
        for draw in draws:
            M, log_row, log_column, points, log_noise, log_point_noise = draw.parameters
            if (M is None and points is None) or (log_noise is None) != (draw.noises[0] is None):
                raise ValueError("M or points must be given, and log_noise and point_noise together")
            R, C = log_row.shape[-1], log_column.shape[-1]
            P = 0 if points is None else points.shape[-2]
            plan = make_plan(tuple(log_row.shape[:-1]), *shape[-2:], R, C, P, log_point_noise is not None)
            self.passes.append(LayerPass(plan, draw.noises, draw.damping))
            shape = plan.shapes[-1]

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        finite = True
        for k, (draw, one) in enumerate(zip(self.draws, self.passes, strict=True)):
            x, own = one.forward(x, draw.parameters)
            finite = finite and own
            if k < len(self.activations):
                activation = self.activations[k]
                self.outputs.append(x)
                x = x.clamp_min_(0) if activation is torch.relu else activation(x)
        return x, finite

    def divergence(self) -> Tensor:
        """The divergences of all layers, summed."""
        own = [(draw.kl, draw.parameters) for draw in self.draws if draw.kl is not None]
        return functools.reduce(
            Tensor.add_, (kl.value(library.kernels(given[1].dtype), _of_kl(given)) for kl, given in own)
        )

    def backward(
        self, parameters: Sequence[Sequence[Tensor | None]], g: Tensor | None, g_kl: Tensor | None, *, needs_x: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients by x and by the parameters of all layers."""
        by_layer: list[list[Tensor | None]] = [[] for _ in self.draws]
        for k in reversed(range(len(self.draws))):
            own, kl = parameters[k], self.draws[k].kl
            if g is None:
                by_layer[k] = [None if t is None or g_kl is None else torch.zeros_like(t) for t in own]
            else:
                g, *by_layer[k] = self.passes[k].backward(own, g, needs_x=needs_x or k > 0)
                if k:
                    assert g is not None
                    g = self._before_activation(k - 1, g)
            if kl is not None and g_kl is not None:
                kl.add_gradients(_of_kl(own), g_kl, _of_kl(by_layer[k]))
        return g, [t for layer in by_layer for t in layer]

    def _before_activation(self, k: int, g: Tensor) -> Tensor:
        """The gradient by the outputs of layer k, from that after its activation."""
        out, activation = self.outputs[k], self.activations[k]
        if activation is torch.relu:
            return torch.ops.aten.threshold_backward(g, out, 0, grad_input=g)  # g is the pass's own
        with torch.enable_grad():
            leaf = out.detach().requires_grad_()
            return torch.autograd.grad(activation(leaf), leaf, g)[0]


def _of_kl(parameters: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The tensors that a layer's divergence depends on: all parameters but the points."""
    M, log_row, log_column, _, log_noise, log_point_noise = parameters
    return [M, log_row, log_column, log_noise, log_point_noise]


class _Stack(Function):
    """The layers' passes on the kernels, forwards and then backwards."""

    @staticmethod
    def forward(ctx: Any, run: _Passes, check_finite: bool, x: Tensor, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        out, finite = run.forward(x)
        if check_finite and not finite and not torch.isfinite(x).all():
            raise ValueError("x must be finite; got NaN or infinite values")
        ctx.run = run
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *tensors)  # so that changes of them in place are noticed
        return (out, run.divergence()) if run.with_kl else (out,)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_kl: Tensor | None = None) -> tuple[Tensor | None, ...]:
        run, (x, *tensors) = ctx.run, ctx.saved_tensors
        n = len(tensors) // len(run.draws)
        parameters = [tensors[n * k : n * (k + 1)] for k in range(len(run.draws))]
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            return _by_autograd(run, x, parameters, ctx.needs_input_grad, g, g_kl)
        needs_x = ctx.needs_input_grad[2]
        g_x, gradients = run.backward(parameters, g, g_kl, needs_x=needs_x)
        return None, None, g_x if needs_x else None, *gradients


def _by_autograd(
    run: _Passes, x: Tensor, parameters: Sequence[Any], needed: Sequence[bool], g: Tensor | None, g_kl: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients in PyTorch, which can be differentiated again."""
    tensors = [x, *(t for own in parameters for t in own)]
    wanted = [t for t, need in zip(tensors, needed[2:], strict=True) if need]
    draws = [draw._replace(parameters=tuple(own)) for draw, own in zip(run.draws, parameters, strict=True)]
    terms = []
    if g is not None:
        out = draws[0].in_pytorch(x)
        for draw, activation in zip(draws[1:], run.activations, strict=True):
            out = draw.in_pytorch(activation(out))
        terms.append((out, g))
    for draw in draws:
        if draw.kl is not None and g_kl is not None:
            terms.append((draw.kl.plain(*_of_kl(draw.parameters)), g_kl))
    outputs, slopes = zip(*terms, strict=True)
    gradients = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, materialize_grads=True))
    return tuple(next(gradients) if need else None for need in needed)
