"""Hamiltonian Monte Carlo of any log density: several chains as one batch, tuned while warming up.

Neal (2011), *MCMC using Hamiltonian dynamics*; step size by dual averaging, Hoffman & Gelman (2014) [HG14, §3.2]; a
diagonal mass matrix from windows that double, as in Stan. Chains share step size and mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Chains", "LogDensity", "sample"]

LogDensity = Callable[[Tensor], tuple[Tensor, Tensor]]
"""log p of states [chains, dimensions], [chains], and its gradient."""

LARGEST_ENERGY_ERROR = 1000.0  # beyond it a trajectory counts as divergent, as in Stan


@dataclass(frozen=True)
class Chains:
    """Draws after warm-up and how they were made."""

    draws: Tensor  # [n, chains, dimensions]
    step_size: float
    acceptance: float
    n_divergent: int
    n_gradients: int


class DualAveraging:
    """Drives the mean acceptance to ``target`` by moving log ε [HG14, equation 6]."""

    SHRINKAGE, STABILITY, DECAY = 0.05, 10.0, 0.75  # γ, t₀ and κ of the paper

    def __init__(self, step_size: float, target: float) -> None:
        self.target = target
        self.restart(step_size)

    def restart(self, step_size: float) -> None:
        """Forget the past, and look near ten times the given step first."""
        self.centre, self.log_step, self.log_average = math.log(10 * step_size), math.log(step_size), 0.0
        self.error, self.count = 0.0, 0

    def update(self, acceptance: float) -> None:
        """Learn from one iteration."""
        self.count += 1
        weight = 1 / (self.count + self.STABILITY)
        self.error += weight * (self.target - acceptance - self.error)
        self.log_step = self.centre - math.sqrt(self.count) / self.SHRINKAGE * self.error
        share = self.count**-self.DECAY
        self.log_average += share * (self.log_step - self.log_average)


class Leapfrog:
    """Position, log density and gradient of all chains, and the count of gradients."""

    def __init__(self, log_density: LogDensity, position: Tensor) -> None:
        self.log_density, self.n_gradients = log_density, 0
        self.position = position.detach().clone()
        self.value, self.gradient = self.evaluate(self.position)
        if not torch.isfinite(self.value).all():
            raise ValueError("the log density must be finite at the start of every chain; got NaN or infinite values")

    def evaluate(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """log p and its gradient."""
        self.n_gradients += 1
        return self.log_density(position)

    def step(
        self, step_size: float, n_steps: int, variance: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """One transition of every chain; the acceptance probabilities and which trajectories diverged."""
        momentum = torch.randn(self.position.shape, generator=generator, dtype=self.position.dtype) / variance.sqrt()
        before = self.value - 0.5 * (variance * momentum.square()).sum(-1)
        position, gradient, value = self.position, self.gradient, self.value
        for _ in range(n_steps):
            momentum = momentum + 0.5 * step_size * gradient
            position = position + step_size * variance * momentum
            value, gradient = self.evaluate(position)
            momentum = momentum + 0.5 * step_size * gradient
        after = value - 0.5 * (variance * momentum.square()).sum(-1)
        gain = torch.nan_to_num(after - before, nan=-math.inf)
        acceptance = gain.clamp(max=0).exp()
        accepted = torch.rand(len(gain), generator=generator, dtype=gain.dtype) < acceptance
        self.position = torch.where(accepted[:, None], position, self.position)
        self.gradient = torch.where(accepted[:, None], gradient, self.gradient)
        self.value = torch.where(accepted, value, self.value)
        return acceptance, gain < -LARGEST_ENERGY_ERROR


def windows(n_warmup: int) -> Iterator[tuple[int, bool]]:
    """Ends of the warm-up's windows, and whether the mass is learned in each: as in Stan, slow windows double."""
    first, last = round(0.15 * n_warmup), round(0.1 * n_warmup)
    yield first, False
    end, size = first, max(1, round(0.05 * n_warmup))
    while end < n_warmup - last:
        nearly_done = end + 3 * size > n_warmup - last  # the next, twice as long, would not fit
        end = n_warmup - last if nearly_done else end + size
        size *= 2
        yield end, True
    yield n_warmup, False


@torch.no_grad()
def sample(
    log_density: LogDensity,
    start: Tensor,
    *,
    n_warmup: int = 1000,
    n_draws: int = 1000,
    path_length: float = math.pi / 2,
    max_leapfrog: int = 200,
    target_acceptance: float = 0.8,
    generator: torch.Generator,
) -> Chains:
    """Draws [n_draws, chains, dimensions] from p, one chain from each row of ``start``.

    Args:
        path_length: mean length of a trajectory in units of the learned scales; a quarter turn is best for Gaussians.
            Each is drawn from half to one and a half of it, so that no trajectory returns to where it came from.
        max_leapfrog: the most steps of a trajectory.
        target_acceptance: what the step size is tuned to.
    """
    if min(n_warmup, n_draws) < 1:
        raise ValueError(f"n_warmup and n_draws must be at least 1; got {n_warmup} and {n_draws}")
    chains = Leapfrog(log_density, start)
    variance = torch.ones(start.shape[-1], dtype=start.dtype)
    adapting = DualAveraging(_first_step_size(chains, variance, generator), target_acceptance)

    def transition(step_size: float) -> tuple[float, int]:
        length = path_length * (0.5 + float(torch.rand((), generator=generator)))
        n_steps = min(max(1, math.ceil(length / step_size)), max_leapfrog)
        acceptance, divergent = chains.step(step_size, n_steps, variance, generator)
        return float(acceptance.mean()), int(divergent.sum())

    done = 0
    for end, learns_mass in windows(n_warmup):
        seen = []
        for _ in range(done, end):
            adapting.update(transition(math.exp(adapting.log_step))[0])
            seen.append(chains.position)
        done = max(done, end)
        if learns_mass and seen:
            pooled = torch.cat(seen)
            n = len(pooled)
            variance = (n * pooled.var(0) + 5e-3) / (n + 5)  # Stan's shrinkage towards small scales
            adapting.restart(_first_step_size(chains, variance, generator))

    step_size = math.exp(adapting.log_average)
    draws, accepted, diverged = [], 0.0, 0
    for _ in range(n_draws):
        acceptance, divergent = transition(step_size)
        accepted, diverged = accepted + acceptance, diverged + divergent
        draws.append(chains.position)
    return Chains(torch.stack(draws), step_size, accepted / n_draws, diverged, chains.n_gradients)


def _first_step_size(chains: Leapfrog, variance: Tensor, generator: torch.Generator) -> float:
    """Doubled or halved until the acceptance of one leapfrog step crosses a half [HG14, algorithm 4]."""
    size, direction = 0.1, 0
    for _ in range(50):
        acceptance = float(chains.step(size, 1, variance, generator)[0].mean())
        now = 1 if acceptance > 0.5 else -1
        if direction and now != direction:
            break
        direction = now
        size *= 2.0**direction
    return size
