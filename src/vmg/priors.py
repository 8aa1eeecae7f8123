"""Priors of a layer's weights: what the posterior MN(M, U, V) is measured against.

A prior answers one question, its expected KL divergence, given M (``None`` for a zero mean), U and V.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence

from vmg.covariance import Covariance, Diagonal
from vmg.distributions import MatrixNormal

__all__ = ["FixedPrior", "GammaPrior", "IsotropicPrior", "Prior"]


class Prior(nn.Module, ABC):
    """The distribution that a layer's weights had before the data."""

    @abstractmethod
    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        """KL of MN(M, U, V) to the prior, with the KL of the prior's own posterior where it has one; [*batch_shape]."""

    @abstractmethod
    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """A weight matrix [*shape] drawn from the prior, the last two dimensions being R and C."""

    def fresh(self, batch_shape: Sequence[int]) -> Prior:
        """A copy for a layer of its own; priors without state serve many layers."""
        return self


def _energy(M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
    """E‖W‖² = tr U tr V + ‖M‖²."""
    energy = U.trace() * V.trace()
    return energy if M is None else energy + M.square().sum((-2, -1))


def _standard_kl(energy: Tensor, U: Covariance, V: Covariance, tau: Tensor | float, log_tau: Tensor | float) -> Tensor:
    """E KL(MN(M, U, V) ‖ MN(0, I/τ_r, I/τ_c)) with τ = E[τ_r τ_c] and log τ = E[log τ_r τ_c] [LW16, eq. 4]."""
    R, C = U.n, V.n
    logdet = C * U.logdet() + R * V.logdet()
    return 0.5 * (tau * energy - R * C * (1 + log_tau) - logdet)


class IsotropicPrior(Prior):
    """MN(0, I, I), or MN(0, scale² I, I); the paper's prior unless stated otherwise [LW16, §4]."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale must be positive; got {scale}")
        self.scale = scale

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}"

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        return _standard_kl(_energy(M, U, V), U, V, self.scale**-2, -2 * math.log(self.scale))

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.scale * torch.randn(*shape, generator=generator)


class _GammaPair(NamedTuple):
    row: Gamma
    column: Gamma


class GammaPrior(Prior):
    """MN(0, I/τ_r, I/τ_c) with Gamma priors and Gamma posteriors on both precisions [LW16, §4.1].

    ``conjugate=True`` uses the optimal posteriors, which are Gamma with shape a₀ + RC/2 and rates that solve
    b_r = b₀ + ½ E[τ_c] E‖W‖² and b_c = b₀ + ½ E[τ_r] E‖W‖² at once. Both equal the root of
    b² − b₀ b − ½ a E‖W‖² = 0, so nothing is iterated and nothing is stored.
    ``conjugate=False`` learns the four parameters by gradient, as the paper does.

    Differs from the paper: conjugate is the default; it is the point that the gradient would converge to.
    """

    log_concentration: nn.Parameter | None
    log_rate: nn.Parameter | None

    def __init__(
        self,
        concentration: float = 1.0,
        rate: float = 0.5,
        *,
        conjugate: bool = True,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not (concentration > 0 and rate > 0):
            raise ValueError(f"concentration and rate must be positive; got {concentration} and {rate}")
        self.concentration, self.rate, self.conjugate = concentration, rate, conjugate
        if conjugate:
            self.log_concentration = self.log_rate = None
        else:
            shape = (*batch_shape, 2)  # row, column
            self.log_concentration = nn.Parameter(torch.full(shape, math.log(concentration)))
            self.log_rate = nn.Parameter(torch.full(shape, math.log(rate)))

    def extra_repr(self) -> str:
        return f"concentration={self.concentration:g}, rate={self.rate:g}, conjugate={self.conjugate}"

    def fresh(self, batch_shape: Sequence[int]) -> GammaPrior:
        return GammaPrior(self.concentration, self.rate, conjugate=self.conjugate, batch_shape=batch_shape)

    def posterior(self, M: Tensor | None, U: Covariance, V: Covariance) -> _GammaPair:
        """q(τ_r) and q(τ_c) for the given weights."""
        return self._posterior(_energy(M, U, V), U.n * V.n)

    def _posterior(self, energy: Tensor, size: int) -> _GammaPair:
        if self.log_concentration is not None and self.log_rate is not None:
            a, b = self.log_concentration.exp(), self.log_rate.exp()
            return _GammaPair(
                Gamma(a[..., 0], b[..., 0], validate_args=False), Gamma(a[..., 1], b[..., 1], validate_args=False)
            )
        # q(τ) is optimal, so the bound's gradient through it vanishes: detaching changes nothing but rounding
        energy = energy.detach()
        a = torch.full_like(energy, self.concentration + 0.5 * size)
        b = 0.5 * (self.rate + (self.rate**2 + 2 * a * energy).sqrt())
        both = Gamma(a, b, validate_args=False)
        return _GammaPair(both, both)

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        energy = _energy(M, U, V)
        row, column = self._posterior(energy, U.n * V.n)
        tau = row.mean * column.mean
        log_tau = sum(torch.digamma(q.concentration) - q.rate.log() for q in (row, column))
        prior = Gamma(torch.full_like(tau, self.concentration), torch.full_like(tau, self.rate), validate_args=False)
        own = kl_divergence(row, prior) + kl_divergence(column, prior)
        return _standard_kl(energy, U, V, tau, log_tau) + own

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        leading = (*shape[:-2], 1, 1)
        a = torch.full(leading, self.concentration)
        tau_row, tau_column = (torch._standard_gamma(a, generator=generator) / self.rate for _ in range(2))
        return torch.randn(*shape, generator=generator) / (tau_row * tau_column).sqrt()


class FixedPrior(Prior):
    """Any matrix Gaussian MN(M₀, U₀, V₀) with diagonal covariances, such as the posterior of earlier data."""

    def __init__(self, loc: Tensor, row_scale: Tensor, column_scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("loc", loc.detach().clone())
        self.register_buffer("row_scale", row_scale.detach().clone())
        self.register_buffer("column_scale", column_scale.detach().clone())

    @property
    def distribution(self) -> MatrixNormal:
        """The prior as a distribution."""
        U, V = (Diagonal(self.get_buffer(name), validate=False) for name in ("row_scale", "column_scale"))
        return MatrixNormal(self.get_buffer("loc"), U, V, validate_args=False)

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        loc = torch.zeros_like(self.get_buffer("loc")) if M is None else M
        return kl_divergence(MatrixNormal(loc, U, V, validate_args=False), self.distribution)

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.distribution.transform_noise(torch.randn(*shape, generator=generator))
