"""Trainable parameters of a layer's covariances, by family.

Calling a module of covariance parameters gives its :class:`~vmg.math.covariance.Covariance`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.math.covariance import Covariance, Dense, Diagonal, RankOne
from vmg.math.linalg import at_least_float32, randn

__all__ = [
    "FAMILIES",
    "CovarianceParameters",
    "DenseParameters",
    "DiagonalParameters",
    "RankOneParameters",
]

INITIAL_SPREAD = 0.01  # of log scales and of u at the start, as in the authors' code


class CovarianceParameters(nn.Module, ABC):
    """Unconstrained parameters of a covariance; scales are kept as logarithms."""

    log_scale: nn.Parameter

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(*batch_shape, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        """Start near diag(exp(2 log_scale)), for log_scale [n]."""
        with torch.no_grad():
            noise = randn(self.log_scale.shape, like=log_scale, generator=generator)
            self.log_scale.copy_(log_scale + INITIAL_SPREAD * noise)

    @abstractmethod
    def forward(self) -> Covariance:
        """The covariance at the present parameters."""


class DiagonalParameters(CovarianceParameters):
    """A diagonal."""

    def forward(self) -> Diagonal:
        return Diagonal.from_log_scale(at_least_float32(self.log_scale))


class RankOneParameters(CovarianceParameters):
    """A diagonal plus rank one in the square root [LW16, footnote 1]."""

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__(n, batch_shape)
        self.vector = nn.Parameter(torch.zeros(*batch_shape, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        super().reset(log_scale, generator)
        with torch.no_grad():  # u = 0 has no gradient, so it starts a little beside
            self.vector.copy_(INITIAL_SPREAD * randn(self.vector.shape, like=log_scale, generator=generator))

    def forward(self) -> RankOne:
        return RankOne(at_least_float32(self.log_scale).exp(), at_least_float32(self.vector), validate=False)


class DenseParameters(CovarianceParameters):
    """A Cholesky factor: its log-diagonal, and its strict lower triangle relative to the row's scale."""

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__(n, batch_shape)
        self.lower = nn.Parameter(torch.zeros(*batch_shape, n, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        super().reset(log_scale, generator)
        with torch.no_grad():
            self.lower.zero_()

    def forward(self) -> Dense:
        lower = at_least_float32(self.lower)
        unit = lower.tril(-1) + torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return Dense(at_least_float32(self.log_scale).exp().unsqueeze(-1) * unit, validate=False)


FAMILIES: dict[str, type[CovarianceParameters]] = {
    "diagonal": DiagonalParameters,
    "rank_one": RankOneParameters,
    "dense": DenseParameters,
}
