"""Calibrations of many groups: the fit of :func:`vmg.fit.calibration.calibrate`, as one batched optimisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vmg.fit.calibration import (
    DEGREES_ROWS,
    FEWEST_DEGREES,
    INFLATION_ROWS,
    MOST_DEGREES,
    Calibration,
    HeldOut,
)

__all__ = ["calibrate_groups"]

STEPS, RATE = 75, 0.2
STARTS = (0.0, 2.0)  # of log c, as there


def calibrate_groups(
    folds: Sequence[HeldOut], regions: Sequence[HeldOut], least_noise: Sequence[float]
) -> list[Calibration]:
    """Noise, inflation and degrees of each group from its own held-out errors."""
    inside, outside = _Errors(folds), _Errors(regions)
    spread = (inside.share * inside.squared).sum(-1).sqrt()
    tiny = torch.full_like(spread, np.finfo(np.float64).tiny)
    floor = torch.maximum(
        torch.maximum(torch.as_tensor(least_noise, dtype=torch.float64), 1e-12 * spread**2), tiny
    ).log()
    middle = torch.tensor([float(np.median(np.abs(fold.error))) for fold in folds], dtype=torch.float64)
    typical = 2 * (1.5 * torch.maximum(torch.maximum(middle, 1e-6 * spread), tiny)).log()
    start = torch.maximum(typical, floor)
    z = torch.stack([torch.stack([start, torch.full_like(start, s), torch.full_like(start, 2.0)], -1) for s in STARTS])
    z.requires_grad_()  # [starts, G, 3]
    n_rows = torch.tensor([float(len(fold.error)) for fold in folds], dtype=torch.float64)

    def parts() -> tuple[Tensor, Tensor, Tensor]:
        log_noise, log_stretch, log_degrees = z.unbind(-1)
        degrees = FEWEST_DEGREES + log_degrees.clamp(max=math.log(MOST_DEGREES)).exp()
        return torch.maximum(log_noise, floor).exp(), log_stretch.clamp(-20, 20).exp(), degrees

    def loss() -> Tensor:
        noise, inflation, degrees = parts()
        prior = INFLATION_ROWS * z[..., 1] ** 2 + DEGREES_ROWS * ((z[..., 2] - 2) / 2) ** 2
        return (
            0.5 * prior / n_rows
            - inside.mean_log_density(noise, inflation, degrees)
            - outside.mean_log_density(noise, inflation, degrees)
        )

    mean, square = torch.zeros_like(z), torch.zeros_like(z)
    for step in range(1, STEPS + 1):
        (gradient,) = torch.autograd.grad(loss().sum(), z)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        rate = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        with torch.no_grad():
            z -= rate * (mean / (1 - 0.9**step)) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
    with torch.no_grad():
        best = loss().argmin(0)
        found = [part.gather(0, best.unsqueeze(0)).squeeze(0).tolist() for part in parts()]
    return [Calibration(*values) for values in zip(*found, strict=True)]


class _Errors:
    """Held-out errors of G groups, padded: [G, n] each, with shares that add up to one where there are errors."""

    def __init__(self, held_out: Sequence[HeldOut]) -> None:
        longest = max([1, *(len(one.error) for one in held_out)])
        self.squared, self.variance, self.share = (
            torch.zeros(len(held_out), longest, dtype=torch.float64) for _ in range(3)
        )
        for k, one in enumerate(held_out):
            n = len(one.error)
            if n:
                self.squared[k, :n] = torch.as_tensor(one.error) ** 2
                self.variance[k, :n] = torch.as_tensor(one.variance)
                self.share[k, :n] = torch.as_tensor(one.weight / one.weight.sum())

    def mean_log_density(self, noise: Tensor, inflation: Tensor, degrees: Tensor) -> Tensor:
        """Mean log-density of a Student t, [starts, G]; zero for a group without errors."""
        squared_scale = noise.unsqueeze(-1) + inflation.unsqueeze(-1) * self.variance
        half = 0.5 * (degrees + 1)
        normaliser = torch.lgamma(half) - torch.lgamma(0.5 * degrees) - 0.5 * (math.pi * degrees).log()
        tail = torch.log1p(self.squared / (degrees.unsqueeze(-1) * squared_scale))
        density = normaliser.unsqueeze(-1) - 0.5 * squared_scale.log() - half.unsqueeze(-1) * tail
        return (self.share * density).sum(-1)
