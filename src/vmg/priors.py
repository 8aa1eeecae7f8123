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
from torch.distributions import Gamma, kl_divergence

from vmg.fused import library
from vmg.math.covariance import Covariance, Diagonal
from vmg.math.matrix_normal import MatrixNormal
from vmg.math.preactivations import diagonal_kl, log_uniform_at_bound
from vmg.settings import KeepsSettings

__all__ = [
    "Coefficients",
    "FixedPrior",
    "GammaPrior",
    "IsotropicPrior",
    "Prior",
    "PseudoNoise",
    "fused_kl",
    "gamma_kl",
]


class Coefficients(NamedTuple):
    """A prior whose KL divergence from a diagonal posterior depends on E = E‖W‖² and the log-determinant only.

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

    @abstractmethod
    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        """A weight matrix [*shape] drawn from the prior, the last two dimensions being R and C."""

    def coefficients(self, size: int) -> Coefficients | None:
        """The short form of the divergence for a matrix of ``size`` = RC entries, where there is one."""
        return None

    def fresh(self, batch_shape: Sequence[int]) -> Prior:
        """A copy for a layer of its own."""
        return self


class _Moments(NamedTuple):
    """What an isotropic prior needs to know of a posterior."""

    energy: Tensor  # E‖W‖² = tr U tr V + ‖M‖²
    logdet: Tensor  # log|V ⊗ U|
    size: int  # RC


class PseudoNoise(NamedTuple):
    """The noise of a layer's pseudo-data, as in :class:`vmg.nn.PseudoData`."""

    n_points: int
    log_noise: Tensor  # [..., 2] or [..., R+C]
    log_point_noise: Tensor | None  # [..., P]
    max_noise: float | Tensor  # [*batch_shape] where replicas differ


