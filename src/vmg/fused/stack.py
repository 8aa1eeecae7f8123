"""Draws of diagonal layers one after the other, an activation between them, as one node of autograd's graph.

Each layer's passes are those of :mod:`vmg.fused.layer_passes`, its divergence is that of
:mod:`vmg.fused.diagonal_kl`. One node for all of them saves a small network most of what autograd and Python cost, and
makes one gradient for each parameter, instead of one from the draw and one from the divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.fused.diagonal_draw import draw, needs_double
from vmg.fused.diagonal_kl import DiagonalKL
from vmg.fused.layer_passes import Backward, Forward, Inputs, fits, is_shared
from vmg.fused.pass_memory import Loan, PassMemory, Plan, make_plan
from vmg.math.linalg import PLAIN, is_recorded, may_look
from vmg.math.preactivations import DAMPING

__all__ = ["Draw", "sample_diagonal", "sample_stack"]

N_OWN = 8  # tensors of a layer: all of Inputs but x
Activation = Callable[[Tensor], Tensor]


class Draw(NamedTuple):
    """One layer of a stack."""

    plan: Plan | None  # None where sizes are symbols
    tensors: tuple[Any, ...]  # all of Inputs but x
    input_scale: float
    damping: float
    kl: DiagonalKL | None = None  # what the divergence is, where it is wanted too
    loan: Loan | None = None  # memory that the layer uses from step to step, in which its noise lies too


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
    own = (M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, point_noise, noise)
    plan = None
    if not is_recorded(x, log_row_scale):
        sizes = log_column_scale.shape[-1], 0 if points is None else points.shape[-2], log_point_noise is not None
        plan = make_plan(log_row_scale.shape[:-1], *x.shape[-2:], R, *sizes)
    return sample_stack(x, [Draw(plan, own, input_scale, damping)], check_finite=check_finite)[0]


def sample_stack(
    x: Tensor, draws: Sequence[Draw], activation: Activation | None = None, *, check_finite: bool = False
) -> tuple[Tensor, Sequence[Tensor | None]]:
    """The outputs of the last layer, drawn as :func:`sample_diagonal` does, and each layer's divergence [*batch_shape].

    A divergence is None where it is not wanted, or where there are no kernels for the tensors. ``activation`` must
    have no parameters.
    """
    tensors = [t for one in draws for t in one.tensors]
    ready = _is_ready(x, draws)
    if not ready and (draws[0].plan is None or library.native(x, *tensors) is None):
        _require_shapes(x, draws)
        if check_finite and may_look(x):
            _require_finite(x)
        return _chain(x, draws, activation), [None] * len(draws)
    of_priors = [p for one in draws if one.kl is not None for p in one.kl.parameters]
    bare = [one._replace(tensors=()) for one in draws]  # what a graph saves of tensors is for the graph to say
    out, *kls = _Stack.apply((bare, activation, check_finite, ready), x, *tensors, *of_priors)
    found = iter(kls)
    return out, [None if one.kl is None else next(found) for one in draws]


def _is_ready(x: Tensor, draws: Sequence[Draw]) -> bool:
    """Whether the kernels can take all tensors as they are."""
    plan, dtype = draws[0].plan, x.dtype
    if plan is None or type(x) not in PLAIN or library.kernels(dtype) is None:
        return False
    if not (x.is_cpu and x.is_contiguous() and x.shape == plan.shapes[0]):
        return False
    return all(one.plan is not None and fits(one.plan, one.tensors, dtype) for one in draws)


def _chain(x: Tensor, draws: Sequence[Draw], activation: Activation | None) -> Tensor:
    """The same in PyTorch. Its graph may outlive the loans, so it has the noise in memory of its own."""
    for k, one in enumerate(draws):
        if one.loan is not None:
            noises = [None if t is None else t.clone() for t in one.tensors[-2:]]
            one = one._replace(tensors=(*one.tensors[:-2], *noises))
        x = x if k == 0 or activation is None else activation(x)
        x = draw(Inputs(x, *one.tensors), one.input_scale, one.damping)
    return x


def _require_shapes(x: Tensor, draws: Sequence[Draw]) -> None:
    for k, one in enumerate(draws):
        shapes = () if one.plan is None else one.plan.shapes
        for name, tensor, shape in zip(Inputs._fields, (None if k else x, *one.tensors), shapes, strict=False):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}")


def _require_finite(x: Tensor) -> None:
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite; got NaN or infinite values")


class _Stack(Function):
    """The layers' passes on the kernels, forwards and then backwards."""

    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], x: Tensor, *tensors: Any) -> tuple[Tensor, ...]:
        draws, activation, check_finite, ready = options
        kept, kls, last = [], [], len(draws) - 1
        for k, one in enumerate(draws):
            inputs, plan, loan = Inputs(x, *tensors[k * N_OWN : (k + 1) * N_OWN]), one.plan, one.loan
            exact, own_dtype = _is_exact(plan, inputs.noise.dtype), inputs.noise.dtype
            used = inputs if ready and not exact else _used(inputs, exact)
            dtype = used.noise.dtype
            memory = PassMemory(plan, torch.empty(plan.total, dtype=dtype)) if loan is None else loan.passes
            place = None if loan is None or exact or k == last else loan.out
            numbers = one.input_scale, one.damping, place
            passes = Forward(_kernels(dtype), memory, used, *numbers, checked=used is inputs)
            if not passes.run() and check_finite and k == 0:
                _require_finite(x)
            out = passes.out.to(own_dtype) if exact else passes.out
            if one.kl is not None:
                kls.append(one.kl.bind(_kernels(own_dtype), _of_kl(inputs), checked=ready).value())
            kept += [x, memory.workspace]
            if k == last or activation is None:
                x = out
            elif activation is torch.relu:
                x = out.clamp_min_(0)
            else:
                x = activation(out)
                kept.append(out)
        # the same tensors with a divergence as without: checkpointing draws again without it and compares them
        ctx.save_for_backward(*tensors[: N_OWN * len(draws)], *kept)
        ctx.set_materialize_grads(False)
        ctx.options = options
        return x, *kls

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *g_kls: Tensor | None) -> tuple[Tensor | None, ...]:
        draws, activation, _, ready = ctx.options
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad  # once: checkpointing forgets them as they are read
        n_own = N_OWN * len(draws)
        own, kept = saved[:n_own], list(saved[n_own:])
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            return _by_autograd(draws, activation, kept[0], own, needed, g, g_kls)
        of_kl = list(g_kls)
        of_prior: list[Tensor | None] = []
        gradients: list[Tensor | None] = [None] * n_own
        activated = None
        for k in reversed(range(len(draws))):
            one = draws[k]
            if activated is not None and activation is not None:
                values = activated if activation is torch.relu else kept.pop()
                g = None if g is None else _activation_gradient(activation, values, g)
            workspace, x = kept.pop(), kept.pop()
            memory = PassMemory(one.plan, workspace) if one.loan is None else one.loan.passes
            inputs = Inputs(x, *own[k * N_OWN : (k + 1) * N_OWN])
            g_kl = None if one.kl is None else of_kl.pop()
            found = _layer_gradients(one, memory, inputs, g, g_kl, needs_x=k > 0 or needed[1], ready=ready)
            g, gradients[k * N_OWN : k * N_OWN + 6], by_prior = found
            of_prior[:0] = by_prior
            activated = x
        return None, g, *gradients, *of_prior


