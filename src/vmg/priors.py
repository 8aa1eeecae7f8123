"""Priors of a layer's weights: what the posterior MN(M, U, V) is measured against.

A prior answers one question, its expected KL divergence, given M (``None`` for a zero mean), U and V.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributions import Gamma, kl_divergence

from vmg.covariance import Covariance, Diagonal
from vmg.distributions import MatrixNormal

__all__ = ["FixedPrior", "GammaPrior", "IsotropicPrior", "Prior", "gamma_kl"]


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


class _Moments(NamedTuple):
    """What an isotropic prior needs to know of a posterior."""

    energy: Tensor  # E‖W‖² = tr U tr V + ‖M‖²
    logdet: Tensor  # log|V ⊗ U|
    size: int  # RC


class _DiagonalMoments(Function):
    """Energy and log-determinant of a diagonal posterior, as one node with its short gradient."""

    @staticmethod
    def forward(ctx: Any, M: Tensor | None, log_row: Tensor, log_column: Tensor) -> tuple[Tensor, Tensor]:
        row, column = torch.exp(2 * log_row), torch.exp(2 * log_column)
        row_trace, column_trace = row.sum(-1), column.sum(-1)
        energy = row_trace * column_trace
        if M is not None:
            energy += torch.linalg.vector_norm(M, dim=(-2, -1)).square_()
        logdet = 2 * (column.shape[-1] * log_row.sum(-1) + row.shape[-1] * log_column.sum(-1))
        ctx.save_for_backward(M, row, column, row_trace, column_trace)
        return energy, logdet

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_energy: Tensor, g_logdet: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        M, row, column, row_trace, column_trace = ctx.saved_tensors
        g_energy, g_logdet = 2 * g_energy.unsqueeze(-1), 2 * g_logdet.unsqueeze(-1)
        g_M = None if M is None else g_energy.unsqueeze(-1) * M
        g_row = g_energy * column_trace.unsqueeze(-1) * row + column.shape[-1] * g_logdet
        g_column = g_energy * row_trace.unsqueeze(-1) * column + row.shape[-1] * g_logdet
        return g_M, g_row, g_column


def _moments(M: Tensor | None, U: Covariance, V: Covariance) -> _Moments:
    R, C = U.n, V.n
    if isinstance(U, Diagonal) and isinstance(V, Diagonal):
        return _Moments(*_DiagonalMoments.apply(M, U.log_scale, V.log_scale), R * C)
    energy = U.trace() * V.trace()
    if M is not None:
        energy = energy + M.square().sum((-2, -1))
    return _Moments(energy, C * U.logdet() + R * V.logdet(), R * C)


def _standard_kl(m: _Moments, tau: Tensor | float, log_tau: Tensor | float) -> Tensor:
    """E KL(MN(M, U, V) ‖ MN(0, I/τ_r, I/τ_c)) with τ = E[τ_r τ_c] and log τ = E[log τ_r τ_c] [LW16, eq. 4]."""
    return 0.5 * (tau * m.energy - m.logdet - m.size * (1 + log_tau))


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
        return _standard_kl(_moments(M, U, V), self.scale**-2, -2 * math.log(self.scale))

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.scale * torch.randn(*shape, generator=generator)


def gamma_kl(a: Tensor, b: Tensor, prior_a: float, prior_b: Tensor) -> Tensor:
    """KL(Gamma(a, b) ‖ Gamma(a₀, b₀)) with rates b."""
    shape = (a - prior_a) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(prior_a)
    return shape + prior_a * (b / prior_b).log() + a * (prior_b / b - 1)


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
        m = _moments(M, U, V)
        return self._posterior(m.energy, m.size)

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
        m = _moments(M, U, V)
        row, column = self._posterior(m.energy, m.size)
        tau = row.mean * column.mean
        log_tau, own = self._log_mean(row), self._own_kl(row)
        if row is column:  # conjugate: both are the same distribution
            return _standard_kl(m, tau, 2 * log_tau) + 2 * own
        return _standard_kl(m, tau, log_tau + self._log_mean(column)) + own + self._own_kl(column)

    @staticmethod
    def _log_mean(q: Gamma) -> Tensor:
        """E log τ."""
        return torch.digamma(q.concentration) - q.rate.log()

    def _own_kl(self, q: Gamma) -> Tensor:
        return gamma_kl(q.concentration, q.rate, self.concentration, torch.tensor(self.rate, dtype=q.rate.dtype))

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
