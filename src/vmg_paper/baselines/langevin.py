"""Stochastic gradient Langevin dynamics, preconditioned or plain.

Welling & Teh (2011), *Bayesian Learning via Stochastic Gradient Langevin Dynamics* [WT11]; the preconditioner of Li,
Chen, Carlson & Carin (2016), *Preconditioned Stochastic Gradient Langevin Dynamics* [L16].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Decay", "RMSprop", "sample"]

Gradient = Callable[[Tensor], Tensor]
"""An unbiased estimate of ∇ log p at states [..., dimensions]."""


@dataclass(frozen=True)
class Decay:
    """Step sizes ε_t that fall from ``first`` to ``last`` as a(b + t)^−γ [WT11, §3]."""

    first: float
    last: float
    n_steps: int
    power: float = 0.55

    def __post_init__(self) -> None:
        if not self.first >= self.last > 0:
            raise ValueError(f"first must be >= last, and last positive; got {self.first} and {self.last}")

    def __call__(self, step: int) -> float:
        if self.first == self.last:
            return self.first
        ratio = (self.first / self.last) ** (1 / self.power)
        b = self.n_steps / (ratio - 1)
        return self.first * ((b + step) / b) ** -self.power


class RMSprop:
    """G = 1/(damping + √V) with V a running mean of squared gradients per datum [L16, equations 4 and 5].

    Li et al.'s term Γ, the derivative of G, is left out as in their experiments.
    """

    def __init__(self, n_data: Tensor | float, decay: float = 0.99, damping: float = 1e-5) -> None:
        self.n_data, self.decay, self.damping = n_data, decay, damping
        self.square: Tensor | None = None

    def __call__(self, gradient: Tensor) -> Tensor:
        mean = gradient / self.n_data
        new = mean.square()
        self.square = new if self.square is None else torch.lerp(new, self.square, self.decay)
        return 1 / (self.damping + self.square.sqrt())


def unconditioned(gradient: Tensor) -> Tensor:
    """G = 1: plain Langevin dynamics [WT11, equation 4]."""
    return torch.ones_like(gradient)


@torch.no_grad()
def sample(
    gradient: Gradient,
    start: Tensor,
    *,
    step_size: Callable[[int], float],
    n_steps: int,
    n_burn_in: int,
    thinning: int,
    precondition: Callable[[Tensor], Tensor] = unconditioned,
    generator: torch.Generator,
) -> Tensor:
    """Every ``thinning``-th state after ``n_burn_in`` of ``n_steps`` steps θ += ½εG∇ + N(0, εG): [n, ...]."""
    if not 0 <= n_burn_in < n_steps or thinning < 1:
        raise ValueError(
            f"burn-in must be shorter than the {n_steps} steps and thinning >= 1; got {n_burn_in}, {thinning}"
        )
    state, kept = start.clone(), []
    for step in range(n_steps):
        epsilon, slope = step_size(step), gradient(state)
        scaled = epsilon * precondition(slope)
        noise = torch.randn(state.shape, generator=generator, dtype=state.dtype)
        state.addcmul_(scaled, slope, value=0.5).addcmul_(scaled.sqrt(), noise)
        if step >= n_burn_in and (step - n_burn_in) % thinning == thinning - 1:
            kept.append(state.clone())
    if not (kept and torch.isfinite(state).all()):
        raise RuntimeError("the chain must stay finite and keep a draw; take smaller steps or more of them")
    return torch.stack(kept)
