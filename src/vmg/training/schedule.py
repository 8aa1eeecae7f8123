"""How the learning rate changes over training."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["Schedule", "constant", "cosine"]

Schedule = Callable[[float], float]
"""Learning-rate factor as a function of the finished share of training, 0 to 1."""


def constant(progress: float) -> float:
    """The same learning rate throughout, as in the paper."""
    return 1.0


def cosine(progress: float) -> float:
    """A factor that falls from one to zero along half a cosine (Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))
