"""Gaussian noise that is correlated between outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vmg.likelihoods.base import Likelihood, batch_mean, require_outputs, student_variance
from vmg.likelihoods.gaussian import LOG_2PI
from vmg.math.evidence import NoisePrior

__all__ = ["FullCovarianceLikelihood"]


class FullCovarianceLikelihood(Likelihood):
    """y ~ N(f, Λ⁻¹): several outputs whose noise is correlated, Wishart posterior on Λ [LW16, footnote 2].

    Prior W(ν₀, Ψ₀⁻¹) with ν₀ = 2a₀ + C − 1 and Ψ₀ = 2b₀I, which for one output is Gamma(a₀, b₀). The optimal
    posterior is W(ν₀ + N, (Ψ₀ + E Σ rrᵀ)⁻¹), r = y − f, reached by natural-gradient steps. Integrating Λ out gives a
    multivariate Student-t.
    """

    def __init__(
        self,
        n_outputs: int,
        *,
        concentration: float = 1.0,
        rate: float = 1e-3,
        step_size: float = 0.02,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not (concentration > 0 and rate > 0):
            raise ValueError(f"concentration and rate must be positive; got {concentration} and {rate}")
        self.n_outputs = self.n_network_outputs = n_outputs
        self.step_size = step_size
        self.prior_df = 2 * concentration + n_outputs - 1
        self.prior_rate = 2 * rate
        self.register_buffer("n_updates", torch.zeros(()))
        self.register_buffer("df", torch.full(tuple(batch_shape), self.prior_df))
        eye = self.prior_rate * torch.eye(n_outputs)
        self.register_buffer("rate_matrix", eye.expand(*batch_shape, n_outputs, n_outputs).clone())  # Ψ

    def extra_repr(self) -> str:
        return f"{self.n_outputs}"

    def noise_prior(self) -> NoisePrior:
        return NoisePrior((self.prior_df - self.n_outputs + 1) / 2, self.prior_rate / 2, full=True)

    def _root(self) -> Tensor:
        return torch.linalg.cholesky(self.get_buffer("rate_matrix"))

    def _expected_logdet(self, root: Tensor) -> Tensor:
        """E log|Λ| = Σ ψ((ν + 1 − i)/2) + C log 2 − log|Ψ|."""
        C = self.n_outputs
        halves = (self.get_buffer("df").unsqueeze(-1) - torch.arange(C, device=root.device)) / 2
        logdet = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.digamma(halves).sum(-1) + C * math.log(2) - logdet

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        require_outputs(f, y, self.n_outputs)
        root = self._root()
        whitened = torch.linalg.solve_triangular(root, (y - f).mT, upper=False)  # [..., C, B]
        df = self.get_buffer("df").clone()  # update_ changes it in place, perhaps before the backward pass
        mahalanobis = df.unsqueeze(-1) * whitened.square().sum(-2)
        return 0.5 * (self._expected_logdet(root).unsqueeze(-1) - self.n_outputs * LOG_2PI - mahalanobis)

    def kl_divergence(self) -> Tensor:
        C, df, root = self.n_outputs, self.get_buffer("df"), self._root()
        logdet = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        prior_logdet = C * math.log(self.prior_rate)
        prior_df = torch.full_like(df, self.prior_df)
        eye = torch.eye(C, dtype=root.dtype, device=root.device)
        inverse_trace = torch.linalg.solve_triangular(root, eye, upper=False).square().sum((-2, -1))
        shape = 0.5 * (df - prior_df) * self._expected_logdet(root)
        trace = 0.5 * df * (self.prior_rate * inverse_trace - C)
        normaliser = (
            0.5 * (df * logdet - prior_df * prior_logdet)
            - 0.5 * (df - prior_df) * C * math.log(2)
            - torch.mvlgamma(df / 2, C)
            + torch.mvlgamma(prior_df / 2, C)
        )
        return shape + trace + normaliser

    @torch.no_grad()
    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        require_outputs(f, y, self.n_outputs)
        count = self.get_buffer("n_updates").add_(1)
        step = torch.clamp_min(1 / count, self.step_size)
        n = torch.as_tensor(n_data, dtype=f.dtype, device=f.device)
        r = y - f
        outer = batch_mean(r.unsqueeze(-1) * r.unsqueeze(-2), weight, -3)  # [..., C, C]
        eye = torch.eye(self.n_outputs, dtype=outer.dtype, device=outer.device)
        target = self.prior_rate * eye + n[..., None, None] * outer
        self.get_buffer("df").lerp_((self.prior_df + n).expand_as(self.get_buffer("df")), step)
        self.get_buffer("rate_matrix").lerp_(target, step)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        df, root = self.student()
        scale = root.square().sum(-1).sqrt().unsqueeze(-2)
        return f, student_variance(scale, df[..., None, None])

    def is_untouched(self) -> bool:
        return not self.get_buffer("n_updates")

    def student(self) -> tuple[Tensor, Tensor]:
        """Degrees of freedom [*batch_shape] and scale factor (lower triangular) of the multivariate Student-t."""
        df = self.get_buffer("df") - self.n_outputs + 1
        return df, self._root() / df[..., None, None].sqrt()
