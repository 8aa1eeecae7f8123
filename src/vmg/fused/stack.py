"""Draws of diagonal layers one after the other, an activation between them, as one node of autograd's graph.

The passes are those of a :class:`~vmg.fused.bound_stack.BoundStack`. One node for all of them saves a small
network most of what autograd and Python cost, and makes one gradient for each parameter, instead of one from the draw
and one from the divergence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.fused.bound_layer import Activation, Draw, Kept
from vmg.fused.bound_stack import BoundStack
from vmg.fused.diagonal_draw import draw
from vmg.fused.layer_passes import fits
from vmg.fused.pass_memory import make_plan
from vmg.math.linalg import PLAIN, is_traced, values_readable
from vmg.math.preactivations import DAMPING

__all__ = ["sample_bound", "sample_diagonal", "sample_stack"]

N_PARAMETERS = 6  # of a layer


def sample_diagonal(
    x: Tensor,
    M: Tensor | None,
    log_row_scale: Tensor,
    log_column_scale: Tensor,
    points: Tensor | None,
    log_noise: Tensor | None = None,
    log_point_noise: Tensor | None = None,
    point_noise: Tensor | None = None,
    *,
    noise: Tensor,
    input_scale: float,
    damping: float = DAMPING,
    check_finite: bool = False,
) -> Tensor:
    """Draw each row, from the layer's raw quantities: augmentation, scaling and the noise of pseudo-data are inside.

    Args:
        x: inputs [..., B, R], or [..., B, R−1] to have a one appended.
        M: mean [..., R, C], or None for the zero-mean layer.
        log_row_scale, log_column_scale: log σ_r [..., R] and log σ_c [..., C].
        points: mean pseudo-inputs and pseudo-outputs side by side [..., P, R+C], or None.
        log_noise: log √α of pseudo-inputs and pseudo-outputs [..., 2]; or the dimensions' factors [..., R+C], if
            ``log_point_noise`` has the points' factors [..., P].
        point_noise: standard normal [..., P, R+C], or None to take the points as they are.
        noise: standard normal [..., B, C].
        input_scale: factor of [x, 1] and of the pseudo-inputs, 1/√R in a network [LW16, §4].
        damping: σ² of Σ₁₁.
        check_finite: refuse NaN and infinity in x, at no cost where there are none.

    All leading dimensions must be equal; nothing is broadcast.
    """
    if M is None and points is None:
        raise ValueError("M and points must not both be None: nothing would carry the mean")
    if (log_noise is None) != (point_noise is None) or (log_noise is None and log_point_noise is not None):
        raise ValueError("log_noise and point_noise must be given together, log_point_noise with them only")
    R = log_row_scale.shape[-1]
    if R - x.shape[-1] not in (0, 1):
        raise ValueError(f"x must have {R - 1} or {R} columns; got {x.shape[-1]}")
    plan = None
    if not is_traced(x, log_row_scale):
        sizes = log_column_scale.shape[-1], 0 if points is None else points.shape[-2], log_point_noise is not None
        plan = make_plan(log_row_scale.shape[:-1], *x.shape[-2:], R, *sizes)
    parameters = (M, log_row_scale, log_column_scale, points, log_noise, log_point_noise)
    one = Draw(plan, parameters, (point_noise, noise), input_scale, damping)
    return sample_stack(x, [one], check_finite=check_finite)[0]


def sample_stack(
    x: Tensor, draws: Sequence[Draw], activation: Activation | None = None, *, check_finite: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The outputs of the last layer, drawn as :func:`sample_diagonal` does, and the divergence of all, [*batch_shape].

    The divergence is None where a layer has none, or where there are no kernels for the tensors. ``activation`` must
    have no parameters.
    """
    ready = _is_ready(x, draws)
    if not ready and (draws[0].plan is None or not _has_kernels(x, draws)):
        _require_shapes(x, draws)
        if check_finite and values_readable(x):
            _require_finite(x)
        return _chain(x, draws, activation), None
    return sample_bound(BoundStack(draws, x, activation, checked=ready), x, check_finite=check_finite)


def _is_ready(x: Tensor, draws: Sequence[Draw]) -> bool:
    """Whether the kernels can take all tensors as they are."""
    plan, dtype = draws[0].plan, x.dtype
    if plan is None or type(x) not in PLAIN or library.kernels(dtype) is None:
        return False
    if not (x.is_cpu and x.is_contiguous() and x.shape == plan.shapes[0]):
        return False
    return all(one.plan is not None and fits(one.plan, (*one.parameters, *one.noises), dtype) for one in draws)


def _has_kernels(x: Tensor, draws: Sequence[Draw]) -> bool:
    return library.native(x, *[t for one in draws for t in (*one.parameters, *one.noises)]) is not None


def _chain(x: Tensor, draws: Sequence[Draw], activation: Activation | None) -> Tensor:
    """The same in PyTorch."""
    for k, one in enumerate(draws):
        x = x if k == 0 or activation is None else activation(x)
        x = draw(one.inputs(x), one.input_scale, one.damping)
    return x


