"""Numbers that shape a module's objective and are not trained, kept in its ``state_dict``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["KeepsSettings"]

SAME = 1e-6  # relative; a number that went through single precision is the same number
_KEY = "_extra_state"  # PyTorch's name for what get_extra_state gives


class KeepsSettings(nn.Module):
    """A module whose ``state_dict`` has the numbers named in ``SETTINGS``: a loaded copy has the same objective.

    They stay Python numbers: no cast of the module rounds them and no ``to_empty`` forgets them. A state that was
    written without them loads too and leaves them as they are.
    """

    SETTINGS: tuple[str, ...] = ()

    def get_extra_state(self) -> Tensor:
        """The settings in order, flat, in double precision."""
        values = [torch.as_tensor(getattr(self, name), dtype=torch.float64).reshape(-1) for name in self.SETTINGS]
        return torch.cat(values).cpu()

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what :meth:`get_extra_state` gave."""
        parts = state.double().cpu()
        present = [getattr(self, name) for name in self.SETTINGS]
        sizes = [value.numel() if isinstance(value, Tensor) else 1 for value in present]
        if len(sizes) == 1 and (parts == parts[0]).all():  # one number for all replicas, or the same for each
            parts = parts[:1].expand(sizes)
        if parts.numel() != sum(sizes):
            raise ValueError(f"the state of {self.SETTINGS} must hold {sum(sizes)} numbers; got {len(parts)}")
        for name, value, own in zip(self.SETTINGS, present, parts.split(sizes), strict=True):
            if isinstance(value, Tensor):
                setattr(self, name, own.to(value).reshape(value.shape))
            elif not math.isclose(own.item(), value, rel_tol=SAME):
                setattr(self, name, own.item())

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        missing = arguments[2]  # of the keys that are not there; written before settings were kept
        if prefix + _KEY in missing:
            missing.remove(prefix + _KEY)
