"""Diagonal layers drawn from one after the other, by one operation for all of them where that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vmg.fused import library, operators
from vmg.fused.bound_layer import Activation
from vmg.fused.stack import sample_bound, sample_stack
from vmg.math.linalg import NARROW, PLAIN, is_traced
from vmg.nn.bayesian import no_autocast
from vmg.nn.bound_layers import BoundLayers, may_bind
from vmg.nn.kept_divergences import KeptDivergence, kept_divergences

if TYPE_CHECKING:
    from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["draw_layers", "may_stack"]

KEPT = 4  # bound stacks that wait for their next use: a graph may outlive its step, and batches have two sizes or so


def may_stack(layers: Sequence[Any], x: Tensor) -> bool:
    """Whether one operation may take the place of calling all these layers at x.

    It draws the same numbers. It is no call of each layer, so hooks would not run; and it is for training.
    """
    if not torch.is_grad_enabled() or is_traced(x):
        return False
    if not all(getattr(layer, "draws_diagonally", False) and not _has_hooks(layer) for layer in layers):
        return False
    first = layers[0]
    if any(a.out_features != b.in_features or a.batch_shape != b.batch_shape for a, b in pairwise(layers)):
        return False
    return x.dim() in (2, len(first.batch_shape) + 2) and first.row.log_scale.dtype not in NARROW


def _has_hooks(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return any(hooks)


def draw_layers(
    layers: Sequence[MatrixGaussianLinear],
    x: Tensor,
    activation: Activation | None = None,
    network: nn.Module | None = None,
) -> Tensor:
    """Outputs of the last layer, ``activation`` between the layers; inside ``keep_divergences`` their KL is kept.

    ``network`` holds these Bayesian layers and no others.
    """
    trains = torch.is_grad_enabled() and not is_traced(x)
    kept, check_finite = kept_divergences() if trains else None, not x.requires_grad
    with_kl = kept is not None and (len(layers) == 1 or all(layer.has_own_divergence for layer in layers))
    with no_autocast(x):
        lent = _lend(layers, x, activation) if trains else None
        if lent is not None:
            lent.bound.refill(layers)
            out, kl = sample_bound(lent.bound.stack, x, check_finite=check_finite, with_kl=with_kl, holder=lent)
        else:
            draws = [layer.prepare_draw(x.shape[:-1], None, with_kl=with_kl) for layer in layers]
            if torch.compiler.is_dynamo_compiling() and x.is_cpu:  # one node for each layer, which runs the kernels
                for k, one in enumerate(draws):
                    x = x if k == 0 or activation is None else activation(x)
                    x = operators.sample_diagonal(x, *one.parameters, *one.noises, one.input_scale, one.damping)
                return x
            out, kl = sample_stack(x, draws, activation, check_finite=check_finite)
    if kept is not None and kl is not None:
        kept.update(dict.fromkeys(layers if network is None else (*layers, network), KeptDivergence(layers, kl)))
    return out


_Free = list[BoundLayers]
_FREE: WeakKeyDictionary[nn.Module, _Free] = WeakKeyDictionary()  # by the first layer, which may be copied and saved


class _Loan:
    """Layers in use by a node of a graph. As soon as this object is gone, they can be lent again."""

    def __init__(self, bound: BoundLayers, free: _Free) -> None:
        self.bound, self._free = bound, free

    def __del__(self) -> None:
        self._free.append(self.bound)
        del self._free[:-KEPT]


def _lend(layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None) -> _Loan | None:
    """Layers bound to memory that no graph uses; None where they cannot be bound, or would not stay as they are."""
    if type(x) not in PLAIN or not x.is_cpu or not x.is_contiguous() or library.kernels(x.dtype) is None:
        return None
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is not None and hooks(True) is not None:
        return None  # hooks on what a graph saves, such as those of activation checkpointing, are there to free memory
    free = _FREE.get(layers[0])
    if free is None:
        free = _FREE[layers[0]] = []
    for bound in reversed(free.copy()):
        if bound.serves(layers, x, activation):  # which no entry does for two threads
            free.remove(bound)
            return _Loan(bound, free)
    if not all(may_bind(layer, x) for layer in layers):
        return None
    bound = BoundLayers(layers, x, activation)
    return _Loan(bound, free) if bound.serves(layers, x, activation) else None  # not if made from other parameters
