"""Whether Python may look at the numbers in a tensor, or must write a program that never does.

While a program is recorded (``torch.compile``, ``torch.export``, ``torch.jit.trace``), inside a transform of
``torch.func`` and for fake tensors there are no numbers to look at. On a device other than the CPU there are, but the
host would wait for them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["is_recorded", "may_look"]

_PLAIN = (Tensor, nn.Parameter)  # anything else, such as a fake or distributed tensor, has ways of its own


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether operations on these tensors are recorded or transformed rather than run."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._get_tracing_state() is not None or torch._C._are_functorch_transforms_active():
        return True
    return any(tensor is not None and type(tensor) not in _PLAIN for tensor in tensors)


def may_look(*tensors: Tensor) -> bool:
    """Whether a branch may depend on the values of these tensors at no cost but reading them."""
    return all(tensor.is_cpu for tensor in tensors) and not is_recorded(*tensors)
