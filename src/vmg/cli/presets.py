"""How much work a fit is given."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["Preset", "preset_options"]


class Preset(str, Enum):
    """Values of --preset."""

    fast = "fast"
    default = "default"
    best = "best"


def preset_options(preset: Preset) -> dict[str, Any]:
    """Parameters of the estimators; those of ``default`` follow the table."""
    if preset is Preset.fast:  # a look at a table: a third of the members, and half of the steps
        return {"n_members": 4, "max_iter": 200}
    if preset is Preset.best:  # twice the members, and twice the patience
        return {"n_members": 24, "n_iter_no_change": 12}
    return {}
