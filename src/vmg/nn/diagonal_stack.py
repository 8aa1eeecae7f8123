"""Diagonal layers drawn from one after the other, by one operation for all of them where that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vmg.fused import operators
from vmg.fused.pass_memory import MemoryPool
from vmg.fused.stack import Activation, sample_stack
from vmg.math.linalg import NARROW, is_recorded
from vmg.nn.bayesian import no_autocast
from vmg.nn.kept_divergences import kept_divergences

if TYPE_CHECKING:
    from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["draw_layers", "may_stack"]

_POOLS: WeakKeyDictionary[nn.Module, MemoryPool] = WeakKeyDictionary()  # apart from layers, which are copied and saved


def may_stack(layers: Sequence[Any], x: Tensor) -> bool:
    """Whether one operation may take the place of calling all these layers at x.

    It draws the same numbers. It is no call of each layer, so hooks would not run; and it is for training.
    """
    if not torch.is_grad_enabled() or is_recorded(x):
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


def draw_layers(layers: Sequence[MatrixGaussianLinear], x: Tensor, activation: Activation | None = None) -> Tensor:
    """Outputs of the last layer, ``activation`` between the layers; inside ``keep_divergences`` their KL is kept."""
    trains = torch.is_grad_enabled() and not is_recorded(x)
    kept = kept_divergences() if trains else None
    draws = []
    for layer in layers:
        pool = _POOLS.get(layer) if trains else None
        if trains and pool is None:
            pool = _POOLS[layer] = MemoryPool()
        draws.append(layer.prepare_draw(x.shape[:-1], pool, with_kl=kept is not None))
    with no_autocast(x):
        if not (torch.compiler.is_dynamo_compiling() and x.is_cpu):
            out, kls = sample_stack(x, draws, activation, check_finite=not x.requires_grad)
            if kept is not None:
                kept.update((layer, kl) for layer, kl in zip(layers, kls, strict=True) if kl is not None)
            return out
        for k, one in enumerate(draws):  # one node for each layer, which runs the kernels
            x = x if k == 0 or activation is None else activation(x)
            x = operators.sample_diagonal(x, *one.tensors, one.input_scale, one.damping)
        return x
