"""Priors of a layer's weights and pseudo-data, and the KL divergence of the posteriors to them.

A prior of the weights answers one question, its expected KL divergence, given M (``None`` for a zero mean), U and V.
Entries of the pseudo-data have a log-uniform prior (:func:`log_uniform_kl`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from vmg.math.covariance import Covariance, Diagonal
from vmg.math.matrix_normal import MatrixNormal

__all__ = [
    *("Coefficients", "EnergyPrior", "FixedPrior", "GammaPrior", "IsotropicPrior", "KeepsSettings", "Prior"),
    *("gamma_kl", "log_uniform_at_bound", "log_uniform_kl", "pseudo_data_kl"),
]

SAME = 1e-6  # relative; a number that went through single precision is the same number


class KeepsSettings(nn.Module):
    """A module whose ``state_dict`` has the numbers named in ``SETTINGS``: a loaded copy has the same objective.

    They stay Python numbers, which no cast of the module rounds. A state without them loads too and leaves them.
    """

    SETTINGS: tuple[str, ...] = ()

    def get_extra_state(self) -> Tensor:
        """The settings in order, flat, in double precision."""
        values = [torch.as_tensor(getattr(self, name), dtype=torch.float64).reshape(-1) for name in self.SETTINGS]
        return torch.cat(values).cpu()

    def set_extra_state(self, state: Tensor) -> None:
        """Take over what :meth:`get_extra_state` gave."""
        parts = state.double().cpu()
        present = [getattr(self, name) for name in self.SETTINGS]
        sizes = [value.numel() if isinstance(value, Tensor) else 1 for value in present]
        if len(sizes) == 1 and (parts == parts[0]).all():  # one number for all replicas, or the same for each
            parts = parts[:1].expand(sizes)
        if parts.numel() != sum(sizes):
            raise ValueError(f"the state of {self.SETTINGS} must hold {sum(sizes)} numbers; got {len(parts)}")
        for name, value, own in zip(self.SETTINGS, present, parts.split(sizes), strict=True):
            if isinstance(value, Tensor):
                setattr(self, name, own.to(value).reshape(value.shape))
            elif not math.isclose(own.item(), value, rel_tol=SAME):
                setattr(self, name, own.item())

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        key, missing = f"{prefix}_extra_state", arguments[2]
        if key in missing:
            missing.remove(key)


class Coefficients(NamedTuple):
    """A prior whose KL divergence from a Gaussian posterior depends on E = E‖W‖² and the log-determinant only.

    KL = ½τE − ½ log|V ⊗ U| + constant, with τ = ``precision``; or, where ``concentration`` a > 0, with the conjugate
    posterior of both precisions, τ = (a/b)² and 2a(log b + rate/b) added, b the root of b² − rate·b − ½aE = 0.
    """

    precision: float
    concentration: float
    rate: float
    constant: float


class Prior(nn.Module, ABC):
    """The distribution that a layer's weights had before the data."""

    @abstractmethod
    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        """KL of MN(M, U, V) to the prior, with the KL of the prior's own posterior where it has one; [*batch_shape]."""

    def kl_of_diagonal(self, M: Tensor | None, log_row: Tensor, log_column: Tensor) -> Tensor:
        """The same where U and V are diagonal, from the logarithms of their standard deviations."""
        return self.kl_divergence(M, Diagonal.from_log_scale(log_row), Diagonal.from_log_scale(log_column))

    @abstractmethod
    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """A weight matrix [*shape] drawn from the prior, the last two dimensions being R and C."""

    def coefficients(self, size: int) -> Coefficients | None:
        """The short form of the divergence for a matrix of ``size`` = RC entries, where there is one."""
        return None

    def fresh(self, batch_shape: Sequence[int]) -> Prior:
        """A copy for a layer of its own."""
        return self


