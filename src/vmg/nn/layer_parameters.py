"""Trainable parameters of a layer's covariances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.math.covariance import Covariance, Dense, Diagonal, RankOne
from vmg.math.linalg import at_least_float32, randn

__all__ = ["FAMILIES", "CovarianceParameters"]

FAMILIES = ("diagonal", "rank_one", "dense")
INITIAL_SPREAD = 0.01  # of log scales and of u at the start, as in the authors' code


class CovarianceParameters(nn.Module):
    """Unconstrained parameters of a covariance of one of ``FAMILIES``, which a call gives; scales are logarithms.

    A covariance of rank one beside its diagonal has the vector u [LW16, footnote 1], a dense one its Cholesky factor:
    the log-diagonal, and the strict lower triangle relative to the row's scale.
    """

    def __init__(self, family: str, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.family = family
        self.log_scale = nn.Parameter(torch.zeros(*batch_shape, n))
        if family == "rank_one":
            self.vector = nn.Parameter(torch.zeros(*batch_shape, n))
        if family == "dense":
            self.lower = nn.Parameter(torch.zeros(*batch_shape, n, n))

    def extra_repr(self) -> str:
        return self.family

    @torch.no_grad()
    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        """Start near diag(exp(2 log_scale)), for log_scale [n]."""
        noise = randn(self.log_scale.shape, like=log_scale, generator=generator)
        self.log_scale.copy_(log_scale + INITIAL_SPREAD * noise)
        if self.family == "rank_one":  # u = 0 has no gradient, so it starts a little beside
            self.vector.copy_(INITIAL_SPREAD * randn(self.vector.shape, like=log_scale, generator=generator))
        if self.family == "dense":
            self.lower.zero_()

    def forward(self) -> Covariance:
        """The covariance at the present parameters."""
        log_scale = at_least_float32(self.log_scale)
        if self.family == "diagonal":
            return Diagonal.from_log_scale(log_scale)
        if self.family == "rank_one":
            return RankOne(log_scale.exp(), at_least_float32(self.vector), validate=False)
        lower = at_least_float32(self.lower)
        unit = lower.tril(-1) + torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return Dense(log_scale.exp().unsqueeze(-1) * unit, validate=False)
