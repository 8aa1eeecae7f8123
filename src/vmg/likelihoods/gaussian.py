"""Gaussian noise: its precision learned or known, dependent on the input, or correlated between outputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Gamma

from vmg.likelihoods.base import Likelihood, batch_mean, is_positive, require_outputs, student_variance
from vmg.math.evidence import NoisePrior
from vmg.priors import gamma_kl

__all__ = [
    "LOG_2PI",
    "FullCovarianceLikelihood",
    "GaussianLikelihood",
    "HeteroscedasticLikelihood",
    "KnownNoiseLikelihood",
]

LOG_2PI = math.log(2 * math.pi)


class ConjugateLikelihood(Likelihood):
    """A likelihood whose posterior takes natural-gradient steps: of 1/t at first, and at least ``step_size``."""

    step_size: float

    def __init__(self, n_outputs: int, step_size: float) -> None:
        super().__init__()
        self.n_outputs = self.n_network_outputs = n_outputs
        self.step_size = step_size
        self.register_buffer("n_updates", torch.zeros(()))

    def _next_step(self) -> Tensor:
        return torch.clamp_min(1 / self.get_buffer("n_updates").add_(1), self.step_size)

    def is_untouched(self) -> bool:
        return not self.get_buffer("n_updates")


class GaussianLikelihood(ConjugateLikelihood):
    """y_c ~ N(f_c, 1/τ_c) with Gamma prior and Gamma posterior on each output's precision [LW16, §4.1].

    With ``conjugate=True`` the posterior follows natural-gradient steps towards Gamma(a₀ + N/2, b₀ + ½ E Σ(y − f)²);
    with ``False`` its parameters are learned by gradient, as in the paper. Integrating τ out gives a Student-t with
    2a degrees of freedom and squared scale b/a.

    Differs from the paper: conjugate, and a weak prior on the standardised noise, by default. Gamma(6, 6) in y's own
    units sets a floor on the noise, which on targets of small spread is all that the model can say.

    Parameters
    ----------
    n_outputs : int
        Number of targets.
    concentration : float
        a₀ of the prior.
    rate : float or Tensor [*batch_shape, n_outputs]
        b₀ of the prior.
    conjugate : bool
        Whether the posterior follows natural-gradient steps instead of the optimiser.
    step_size : float
        Smallest natural-gradient step; early steps are larger, 1/t.
    batch_shape : sequence of int
        Replicas, as in the layers.
    """

    log_concentration: nn.Parameter
    log_rate: nn.Parameter

    def __init__(
        self,
        n_outputs: int = 1,
        *,
        concentration: float = 1.0,
        rate: float | Tensor = 1e-3,
        conjugate: bool = True,
        step_size: float = 0.02,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(n_outputs, step_size)
        shape = (*batch_shape, n_outputs)
        prior_rate = torch.as_tensor(rate, dtype=torch.get_default_dtype()).expand(shape).clone()
        prior_concentration = torch.full(shape, float(concentration))
        if not (concentration > 0 and is_positive(rate)):
            raise ValueError(f"concentration and rate must be positive; got {concentration} and {rate}")
        self.conjugate = conjugate
        self.register_buffer("prior_concentration", prior_concentration)
        self.register_buffer("prior_rate", prior_rate)
        self.log_concentration = nn.Parameter(prior_concentration.log(), requires_grad=not conjugate)
        self.log_rate = nn.Parameter(prior_rate.log(), requires_grad=not conjugate)

    def extra_repr(self) -> str:
        return f"{self.n_outputs}, conjugate={self.conjugate}"

    @property
    def prior(self) -> Gamma:
        """p(τ), [*batch_shape, n_outputs]."""
        return Gamma(self.get_buffer("prior_concentration"), self.get_buffer("prior_rate"), validate_args=False)

    @property
    def posterior(self) -> Gamma:
        """q(τ), [*batch_shape, n_outputs]."""
        return Gamma(self.log_concentration.exp(), self.log_rate.exp(), validate_args=False)

    def noise_prior(self) -> NoisePrior:
        a, b = self.get_buffer("prior_concentration"), self.get_buffer("prior_rate")
        if b.min() != b.max():
            raise ValueError(f"rate must be the same for all outputs; got {b.tolist()}")
        return NoisePrior(float(a.flatten()[0]), float(b.flatten()[0]))

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        require_outputs(f, y, self.n_outputs)
        return self._expected_log_prob(y - f)

    def _expected_log_prob(self, residual: Tensor) -> Tensor:
        """E log N(residual; 0, 1/τ), [..., B]."""
        tau = (self.log_concentration - self.log_rate).exp().unsqueeze(-2)
        log_tau = (torch.digamma(self.log_concentration.exp()) - self.log_rate).unsqueeze(-2)
        return 0.5 * (log_tau - LOG_2PI - tau * residual.square()).sum(-1)

    def kl_divergence(self) -> Tensor:
        a, b = self.log_concentration.exp(), self.log_rate.exp()
        return gamma_kl(a, b, self.get_buffer("prior_concentration"), self.get_buffer("prior_rate")).sum(-1)

    @torch.no_grad()
    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        require_outputs(f, y, self.n_outputs)
        if not self.conjugate:
            return
        step = self._next_step()
        half_n = 0.5 * torch.as_tensor(n_data, dtype=f.dtype, device=f.device).unsqueeze(-1)
        squares = batch_mean((y - f).square(), weight, -2)  # [*batch_shape, C]
        # the natural parameters of a Gamma are (a − 1, −b): a step towards the target is linear in a and b
        for log_value, target in (
            (self.log_concentration, self.get_buffer("prior_concentration") + half_n),
            (self.log_rate, torch.addcmul(self.get_buffer("prior_rate"), half_n, squares)),
        ):
            log_value.copy_(torch.lerp(log_value.exp(), target, step).log_())

    def posterior_as_prior(self) -> GaussianLikelihood:
        """The same likelihood with its posterior, which holds what earlier rows say about the noise, as its prior.

        Updates are counted anew: the first are large again, so that few steps are enough for new rows to be counted.
        """
        updated = copy.deepcopy(self)
        with torch.no_grad():
            updated.get_buffer("prior_concentration").copy_(self.log_concentration.exp())
            updated.get_buffer("prior_rate").copy_(self.log_rate.exp())
            updated.get_buffer("n_updates").zero_()
        return updated

    def student(self) -> tuple[Tensor, Tensor]:
        """Degrees of freedom and scale of p(y | f) with τ integrated out, each [*batch_shape, n_outputs]."""
        q = self.posterior
        return 2 * q.concentration, (q.rate / q.concentration).sqrt()

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        df, scale = self.student()
        return f, scale.unsqueeze(-2), df.unsqueeze(-2)

    def is_untouched(self) -> bool:
        return self.conjugate and super().is_untouched()


class KnownNoiseLikelihood(Likelihood):
    """y ~ N(f, scale²) with a scale that is given: a number, or a tensor [*batch_shape, 1, outputs] [LW16, §4.3]."""

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        values = torch.atleast_1d(torch.as_tensor(scale, dtype=torch.get_default_dtype()))
        if not is_positive(scale):
            raise ValueError(f"scale must be positive; got {values.min().item():g}")
        self.register_buffer("scale", values)

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        scale = self.get_buffer("scale")
        require_outputs(f, y, f.shape[-1] if scale.numel() == 1 else scale.shape[-1])
        return -0.5 * (((y - f) / scale).square() + LOG_2PI + 2 * scale.log()).sum(-1)

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = self.get_buffer("scale")
        return f, scale, torch.full_like(scale, math.inf)


class HeteroscedasticLikelihood(GaussianLikelihood):
    """y_c ~ N(f_c, e^{2g_c}/τ_c): noise that depends on the input, through a second half of outputs g.

    g = 0 is constant noise, which the prior of the weights pulls towards; a bounded g, |g| < ``limit``, cannot run
    away where there are no data. Learned from the start, g would explain everything that the mean has not fitted yet
    as noise, and the mean would never be fitted; so g is faded in between the updates ``fade[0]`` and ``fade[1]``.

    Even then rows of little noise outweigh all others in the mean's gradient. ``balance`` β multiplies that gradient
    by (s²/⟨s²⟩)^β, where s = e^g and ⟨⟩ is the mean over the batch: 0 follows the objective, 1 fits the mean as under
    constant noise (after Seitzer et al. 2022, whose β-NLL lacks the mean in the denominator; with it the likelihood
    keeps its weight against the KL). With β > 0 steps follow the gradient of *no* objective, as the weight is held
    fixed; :func:`vmg.elbo` still reports the objective.

    Beyond the paper.
    """

    def __init__(
        self,
        n_outputs: int = 1,
        *,
        concentration: float = 1.0,
        rate: float | Tensor = 1e-3,
        step_size: float = 0.02,
        limit: float = 3.0,
        balance: float = 0.0,
        fade: tuple[int, int] = (0, 1),
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(
            n_outputs, concentration=concentration, rate=rate, step_size=step_size, batch_shape=batch_shape
        )
        if not fade[0] < fade[1]:
            raise ValueError(f"fade must be two growing numbers of updates; got {fade}")
        if not 0 <= balance <= 1:
            raise ValueError(f"balance must be in [0, 1]; got {balance}")
        self.n_network_outputs, self.limit, self.balance = 2 * n_outputs, limit, balance
        self.register_buffer("fade", torch.tensor(fade, dtype=torch.get_default_dtype()))

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean f and log scale g, each [..., B, C]."""
        if f.shape[-1] != (n := self.n_network_outputs):
            raise ValueError(f"the network must have {n} outputs, means and then log scales; got {f.shape[-1]}")
        start, stop = self.get_buffer("fade")
        strength = ((self.get_buffer("n_updates") - start) / (stop - start)).clamp(0, 1)
        mean, raw = f[..., : self.n_outputs], f[..., self.n_outputs :]
        return mean, strength * self.limit * torch.tanh(raw / self.limit)

    def noise_prior(self) -> NoisePrior:
        raise TypeError("HeteroscedasticLikelihood has noise that differs between rows: it cannot be integrated out")

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = self._split(f)
        require_outputs(mean, y, self.n_outputs)
        if self.balance and f.requires_grad:
            fixed, square = mean.detach(), torch.exp(2 * log_scale.detach())
            weight = (square / square.mean(-2, keepdim=True)) ** self.balance
            mean = fixed + weight * (mean - fixed)  # the same value, another gradient
        return self._expected_log_prob((y - mean) * torch.exp(-log_scale)) - log_scale.sum(-1)

    @torch.no_grad()
    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        mean, log_scale = self._split(f)
        require_outputs(mean, y, self.n_outputs)
        super().update_((mean - y) * torch.exp(-log_scale), torch.zeros_like(y), n_data, weight)

    def posterior_as_prior(self) -> GaussianLikelihood:
        updated = super().posterior_as_prior()
        updated.get_buffer("fade").sub_(self.get_buffer("n_updates"))
        return updated

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_scale = self._split(f)
        df, scale = self.student()
        return mean, scale.unsqueeze(-2) * torch.exp(log_scale), df.unsqueeze(-2)


class FullCovarianceLikelihood(ConjugateLikelihood):
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
        super().__init__(n_outputs, step_size)
        if not (concentration > 0 and rate > 0):
            raise ValueError(f"concentration and rate must be positive; got {concentration} and {rate}")
        self.prior_df = 2 * concentration + n_outputs - 1
        self.prior_rate = 2 * rate
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
        inverse_trace = torch.cholesky_inverse(root).diagonal(dim1=-2, dim2=-1).sum(-1)
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
        step = self._next_step()
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

    def student(self) -> tuple[Tensor, Tensor]:
        """Degrees of freedom [*batch_shape] and scale factor (lower triangular) of the multivariate Student-t."""
        df = self.get_buffer("df") - self.n_outputs + 1
        return df, self._root() / df[..., None, None].sqrt()
