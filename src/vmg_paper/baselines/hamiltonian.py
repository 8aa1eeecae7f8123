"""Hamiltonian Monte Carlo of any log density, several chains as one batch, and whether the chains have converged.

Neal (2011), *MCMC using Hamiltonian dynamics*; step size by dual averaging, Hoffman & Gelman (2014) [HG14, §3.2]; a
diagonal mass matrix from windows that double, as in Stan. Chains share step size and mass. Diagnostics: Vehtari et al.
(2021), *Rank-normalization, folding, and localization* [V21].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

__all__ = ["Chains", "LogDensity", "bulk_ess", "sample", "split_rhat"]

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


Array = NDArray[np.float64]


def split_rhat(draws: Array) -> Array:
    """Rank-normalised split R̂ of draws [n, chains, ...]: 1 where all halves of all chains agree [V21, §4.1].

    The larger of that of the draws and that of their distance from the median, for chains may agree in location and
    differ in spread.
    """
    chains = _split(draws)
    folded = np.abs(chains - np.median(chains, axis=(0, 1)))
    return np.maximum(_rhat(_rank_normalise(chains)), _rhat(_rank_normalise(folded)))


def _rhat(chains: Array) -> Array:
    n = chains.shape[0]
    within = chains.var(0, ddof=1).mean(0)
    between = n * chains.mean(0).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that stand still: infinite, or NaN where all agree
        return np.sqrt((n - 1) / n + between / (n * within))


def bulk_ess(draws: Array) -> Array:
    """Effective number of draws [n, chains, ...] for estimates of the centre [V21, §4.3]."""
    chains = _rank_normalise(_split(draws))
    n, n_chains = chains.shape[:2]
    flat = chains.reshape(n, n_chains, -1)
    found = [_effective_size(flat[..., k]) for k in range(flat.shape[-1])]
    return np.array(found).reshape(chains.shape[2:])


def _split(draws: Array) -> Array:
    """Every chain as two: [n, chains, ...] -> [n // 2, 2 chains, ...]."""
    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim < 2 or len(draws) < 8:
        raise ValueError(f"draws must be [n, chains, ...] with n >= 8; got shape {draws.shape}")
    half = len(draws) // 2
    return np.concatenate([draws[:half], draws[-half:]], axis=1)


def _rank_normalise(chains: Array) -> Array:
    """Normal scores of the ranks over all chains, by Blom's formula."""
    flat = chains.reshape(chains.shape[0] * chains.shape[1], -1)
    ranks = stats.rankdata(flat, axis=0)
    return special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(chains.shape)


def _effective_size(chains: Array) -> float:
    """Draws over the integrated autocorrelation, truncated by Geyer's initial monotone sequence; chains [n, m]."""
    n, m = chains.shape
    covariance = _autocovariance(chains)  # [n, m]
    within = covariance[0].mean() * n / (n - 1)
    between = chains.mean(0).var(ddof=1) if m > 1 else 0.0
    total = within * (n - 1) / n + between
    if not total > 0:
        return float(n * m)
    correlation = 1 - (within - covariance.mean(1) * n / (n - 1)) / total
    correlation[0] = 1.0
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    time = max(2 * pairs.sum() - 1, 1 / np.log10(n * m))  # an antithetic chain may be worth more than its draws
    return float(n * m / time)


def _autocovariance(chains: Array) -> Array:
    """Autocovariance of each chain at all lags, each sum divided by n, through the FFT."""
    n = len(chains)
    spectrum = np.fft.rfft(chains - chains.mean(0), 2 * n, axis=0)
    return np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:n] / n
