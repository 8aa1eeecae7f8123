"""A linear output layer with Gaussian noise, integrated out in closed form [LW16, §2.3].

Given features Φ [N, D] of the rows, the output layer is Bayesian linear regression: weights W [D, C] have the prior
MN(0, diag(a)⁻¹, Λ⁻¹), the noise of the C outputs has the precision Λ, and Λ a Gamma prior for each output or a Wishart
prior for all (footnote 2 of the paper). With row weights ω as repeated rows,

    A = diag(a) + ΦᵀωΦ,   m = A⁻¹Φᵀωy,   S = Ψ₀ + (y − Φm)ᵀω(y − Φm) + mᵀ diag(a) m,
    log p(y | Φ) = ½C Σ log a − ½C log|A| + [normaliser of the Wishart prior over that of the posterior].

W is integrated out, and so is Λ: the predictive distribution is a Student t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.math.linalg import cholesky, cholesky_logdet

__all__ = [
    "GaussianWeights",
    "LinearPosterior",
    "NoisePrior",
    "RowStatistics",
    "condition",
    "condition_on_rows",
    "group_precision",
    "log_evidence",
    "log_evidence_of_statistics",
    "log_precision_prior",
    "row_statistics",
]


@dataclass(frozen=True)
class NoisePrior:
    """Gamma(concentration, rate) of each output's noise precision, or with ``full`` the Wishart that extends it.

    The Wishart has 2 concentration + C − 1 degrees of freedom and scale matrix (2 rate I)⁻¹. For one output both are
    the same distribution. The rate may be a tensor [..., C], one for each output.
    """

    concentration: float = 1.0
    rate: float | Tensor = 1e-3
    full: bool = False

    def __post_init__(self) -> None:
        for name in ("concentration", "rate"):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be positive and finite; got {value}")

    def degrees(self, n_outputs: int) -> float:
        """Degrees of freedom of the Wishart, ν₀."""
        return 2 * self.concentration + (n_outputs - 1 if self.full else 0)

    def scatter(self, like: Tensor) -> Tensor:
        """S₀ of the prior as a matrix [..., C, C], or its diagonal [..., C], for a tensor ``like`` [..., C]."""
        diagonal = (2 * self.rate * torch.ones_like(like)).to(like.dtype)
        return torch.diag_embed(diagonal) if self.full else diagonal


PRECISION_SPREAD = 4.0  # prior standard deviation of a log precision


def group_precision(log_precision: Tensor, group_sizes: Sequence[int]) -> Tensor:
    """a [..., D] from the log precision [..., G] of each group of consecutive features."""
    sizes = torch.tensor(group_sizes, device=log_precision.device)
    return log_precision.exp().repeat_interleave(sizes, -1, output_size=sum(group_sizes))


def log_precision_prior(log_precision: Tensor) -> Tensor:
    """Log prior N(0, 4²) of log precisions [..., G], up to a constant: [...]."""
    return -0.5 * (log_precision / PRECISION_SPREAD).square().sum(-1)


class RowStatistics(NamedTuple):
    """Sums over rows that say everything about them: statistics of two sets of rows add up."""

    gram: Tensor  # ΦᵀωΦ, [..., D, D]
    moment: Tensor  # Φᵀωy, [..., D, C]
    square: Tensor  # yᵀωy, [..., C, C]
    n_rows: Tensor  # Σω, [...]


def row_statistics(features: Tensor, y: Tensor, weight: Tensor | None = None) -> RowStatistics:
    """Sum over the rows of features [..., N, D] and targets y [..., N, C] with weights [..., N]."""
    weighted = features if weight is None else features * weight.unsqueeze(-1)
    weighted_y = y if weight is None else y * weight.unsqueeze(-1)
    count = features.new_full(features.shape[:-2], features.shape[-2]) if weight is None else weight.sum(-1)
    return RowStatistics(weighted.mT @ features, (y.mT @ weighted).mT, y.mT @ weighted_y, count)


@dataclass(frozen=True)
class GaussianWeights:
    """Gaussian output weights: their ``mean`` and ``root``, lower Cholesky factors of their precisions, [..., D, D]."""

    mean: Tensor
    root: Tensor

    @cached_property
    def covariance(self) -> Tensor:
        """The inverses of the precisions, [..., D, D]."""
        return torch.cholesky_inverse(self.root)

    def variance(self, features: Tensor) -> Tensor:
        """φᵀA⁻¹φ of each row, [..., N]."""
        return torch.linalg.solve_triangular(self.root, features.mT, upper=False).square().sum(-2)

    def divergence(self, prior_precision: Tensor) -> Tensor:
        """KL to weights N(0, diag(a)⁻¹) of each function, [...]; a [..., D]."""
        weights = self.mean if self.mean.dim() == self.root.dim() else self.mean.unsqueeze(-1)  # [..., D, C]
        logdet = prior_precision.log().sum(-1) - cholesky_logdet(self.root)
        trace = (prior_precision * self.covariance.diagonal(dim1=-2, dim2=-1)).sum(-1) - weights.shape[-2]
        mahalanobis = (prior_precision * weights.square().sum(-1)).sum(-1)
        return 0.5 * (weights.shape[-1] * (trace - logdet) + mahalanobis)

    def weight_noise(self, noise: Tensor) -> Tensor:
        """The root of the covariance times standard normal noise [..., D, K]: a draw of the weights around the mean."""
        return torch.linalg.solve_triangular(self.root.mT, noise, upper=True)


@dataclass(frozen=True)
class LinearPosterior(GaussianWeights):
    """Posterior of W and of the noise: W | Λ ~ MN(m, A⁻¹, Λ⁻¹), Λ ~ Wishart(ν, S⁻¹) or Gammas.

    Parameters
    ----------
    mean : m, [..., D, C]
    root : lower Cholesky factor of A, [..., D, D]; draws, variances and covariances are in units of the noise's scale
    degrees : ν, [...]
    scatter : S, [..., C, C], or its diagonal [..., C] where outputs have noise of their own
    """

    degrees: Tensor
    scatter: Tensor

    @property
    def full(self) -> bool:
        """Whether the noise of the outputs is correlated."""
        return self.scatter.dim() == self.mean.dim()

    @property
    def noise_variance(self) -> Tensor:
        """Squared scale of the predictive Student t where the features' weights are known, [..., C]: S/ν."""
        diagonal = self.scatter.diagonal(dim1=-2, dim2=-1) if self.full else self.scatter
        return diagonal / self.t_degrees.unsqueeze(-1)

    @property
    def t_degrees(self) -> Tensor:
        """Degrees of freedom of the predictive Student t of an output, [...]."""
        return self.degrees - (self.mean.shape[-1] - 1) if self.full else self.degrees

    @property
    def noise_precision(self) -> Tensor:
        """E[Λ], [..., C, C] or, for outputs with noise of their own, its diagonal [..., C]."""
        if not self.full:
            return self.degrees.unsqueeze(-1) / self.scatter
        inverse = torch.cholesky_inverse(cholesky(self.scatter))
        return self.degrees[..., None, None] * inverse

    def relative_covariance(self, features: Tensor) -> Tensor:
        """ΦA⁻¹Φᵀ, [..., N, N]: the covariance between rows in units of the noise's variance."""
        half = torch.linalg.solve_triangular(self.root, features.mT, upper=False)
        return half.mT @ half