class EnergyPrior(Prior):
    """A prior whose divergence depends on the weights by E‖W‖² and log|V ⊗ U| alone."""

    def kl_of_energy(self, energy: Tensor, size: int) -> Tensor:
        """The divergence of a matrix of RC = ``size`` entries at E‖W‖² = ``energy``, all but its −½ log|V ⊗ U|."""
        short = self.coefficients(size)
        assert short is not None
        if not short.concentration:
            return 0.5 * short.precision * energy + short.constant
        a, rate = short.concentration, short.rate
        b = 0.5 * (rate + (rate**2 + 2 * a * energy).sqrt())
        return 0.5 * (a / b).square() * energy + 2 * a * (b.log() + rate / b) + short.constant

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        logdet = V.n * U.logdet() + U.n * V.logdet()
        return self.kl_of_energy(_energy(U.trace(), V.trace(), M), U.n * V.n) - 0.5 * logdet

    def kl_of_diagonal(self, M: Tensor | None, log_row: Tensor, log_column: Tensor) -> Tensor:
        R, C = log_row.shape[-1], log_column.shape[-1]
        traces = torch.exp(2 * log_row).sum(-1), torch.exp(2 * log_column).sum(-1)
        return self.kl_of_energy(_energy(*traces, M), R * C) - (C * log_row.sum(-1) + R * log_column.sum(-1))


def _energy(row_trace: Tensor, column_trace: Tensor, M: Tensor | None) -> Tensor:
    """E‖W‖² = tr U tr V + ‖M‖²."""
    energy = row_trace * column_trace
    return energy if M is None else energy + M.square().sum((-2, -1))


class IsotropicPrior(KeepsSettings, EnergyPrior):
    """MN(0, I, I), or MN(0, scale² I, I); the paper's prior unless stated otherwise [LW16, §4]."""

    SETTINGS = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ValueError(f"scale must be positive; got {scale}")
        self.scale = scale

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}"

    def fresh(self, batch_shape: Sequence[int]) -> IsotropicPrior:
        return IsotropicPrior(self.scale)

    def coefficients(self, size: int) -> Coefficients:
        """[LW16, eq. 4] with U₀V₀ = scale² I."""
        return Coefficients(self.scale**-2, 0.0, 0.0, size * (math.log(self.scale) - 0.5))

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.scale * torch.randn(*shape, generator=generator)


def gamma_kl(a: Tensor, b: Tensor, prior_a: Tensor, prior_b: Tensor) -> Tensor:
    """KL(Gamma(a, b) ‖ Gamma(a₀, b₀)) with rates b."""
    shape = (a - prior_a) * torch.digamma(a) - torch.lgamma(a) + torch.lgamma(prior_a)
    return shape + prior_a * (b / prior_b).log() + a * (prior_b / b - 1)