def _require_shapes(x: Tensor, draws: Sequence[Draw]) -> None:
    for k, one in enumerate(draws):
        inputs = one.inputs(x)
        shapes = () if one.plan is None else one.plan.shapes
        for name, tensor, shape in zip(inputs._fields, (None if k else x, *inputs[1:]), shapes, strict=False):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}")


def _require_finite(x: Tensor) -> None:
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite; got NaN or infinite values")


def sample_bound(
    stack: BoundStack, x: Tensor, *, check_finite: bool = False, with_kl: bool = True, holder: object = None
) -> tuple[Tensor, Tensor | None]:
    """A draw at x as one node of autograd's graph, and the divergence of all layers, None where one has none.

    With a ``holder`` the node keeps it and the stack, for its backward pass: until the node is gone, and the holder
    with it, no other pass may run. Without one the graph saves tensors, as hooks on what it saves suppose.
    """
    options = stack, check_finite, with_kl and stack.has_divergence, holder
    out, *kl = _Stack.apply(options, x, *stack.parameters, *stack.of_priors)
    return out, kl[0] if kl else None


class _Stack(Function):
    """The layers' passes on the kernels, forwards and then backwards."""

    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        stack, check_finite, with_kl, ctx.holder = options
        if not stack.forward(x) and check_finite:
            _require_finite(x)
        out, kl = stack.layers[-1].out, [stack.divergence()] if with_kl else []
        ctx.set_materialize_grads(False)
        if ctx.holder is not None:
            ctx.stack = stack
            ctx.save_for_backward(x, *stack.parameters)  # so that changes of them in place are noticed
            return out.clone(), *kl
        # the same tensors with a divergence as without: checkpointing draws again without it and compares them
        draws = stack.draws
        ctx.stack = [one._replace(parameters=(), noises=()) for one in draws], stack.activation, stack.checked
        noises = [noise for one in draws for noise in one.noises]
        kept = [t for layer in stack.layers for t in layer.kept()]
        ctx.save_for_backward(x, *stack.parameters, *noises, *kept[:-1])
        return out, *kl

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_kl: Tensor | None = None) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors  # once: checkpointing forgets them as they are read
        stack = _restored(ctx.stack, x, saved) if ctx.holder is None else ctx.stack.at(saved, x)
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            return _by_autograd(stack, x, ctx.needs_input_grad, g, g_kl)
        g_x = None
        if g is None:
            gradients, by_prior = _gradients_of_divergence(stack, g_kl)
        else:
            gradients = stack.empty_gradients()
            g_x = torch.empty(x.shape, dtype=x.dtype) if ctx.needs_input_grad[1] else None  # without x's gaps
            g, g_kl = g.contiguous(), None if g_kl is None else g_kl.contiguous()
            fit = stack.checked and g.shape == stack.draws[-1].noises[1].shape and g.dtype is x.dtype
            by_prior = stack.bind_gradients(g, gradients, g_x, g_kl, checked=fit)()
        of_priors: list[Tensor | None] = []
        for one, found in zip(stack.draws, by_prior, strict=True):
            if one.kl is not None:
                of_priors += [None] * len(one.kl.parameters) if g_kl is None else found
        return None, g_x, *[t for own in gradients for t in own], *of_priors


def _restored(recipe: tuple[Any, ...], x: Tensor, saved: list[Tensor]) -> BoundStack:
    """The stack of a forward pass, from what the graph has saved of it."""
    draws, activation, checked = recipe
    n, found = len(draws), iter(saved)
    parameters = [tuple(next(found) for _ in range(N_PARAMETERS)) for _ in range(n)]
    noises = [(next(found), next(found)) for _ in range(n)]
    kept = [Kept(next(found), next(found, None)) for _ in range(n)]  # the last layer's outputs are not needed again
    draws = [one._replace(parameters=p, noises=e) for one, p, e in zip(draws, parameters, noises, strict=True)]
    return BoundStack(draws, x, activation, kept, checked=checked)


def _gradients_of_divergence(
    stack: BoundStack, g_kl: Tensor | None
) -> tuple[list[list[Tensor | None]], list[list[Tensor]]]:
    """Gradients by parameters and by those of priors, where the outputs have none."""
    gradients, by_prior = [], []
    for layer in stack.layers:
        own, of_prior = layer.differentiate_divergence(g_kl)
        gradients.append(own)
        by_prior.append(of_prior)
    return gradients, by_prior


def _by_autograd(
    stack: BoundStack, x: Tensor, needed: Sequence[bool], g: Tensor | None, g_kl: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients in PyTorch, which can be differentiated again; the graph may outlive the stack and its noise."""
    draws = []
    for one in stack.draws:
        of_points, noise = one.noises
        draws.append(one._replace(noises=(None if of_points is None else of_points.clone(), noise.clone())))
    wanted = [t for t, need in zip((x, *stack.parameters, *stack.of_priors), needed[1:], strict=True) if need]
    found = [] if g is None else [(_chain(x, draws, stack.activation), g)]
    for one in draws:
        if one.kl is not None and g_kl is not None:
            M, log_row, log_column, _, *log_noises = one.parameters
            found.append((one.kl.plain(M, log_row, log_column, *log_noises), g_kl))
    outputs, slopes = zip(*found, strict=True)
    each = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, materialize_grads=True))
    return tuple(next(each) if need else None for need in needed)