def condition(rows: RowStatistics, prior_precision: Tensor, prior: NoisePrior) -> LinearPosterior:
    """Condition the output layer on rows, known by their statistics; take these in double precision.

    A row of targets that the features explain to many digits leaves S as a small difference of large numbers.
    """
    A = rows.gram + torch.diag_embed(prior_precision.expand(rows.gram.shape[:-1]))
    root = cholesky(A)
    mean = torch.cholesky_solve(rows.moment, root)
    residual = rows.square - mean.mT @ rows.moment
    squares = 0.5 * (residual + residual.mT) if prior.full else residual.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
    return _posterior(mean, root, rows.n_rows, squares, prior)


def _posterior(mean: Tensor, root: Tensor, n_rows: Tensor, squares: Tensor, prior: NoisePrior) -> LinearPosterior:
    """The posterior from S without the prior's share: ``squares`` [..., C, C], or its diagonal [..., C]."""
    scatter = squares + prior.scatter(mean[..., 0, :])
    return LinearPosterior(mean, root, prior.degrees(mean.shape[-1]) + n_rows, scatter)


def condition_on_rows(
    features: Tensor, y: Tensor, weight: Tensor, prior_precision: Tensor, prior: NoisePrior
) -> tuple[LinearPosterior, Tensor, Tensor]:
    """The same as :func:`condition` from rows, with the residuals [..., N, C]: S is then exact in single precision.

    The last are the features times their weights, ωΦ.
    """
    weighted = features * weight.unsqueeze(-1)
    A = weighted.mT @ features
    A.diagonal(dim1=-2, dim2=-1).add_(prior_precision)
    root = cholesky(A)
    mean = torch.cholesky_solve((y.mT @ weighted).mT, root)  # several times as fast as weightedᵀy for one output
    residual = y - (mean.mT @ features.mT).mT
    weighted_residual, shrunk = residual * weight.unsqueeze(-1), prior_precision.unsqueeze(-1) * mean
    if prior.full:
        squares = residual.mT @ weighted_residual + mean.mT @ shrunk
    else:
        squares = (residual * weighted_residual).sum(-2) + (shrunk * mean).sum(-2)
    return _posterior(mean, root, weight.sum(-1), squares, prior), residual, weighted