class DiagonalKL:
    """The KL divergence of a whole diagonal layer in the compiled kernels, bound to memory.

    :meth:`value` and then :meth:`differentiate` read the tensors where they are; the second reads ``g`` and rewrites
    ``gradients``, which belong to M, log σ_r, log σ_c, and the two logarithms of √α.
    """

    def __init__(
        self,
        native: Any,
        scalars: tuple[Any, ...],
        offset: Tensor | None,
        tensors: Sequence[Tensor | None],
        g: Tensor | None = None,
        gradients: Sequence[Tensor | None] = (None,) * 5,
        results: Tensor | None = None,
    ) -> None:
        log_row = tensors[1]
        assert log_row is not None
        if results is None:  # the divergence, and the precision, tr U and tr V, which its gradient needs
            results = log_row.new_empty(4, *log_row.shape[:-1])
        self._native, self._offset, self.results = native, offset, results
        self._memory = tensors, g, gradients  # the record has addresses only
        first, step = results.data_ptr(), results.element_size() * (results.numel() // 4)
        addresses = (library.address(tensor) for tensor in (*tensors, g, *gradients))
        own = range(first, first + 4 * step, step)
        before = [next(addresses) for _ in tensors]
        self._record = library.DIVERGENCE.pack(*scalars, *before, *own, *addresses)

    def value(self) -> Tensor:
        self._native.divergence(self._record)
        return self.results[0] if self._offset is None else self.results[0] + self._offset

    def differentiate(self) -> None:
        self._native.divergence_backward(self._record)


class LearnedKL(DiagonalKL):
    """The same where the precisions' posteriors are learned.

    The kernels take the divergence with a precision of one. What it really is depends on E‖W‖² alone.
    """

    COEFFICIENTS = Coefficients(1.0, 0.0, 0.0, 0.0)

    def __init__(
        self,
        prior: GammaPrior,
        own_gradients: Sequence[Tensor],
        native: Any,
        scalars: tuple[Any, ...],
        offset: Tensor | None,
        tensors: Sequence[Tensor | None],
        g: Tensor,
        gradients: Sequence[Tensor | None],
    ) -> None:
        super().__init__(native, scalars, offset, tensors, g, gradients)
        self._prior, self._own_gradients = prior, own_gradients
        self._M, self._g, self._size = tensors[0], g, scalars[1] * scalars[2]

    def value(self) -> Tensor:
        of_one = super().value()
        energy = self.results[2] * self.results[3]
        if self._M is not None:
            energy = energy + self._M.square().sum((-2, -1))
        self._energy = energy
        return of_one + self._prior.kl_of_energy(energy, self._size) - 0.5 * energy

    def differentiate(self) -> None:
        precision, found = self._prior.differentiate(self._energy, self._size)
        self.results[1] = precision  # which the kernels' gradient reads there
        for target, gradient in zip(self._own_gradients, found, strict=True):
            torch.mul(gradient, self._g.unsqueeze(-1), out=target)
        super().differentiate()


class _DiagonalKL(Function):
    """:class:`DiagonalKL` as one node."""

    @staticmethod
    def forward(ctx: Any, native: Any, scalars: tuple[Any, ...], offset: Any, *tensors: Tensor | None) -> Tensor:
        divergence = DiagonalKL(native, scalars, offset, library.packed(tensors))
        ctx.native, ctx.scalars = native, scalars
        ctx.save_for_backward(*tensors, divergence.results)
        return divergence.value()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, results = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            wanted = [t for t, need in zip(inputs, ctx.needs_input_grad[3:], strict=True) if need]
            kl = diagonal_kl(ctx.scalars, *inputs)
            found = iter(torch.autograd.grad(kl, wanted, g, create_graph=True, materialize_grads=True))
            return (None, None, None, *(next(found) if need else None for need in ctx.needs_input_grad[3:]))
        tensors = library.packed(inputs)
        gradients = tuple(None if t is None else torch.empty_like(t) for t in tensors)
        DiagonalKL(ctx.native, ctx.scalars, None, tensors, g.contiguous(), gradients, results).differentiate()
        return (None, None, None, *gradients)


def diagonal_kl_scalars(
    coefficients: Coefficients, log_row: Tensor, log_column: Tensor, pseudo: PseudoNoise | None
) -> tuple[tuple[Any, ...], Tensor | None]:
    """What the kernels need besides tensors, and a constant for each replica."""
    batch_shape, R, C = log_row.shape[:-1], log_row.shape[-1], log_column.shape[-1]
    n_points, factored, at_bound, offset = 0, False, 0.0, None
    if pseudo is not None:
        n_points, factored = pseudo.n_points, pseudo.log_point_noise is not None
        if isinstance(pseudo.max_noise, Tensor):
            offset = n_points * (R + C) * log_uniform_at_bound(pseudo.max_noise.to(log_row))
        else:
            at_bound = log_uniform_at_bound(pseudo.max_noise)
    return (batch_shape.numel(), R, C, n_points, factored, *coefficients, at_bound), offset


def fused_kl(
    prior: Prior, M: Tensor | None, log_row: Tensor, log_column: Tensor, pseudo: PseudoNoise | None
) -> Tensor | None:
    """KL of a diagonal layer's weights and pseudo-data in one operation, or None where it must be taken in parts.

    Equal to ``prior.kl_divergence(M, U, V)`` plus the pseudo-data's own.
    """
    noises = (None, None) if pseudo is None else (pseudo.log_noise, pseudo.log_point_noise)
    native = library.native(M, log_row, log_column, *noises)
    coefficients = prior.coefficients(log_row.shape[-1] * log_column.shape[-1])
    if native is None or coefficients is None:
        return None
    scalars = diagonal_kl_scalars(coefficients, log_row, log_column, pseudo)
    return _DiagonalKL.apply(native, *scalars, M, log_row, log_column, *noises)


def _moments(M: Tensor | None, U: Covariance, V: Covariance) -> _Moments:
    R, C = U.n, V.n
    energy = U.trace() * V.trace()
    if M is not None:
        energy = energy + M.square().sum((-2, -1))
    return _Moments(energy, C * U.logdet() + R * V.logdet(), R * C)


def _standard_kl(m: _Moments, tau: float, log_tau: float) -> Tensor:
    """KL(MN(M, U, V) ‖ MN(0, I/τ_r, I/τ_c)) with τ = τ_r τ_c [LW16, eq. 4]."""
    return 0.5 * (tau * m.energy - m.logdet - m.size * (1 + log_tau))


class IsotropicPrior(KeepsSettings, Prior):
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

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        return _standard_kl(_moments(M, U, V), self.scale**-2, -2 * math.log(self.scale))

    def coefficients(self, size: int) -> Coefficients:
        return Coefficients(self.scale**-2, 0.0, 0.0, size * (math.log(self.scale) - 0.5))

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        return self.scale * torch.randn(*shape, generator=generator)


def gamma_kl(a: Tensor, b: Tensor, prior_a: Tensor, prior_b: Tensor) -> Tensor:
    """KL(Gamma(a, b) ‖ Gamma(a₀, b₀)) with rates b."""
    shape = (a - prior_a) * torch.digamma(a) - torch.lgamma(a) + torch.lgamma(prior_a)
    return shape + prior_a * (b / prior_b).log() + a * (prior_b / b - 1)


class _GammaPair(NamedTuple):
    row: Gamma
    column: Gamma


class GammaPrior(KeepsSettings, Prior):
    """MN(0, I/τ_r, I/τ_c) with Gamma priors and Gamma posteriors on both precisions [LW16, §4.1].

    ``conjugate=True`` uses the optimal posteriors, which are Gamma with shape a₀ + RC/2 and rates that solve
    b_r = b₀ + ½ E[τ_c] E‖W‖² and b_c = b₀ + ½ E[τ_r] E‖W‖² at once. Both equal the root of
    b² − b₀ b − ½ a E‖W‖² = 0, so nothing is iterated and nothing is stored.
    ``conjugate=False`` learns the four parameters by gradient, as the paper does.

    Differs from the paper: conjugate is the default; it is the point that the gradient would converge to.
    """

    SETTINGS = ("concentration", "rate")
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
        a = torch.full_like(energy, self.concentration + 0.5 * size)
        b = 0.5 * (self.rate + (self.rate**2 + 2 * a * energy).sqrt())  # optimal: the bound's slope by it is zero
        both = Gamma(a, b, validate_args=False)
        return _GammaPair(both, both)

    def kl_divergence(self, M: Tensor | None, U: Covariance, V: Covariance) -> Tensor:
        m = _moments(M, U, V)
        return self.kl_of_energy(m.energy, m.size) - 0.5 * m.logdet

    def kl_of_energy(self, energy: Tensor, size: int) -> Tensor:
        """The divergence, all but its −½ log|V ⊗ U|, which depends on the weights by E‖W‖² = ``energy`` alone.

        [LW16, eq. 4] in expectation over both precisions, and the divergences of their own posteriors.
        """
        row, column = self._posterior(energy, size)
        log_tau, own = self._log_mean(row), self._own_kl(row)
        if row is column:  # conjugate: both are the same distribution
            log_tau, own = 2 * log_tau, 2 * own
        else:
            log_tau, own = log_tau + self._log_mean(column), own + self._own_kl(column)
        return 0.5 * (row.mean * column.mean * energy - size * (1 + log_tau)) + own

    @torch.no_grad()
    def differentiate(self, energy: Tensor, size: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """E τ_r E τ_c, and the gradients of :meth:`kl_of_energy` by ``log_concentration`` and ``log_rate``."""
        assert self.log_concentration is not None and self.log_rate is not None
        a, b = self.log_concentration.exp(), self.log_rate.exp()
        precision = (a / b).prod(-1)
        fit = (0.5 * precision * energy).unsqueeze(-1)
        shift = a * self.rate / b
        by_log_a = fit + a * (a - self.concentration - 0.5 * size) * torch.polygamma(1, a) + shift - a
        return precision, (by_log_a, 0.5 * size + self.concentration - shift - fit)

    def coefficients(self, size: int) -> Coefficients | None:
        if not self.conjugate:
            return None
        prior_a, a = self.concentration, self.concentration + 0.5 * size
        # gamma_kl twice, with the digamma terms cancelled against those of E log τ
        own = 2 * (math.lgamma(prior_a) - math.lgamma(a) - prior_a * math.log(self.rate) - a)
        return Coefficients(0.0, a, self.rate, own - 0.5 * size)

    @staticmethod
    def _log_mean(q: Gamma) -> Tensor:
        """E log τ."""
        return torch.digamma(q.concentration) - q.rate.log()

    def _own_kl(self, q: Gamma) -> Tensor:
        prior_a, prior_b = (torch.full_like(q.rate, value) for value in (self.concentration, self.rate))
        return gamma_kl(q.concentration, q.rate, prior_a, prior_b)

    def sample(self, shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
        leading = (*shape[:-2], 1, 1)
        a = torch.full(leading, self.concentration)
        tau_row, tau_column = (torch._standard_gamma(a, generator=generator) / self.rate for _ in range(2))
        return torch.randn(*shape, generator=generator) / (tau_row * tau_column).sqrt()


class FixedPrior(Prior):
    """Any matrix Gaussian MN(M₀, U₀, V₀) with diagonal covariances, such as the posterior of earlier data."""

    def __init__(self, loc: Tensor, row_scale: Tensor, column_scale: Tensor) -> None:
        super().__init__()
        for name, scale in (("row_scale", row_scale), ("column_scale", column_scale)):
            if not (torch.isfinite(scale) & (scale > 0)).all():
                raise ValueError(f"{name} must be positive and finite; its smallest entry is {scale.min().item():g}")
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