def _layer_gradients(
    one: Draw,
    memory: PassMemory,
    inputs: Inputs,
    g: Tensor | None,
    g_kl: Tensor | None,
    *,
    needs_x: bool,
    ready: bool,
) -> tuple[Tensor | None, Sequence[Tensor | None], Sequence[Tensor | None]]:
    """Gradients by a layer's input, by its first six own tensors, and by the parameters of its prior."""
    plan, exact = memory.plan, _is_exact(memory.plan, inputs.noise.dtype)
    gradients: list[Tensor | None]
    if g is None:
        gradients = [None, *[None if t is None else torch.zeros(t.shape, dtype=t.dtype) for t in inputs[1:7]]]
        gradients[4] = None  # the divergence does not depend on the points
    else:
        used = inputs if ready and not exact else _used(inputs, exact)
        gradients = [
            torch.empty(used.x.shape, dtype=used.x.dtype) if needs_x else None,  # contiguous, even if x is expanded
            *[None if tensor is None else torch.empty_like(tensor) for tensor in used[1:7]],
        ]
        g = g.contiguous() if g.dtype is used.x.dtype else g.to(used.x.dtype).contiguous()
        numbers = one.input_scale, one.damping, g, gradients
        fit = ready and g.shape == plan.shapes[-1]
        Backward(_kernels(g.dtype), memory, used, *numbers, checked=fit).run()
        if exact:
            gradients = [None if gradient is None else gradient.to(inputs.noise.dtype) for gradient in gradients]
    if one.kl is None:
        return gradients[0], gradients[1:], ()
    if g_kl is None:
        return gradients[0], gradients[1:], [None] * len(one.kl.parameters)
    by_prior = one.kl.add_gradients(_of_kl(inputs), g_kl, [gradients[k] for k in (1, 2, 3, 5, 6)])
    return gradients[0], gradients[1:], by_prior