def _log_normaliser(degrees: Tensor, scatter: Tensor, full: bool) -> Tensor:
    """log of the integral over Λ of |Λ|^((ν − C − 1)/2) exp(−½ tr ΛS), or of its diagonal form; [...]."""
    half, n_outputs = 0.5 * degrees, scatter.shape[-1]
    if full:
        logdet = cholesky_logdet(torch.linalg.cholesky(scatter))
        return torch.special.multigammaln(half, n_outputs) + half * (n_outputs * math.log(2) - logdet)
    return n_outputs * torch.lgamma(half) + half * (n_outputs * math.log(2) - scatter.log().sum(-1))


def _log_density(posterior: LinearPosterior, prior_precision: Tensor, count: Tensor, prior: NoisePrior) -> Tensor:
    """log p(y | Φ) from the posterior that these targets lead to, [...]."""
    n_outputs, degrees = posterior.mean.shape[-1], posterior.degrees
    start = torch.full_like(degrees, prior.degrees(n_outputs))
    before = _log_normaliser(start, prior.scatter(posterior.mean[..., 0, :]), prior.full)
    after = _log_normaliser(degrees, posterior.scatter, prior.full)
    shrinkage = 0.5 * n_outputs * (prior_precision.log().sum(-1) - cholesky_logdet(posterior.root))
    return shrinkage + after - before - 0.5 * n_outputs * count * math.log(2 * math.pi)


class _LogEvidence(torch.autograd.Function):
    """log p(y | Φ) with its gradient written out: ω(y − Φm)E[Λ]mᵀ − C ωΦA⁻¹ for Φ.

    W and Λ are at their optimum, so neither passes a gradient on (the envelope theorem): nothing is differentiated
    through the Cholesky factor.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, prior_precision: Tensor, y: Tensor, weight: Tensor, prior: NoisePrior
    ) -> Tensor:
        n_outputs = y.shape[-1]
        posterior, residual, weighted = condition_on_rows(features, y, weight, prior_precision, prior)
        value = _log_density(posterior, prior_precision, weight.sum(-1), prior)

        precision = posterior.noise_precision
        scaled = residual @ precision if prior.full else residual * precision.unsqueeze(-2)
        covariance = posterior.covariance
        mean_precision = posterior.mean @ precision if prior.full else posterior.mean * precision.unsqueeze(-2)
        shrink = (mean_precision * posterior.mean).sum(-1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        of_precision = 0.5 * (n_outputs * (1 / prior_precision - variance) - shrink)
        ctx.save_for_backward(weighted, scaled * weight.unsqueeze(-1), posterior.mean, covariance, of_precision)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weighted, pull, mean, covariance, of_precision = ctx.saved_tensors
        (outer,) = gradients
        factor = outer[..., None, None]  # into the small matrices: features are gone over as few times as can be
        of_features = weighted @ (covariance * (-mean.shape[-1] * factor))
        if mean.shape[-1] == 1:
            of_features.addcmul_(pull, factor * mean.mT)
        else:
            of_features += pull @ (factor * mean.mT)
        return of_features, of_precision * outer[..., None], None, None, None


def log_evidence(
    features: Tensor,
    y: Tensor,
    prior_precision: Tensor,
    *,
    weight: Tensor | None = None,
    prior: NoisePrior | None = None,
) -> Tensor:
    """Log density of all targets with the output weights and the noise integrated out, [...].

    Args:
        features: Φ [..., N, D]; a column of ones for the bias is the caller's business.
        y: [..., N, C].
        prior_precision: a [..., D], in units of the noise's precision.
        weight: of each row, [..., N]; a row of weight 2 counts as two.
        prior: of the noise.

    The gradient reaches ``features`` and ``prior_precision``.
    """
    if y.shape[-2] != features.shape[-2]:
        raise ValueError(f"y must have {features.shape[-2]} rows, as features has; got shape {tuple(y.shape)}")
    batch = features.shape[:-2]
    y = y.expand(*batch, *y.shape[-2:])
    ones = features.new_ones(()) if weight is None else weight
    weight = ones.expand(*batch, features.shape[-2])
    precision = prior_precision.expand(*batch, features.shape[-1])
    return _LogEvidence.apply(features, precision, y, weight, prior or NoisePrior())


def log_evidence_of_statistics(rows: RowStatistics, prior_precision: Tensor, prior: NoisePrior) -> Tensor:
    """The same as :func:`log_evidence` from statistics in double precision; differentiable in ``prior_precision``."""
    precision = prior_precision.expand(rows.gram.shape[:-1])
    return _log_density(condition(rows, precision, prior), precision, rows.n_rows, prior)