class GammaPrior(KeepsSettings, EnergyPrior):
    """MN(0, I/τ_r, I/τ_c) with Gamma priors and Gamma posteriors on both precisions [LW16, §4.1].

    ``conjugate=True`` uses the optimal posteriors, which are Gamma with shape a₀ + RC/2 and rates that solve
    b_r = b₀ + ½ E[τ_c] E‖W‖² and b_c = b₀ + ½ E[τ_r] E‖W‖² at once: both are the root of b² − b₀ b − ½ a E‖W‖² = 0.
    ``conjugate=False`` learns the four parameters by gradient, as the paper does.

    Differs from the paper: conjugate is the default; it is the point that the gradient would converge to.
    """

    SETTINGS = ("concentration", "rate")
    log_concentration: nn.Parameter | None
    log_rate: nn.Parameter | None

    def __init__(
        self, concentration: float = 1.0, rate: float = 0.5, *, conjugate: bool = True, batch_shape: Sequence[int] = ()
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

    def posterior(self, energy: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Concentrations and rates of q(τ_r) and q(τ_c), [..., 2], for RC = ``size`` weights at E‖W‖² = ``energy``."""
        if self.log_concentration is not None and self.log_rate is not None:
            return self.log_concentration.exp(), self.log_rate.exp()
        a = torch.full_like(energy, self.concentration + 0.5 * size)
        b = 0.5 * (self.rate + (self.rate**2 + 2 * a * energy).sqrt())  # optimal: the bound's slope by it is zero
        return torch.stack([a, a], -1), torch.stack([b, b], -1)

    def kl_of_energy(self, energy: Tensor, size: int) -> Tensor:
        """[LW16, eq. 4] in expectation over both precisions, and the divergences of their own posteriors."""
        if self.conjugate:
            return super().kl_of_energy(energy, size)
        a, b = self.posterior(energy, size)
        log_tau = torch.digamma(a) - b.log()
        own = gamma_kl(a, b, a.new_tensor(self.concentration), b.new_tensor(self.rate))
        return 0.5 * ((a / b).prod(-1) * energy - size) + (own - 0.5 * size * log_tau).sum(-1)

    def coefficients(self, size: int) -> Coefficients | None:
        if not self.conjugate:
            return None
        prior_a, a = self.concentration, self.concentration + 0.5 * size
        # gamma_kl twice, with the digamma terms cancelled against those of E log τ
        own = 2 * (math.lgamma(prior_a) - math.lgamma(a) - prior_a * math.log(self.rate) - a)
        return Coefficients(0.0, a, self.rate, own - 0.5 * size)

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        leading = (*shape[:-2], 1, 1)
        a = torch.full(leading, self.concentration)
        tau_row, tau_column = (torch._standard_gamma(a, generator=generator) / self.rate for _ in range(2))
        return torch.randn(*shape, generator=generator) / (tau_row * tau_column).sqrt()


class FixedPrior(Prior):
    """Any matrix Gaussian MN(M₀, U₀, V₀) with diagonal covariances, such as the posterior of earlier data."""

    loc: Tensor
    row_scale: Tensor
    column_scale: Tensor

    def __init__(self, loc: Tensor, row_scale: Tensor, column_scale: Tensor) -> None:
        super().__init__()
        for name, value in (("loc", loc), ("row_scale", row_scale), ("column_scale", column_scale)):
            if name != "loc" and not (torch.isfinite(value) & (value > 0)).all():
                raise ValueError(f"{name} must be positive and finite; its smallest entry is {value.min().item():g}")
            self.register_buffer(name, value.detach().clone())

    @property
    def distribution(self) -> MatrixNormal:
        """The prior as a distribution."""
        U, V = Diagonal(self.row_scale, validate=False), Diagonal(self.column_scale, validate=False)
        return MatrixNormal(self.loc, U, V, validate_args=False)

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        loc = torch.zeros_like(self.loc) if M is None else M
        return kl_divergence(MatrixNormal(loc, U, V, validate_args=False), self.distribution)

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.distribution.transform_noise(torch.randn(*shape, generator=generator))


# -- pseudo-data ------------------------------------------------------------------------------------------------------

_C1, _C2, _C3 = 1.16145124, -1.50204118, 0.58629921  # as in csrc/divergence.hpp


def log_uniform_kl(log_scale: Tensor, max_scale: float | Tensor) -> Tensor:
    """KL of one entry's multiplicative Gaussian to the log-uniform prior, zero at √α = ``max_scale``.

    −KL ≈ const + ½ log α + c₁α + c₂α² + c₃α³ for the posterior mean·(1 + √α ε), α <= 1 (Kingma et al. 2015, eq. 14).

    Args:
        log_scale: log √α, any shape.
        max_scale: the bound on √α, at most 1, where the cubic fit ends; one number or broadcastable to log_scale.
    """
    kl: Tensor = log_uniform_at_bound(max_scale) - _negative_log_uniform(torch.exp(2 * log_scale), log_scale)
    return kl


def _negative_log_uniform(alpha: Any, log_scale: Any) -> Any:
    return alpha * (_C1 + alpha * (_C2 + alpha * _C3)) + log_scale


def log_uniform_at_bound(max_scale: float | Tensor) -> Any:
    """The constant that makes the divergence zero at √α = ``max_scale``, a number or a tensor as this is."""
    log_scale = max_scale.log() if isinstance(max_scale, Tensor) else math.log(max_scale)
    return _negative_log_uniform(max_scale**2, log_scale)


def pseudo_data_kl(
    log_noise: Tensor, log_point_noise: Tensor | None, sizes: tuple[int, int, int], max_noise: float | Tensor
) -> Tensor:
    """KL of q(Ã) and q(B̃) to their log-uniform priors, summed over entries; [*batch_shape].

    Args:
        log_noise: log √α of pseudo-inputs and pseudo-outputs [..., 2], or the dimensions' factors [..., R+C].
        log_point_noise: the points' factors [..., P].
        sizes: P, R and C.
        max_noise: bound on √α, [*batch_shape] where replicas differ.
    """
    P, R, C = sizes
    bound = max_noise.to(log_noise).unsqueeze(-1) if isinstance(max_noise, Tensor) else max_noise
    if log_point_noise is None:
        inputs, outputs = log_uniform_kl(log_noise, bound).unbind(-1)
        return P * (R * inputs + C * outputs)
    log_scale = log_point_noise.unsqueeze(-1) + log_noise.unsqueeze(-2)  # [..., P, R+C]
    return log_uniform_kl(log_scale, bound.unsqueeze(-1) if isinstance(bound, Tensor) else bound).sum((-2, -1))