def _activation_gradient(activation: Activation, values: Tensor, g: Tensor) -> Tensor:
    """Gradient before the activation, from that after it; ``values`` are those after ReLU, but those before others."""
    if activation is torch.relu:
        return torch.ops.aten.threshold_backward(g, values, 0)
    with torch.enable_grad():
        leaf = values.detach().requires_grad_()
        return torch.autograd.grad(activation(leaf), leaf, g)[0]


def _of_kl(inputs: Inputs) -> tuple[Tensor | None, ...]:
    """The tensors that a layer's divergence depends on."""
    return (*inputs[1:4], inputs.log_noise, inputs.log_point_noise)


def _by_autograd(
    draws: Sequence[Draw],
    activation: Activation | None,
    x: Tensor,
    own: Sequence[Any],
    needed: Sequence[bool],
    g: Tensor | None,
    g_kls: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The gradients in PyTorch, which can be differentiated again."""
    draws = [one._replace(tensors=tuple(own[k * N_OWN : (k + 1) * N_OWN])) for k, one in enumerate(draws)]
    charged = [one for one in draws if one.kl is not None]
    of_priors = [p for one in charged if one.kl is not None for p in one.kl.parameters]
    wanted = [t for t, need in zip((x, *own, *of_priors), needed[1:], strict=True) if need]
    found = [] if g is None else [(_chain(x, draws, activation), g)]
    for one, g_kl in zip(charged, g_kls, strict=True):
        if one.kl is not None and g_kl is not None:
            found.append((one.kl.plain(*_of_kl(Inputs(x, *one.tensors))), g_kl))
    outputs, slopes = zip(*found, strict=True)
    each = iter(torch.autograd.grad(outputs, wanted, slopes, create_graph=True, materialize_grads=True))
    return tuple(next(each) if need else None for need in needed)


def _kernels(dtype: torch.dtype) -> SimpleNamespace:
    found = library.kernels(dtype)
    assert found is not None
    return found


def _is_exact(plan: Plan, dtype: torch.dtype) -> bool:
    return needs_double(plan.sizes[5], plan.sizes[3], dtype)


def _used(inputs: Inputs, exact: bool) -> Inputs:
    """Inputs as the kernels take them: contiguous, but for one matrix x that is expanded over all replicas."""
    if exact:
        inputs = Inputs._make([None if t is None else t.double() for t in inputs])
    x = inputs.x if is_shared(inputs.x) else inputs.x.contiguous()
    return Inputs._make([x, *library.packed(inputs[1:])])
