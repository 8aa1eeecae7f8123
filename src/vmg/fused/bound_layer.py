"""A diagonal layer bound to memory: its draw, its divergence and the gradients of both.

A small network spends more time in finding tensors, checking them and making new ones than in computing. Here that is
done once; then only the kernels run, as often as parameters and noise have changed at their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.fused import library
from vmg.fused.diagonal_draw import needs_double
from vmg.fused.diagonal_kl import DiagonalKL
from vmg.fused.layer_passes import Backward, Forward, Inputs, bind_operands, is_shared
from vmg.fused.pass_memory import PassMemory, Plan

__all__ = ["Activation", "BoundLayer", "Draw", "Kept"]

Activation = Callable[[Tensor], Tensor]


class Draw(NamedTuple):
    """What one layer draws from."""

    plan: Plan | None  # None where sizes are symbols
    parameters: tuple[Any, ...]  # M, log σ_r, log σ_c, points and the two logarithms of √α, as in Inputs
    noises: tuple[Any, Any]  # of the points and of the outputs
    input_scale: float
    damping: float
    kl: DiagonalKL | None = None  # what the divergence is, where it is wanted too

    def inputs(self, x: Tensor) -> Inputs:
        """All tensors that the draw at x depends on."""
        return Inputs._make((x, *self.parameters, *self.noises))


class Kept(NamedTuple):
    """What the backward pass of a layer needs of the forward pass."""

    workspace: Tensor
    out: Tensor | None  # [..., B, C], after the activation if that is ReLU, else before it; None of the last layer


class BoundLayer:
    """A layer and the activation after it. :meth:`forward` rewrites ``out`` and ``activated``.

    Args:
        draw: has a plan. Its tensors are read where they are now, at each pass.
        x: rows of the kind that passes will see.
        activation: without parameters; None after the last layer.
        kept: from the forward pass of another bound layer of the same ``draw``, to go backwards only.
        checked: all tensors are known to fit (:func:`vmg.fused.layer_passes.fits`). Otherwise those with gaps are
            copied now, and the layer serves for one pass forwards and backwards.
    """

    def __init__(
        self,
        draw: Draw,
        x: Tensor,
        activation: Activation | None = None,
        kept: Kept | None = None,
        *,
        checked: bool = False,
    ) -> None:
        assert draw.plan is not None
        self._draw, self._inputs, plan = draw, draw.inputs(x), draw.plan
        dtype = self._inputs.noise.dtype
        self._exact = needs_double(plan.sizes[5], plan.sizes[3], dtype)
        self._checked = checked and not self._exact
        used = self._used = self._inputs if self._checked else _used(self._inputs, self._exact)
        workspace = torch.empty(plan.total, dtype=used.noise.dtype) if kept is None else kept.workspace
        numbers = draw.input_scale, draw.damping
        memory = PassMemory(plan, workspace)
        self._operands = bind_operands(_kernels(used.noise.dtype), memory, used, *numbers, checked=self._checked)
        self._inputs = self._inputs._replace(x=torch.empty(0))  # the rows come with each pass, and are not held
        if self._checked:
            self._used, self._operands = self._inputs, self._operands._replace(inputs=self._inputs)
        out = None if kept is None else kept.out
        self.out = torch.empty(plan.shapes[-1], dtype=dtype) if out is None else out
        self._activation, self._in_place = activation, activation is None or activation is torch.relu
        self.activated = self.out if self._in_place else torch.empty_like(self.out)
        self._forward: Forward | None = None
        self._g: Tensor | None = None
        if draw.kl is not None and kept is None:
            draw.kl.bind(_kernels(dtype), _of_kl(self._inputs), checked=self._checked)

    def forward(self, x: Tensor) -> bool:
        """Draw at x; say whether all inputs were finite."""
        if self._exact:
            torch._foreach_copy_(*_pairs(self._used, (x, *self._inputs[1:])))
        if not self._checked:
            x = self._used.x
        if self._forward is None:
            self._forward = Forward(self._operands, None if self._exact else self.out)
        finite = self._forward.run(x)
        if self._exact:
            self.out.copy_(self._forward.out)
        if self._activation is torch.relu:
            self.out.clamp_min_(0)
        elif self._activation is not None:
            self.activated.copy_(self._activation(self.out))
        return finite

    def divergence(self) -> Tensor:
        """The divergence at the present parameters, [*batch_shape]; in other memory at each call."""
        assert self._draw.kl is not None
        return self._draw.kl.value()

    @property
    def g(self) -> Tensor:
        """Memory for the gradient by ``activated``."""
        if self._g is None:
            self._g = torch.empty_like(self.out)
        return self._g

    def bind_gradients(
        self, g: Tensor, gradients: Sequence[Tensor | None], g_kl: Tensor | None, *, checked: bool = False
    ) -> Callable[[], list[Tensor]]:
        """The backward pass, a function that rewrites ``gradients`` and gives those by the parameters of the prior.

        Args:
            g: gradient by ``activated``, where the pass finds it and, if there is an activation, overwrites it.
            gradients: memory for those by x (or None) and by the parameters, in their order.
            g_kl: gradient by the divergence, where it is wanted.
            checked: these are known to fit.
        """
        kl = self._draw.kl
        own_g, own = (g.double(), [_double(t) for t in gradients]) if self._exact else (g, gradients)
        fit = checked and self._checked
        passes = Backward(self._operands, own_g, own, checked=fit)
        add_kl = None
        if g_kl is not None and kl is not None:
            _, M, log_row, log_column, _, log_noise, log_point_noise = gradients
            to = (M, log_row, log_column, log_noise, log_point_noise)
            add_kl = kl.bind_gradients(_of_kl(self._inputs), g_kl, to, checked=fit)

        def run() -> list[Tensor]:
            if self._activation is not None:
                self._differentiate_activation(g)
            if self._exact:
                own_g.copy_(g)
            passes.run()
            if self._exact:
                torch._foreach_copy_(*_pairs(gradients, own))
            return [] if add_kl is None else add_kl()

        return run

    def differentiate_divergence(self, g_kl: Tensor | None) -> tuple[list[Tensor | None], list[Tensor]]:
        """Gradients of the divergence alone, by the parameters and by those of the prior."""
        kl, parameters = self._draw.kl, self._draw.parameters
        if kl is None or g_kl is None:
            return [None] * len(parameters), []
        gradients = [None if t is None else torch.zeros(t.shape, dtype=t.dtype) for t in parameters]
        to = [gradients[k] for k in (0, 1, 2, 4, 5)]
        return gradients, kl.add_gradients(_of_kl(self._inputs), g_kl, to)

    def _differentiate_activation(self, g: Tensor) -> None:
        """Replace the gradient after the activation by that before it."""
        if self._in_place:
            torch.ops.aten.threshold_backward.grad_input(g, self.out, 0, grad_input=g)
            return
        assert self._activation is not None
        with torch.enable_grad():
            leaf = self.out.detach().requires_grad_()
            g.copy_(torch.autograd.grad(self._activation(leaf), leaf, g)[0])

    def kept(self) -> Kept:
        """What another layer needs for the backward pass in this one's stead."""
        return Kept(self._operands.memory.workspace, self.out)


def _kernels(dtype: torch.dtype) -> SimpleNamespace:
    found = library.kernels(dtype)
    assert found is not None
    return found


def _of_kl(inputs: Inputs) -> tuple[Tensor | None, ...]:
    """The tensors that a layer's divergence depends on."""
    return (*inputs[1:4], inputs.log_noise, inputs.log_point_noise)


def _used(inputs: Inputs, exact: bool) -> Inputs:
    """Inputs as the kernels take them: contiguous, but for one matrix x that is expanded over all replicas."""
    if exact:
        inputs = Inputs._make([_double(t) for t in inputs])
    x = inputs.x if is_shared(inputs.x) else inputs.x.contiguous()
    return Inputs._make([x, *library.packed(inputs[1:])])


def _double(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.double()


def _pairs(to: Sequence[Tensor | None], source: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """What there is of two lists of tensors; where one has None, the other has too."""
    return [t for t in to if t is not None], [t for t in source if t is not None]
