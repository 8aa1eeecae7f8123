"""Divergences that layers take together with a draw, kept for the objective of the same draw.

A layer that draws and takes its divergence in one operation has one gradient for each parameter, instead of two that
are added. The objective alone says when that is wanted: it draws and then asks for the divergence inside
:func:`keep_divergences`. Outside of it a layer keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["KeptDivergence", "keep_divergences", "kept_divergences"]


class KeptDivergence(NamedTuple):
    """The divergence of layers that were drawn from together."""

    layers: Sequence[nn.Module]
    kl: Tensor


_Kept = dict[nn.Module, KeptDivergence]  # by each of the layers, and by a network that holds no others
_kept: ContextVar[_Kept | None] = ContextVar("_kept", default=None)


@contextmanager
def keep_divergences() -> Iterator[None]:
    """Let layers inside keep the divergence of their last draw, which ``kl_divergence()`` then gives back.

    The parameters must stay as they are inside.
    """
    if torch.compiler.is_compiling():  # a recorded program takes draw and divergence apart
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def kept_divergences() -> _Kept | None:
    """What is kept now, by layer; None where nothing is to be kept.

    A draw without a graph keeps nothing: reentrant checkpointing makes one first and another, with a graph, later.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return _kept.get()
