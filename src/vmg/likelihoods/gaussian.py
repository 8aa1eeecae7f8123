"""Gaussian noise, the same for all rows: its precision learned, or known."""

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

__all__ = ["LOG_2PI", "GaussianLikelihood", "KnownNoiseLikelihood"]

LOG_2PI = math.log(2 * math.pi)


class GaussianLikelihood(Likelihood):
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
        How the posterior is found.
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
        super().__init__()
        shape = (*batch_shape, n_outputs)
        prior_rate = torch.as_tensor(rate, dtype=torch.get_default_dtype()).expand(shape).clone()
        prior_concentration = torch.full(shape, float(concentration))
        if not (concentration > 0 and is_positive(rate)):
            raise ValueError(f"concentration and rate must be positive; got {concentration} and {rate}")
        self.n_outputs = self.n_network_outputs = n_outputs
        self.conjugate, self.step_size = conjugate, step_size
        self.register_buffer("prior_concentration", prior_concentration)
        self.register_buffer("prior_rate", prior_rate)
        self.register_buffer("n_updates", torch.zeros(()))
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
        return self._expected_log_prob(y - f)[0]

    def _expected_log_prob(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """E log N(residual; 0, 1/τ), [..., B], and E τ, [..., 1, C]."""
        tau = (self.log_concentration - self.log_rate).exp().unsqueeze(-2)
        log_tau = (torch.digamma(self.log_concentration.exp()) - self.log_rate).unsqueeze(-2)
        return 0.5 * (log_tau - LOG_2PI - tau * residual.square()).sum(-1), tau

    def kl_divergence(self) -> Tensor:
        a, b = self.log_concentration.exp(), self.log_rate.exp()
        return gamma_kl(a, b, self.get_buffer("prior_concentration"), self.get_buffer("prior_rate")).sum(-1)

    @torch.no_grad()
    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        require_outputs(f, y, self.n_outputs)
        if not self.conjugate:
            return
        count = self.get_buffer("n_updates").add_(1)
        step = torch.clamp_min(1 / count, self.step_size)
        half_n = 0.5 * torch.as_tensor(n_data, dtype=f.dtype, device=f.device).unsqueeze(-1)
        squares = batch_mean((y - f).square(), weight, -2)  # [*batch_shape, C]
        # the natural parameters of a Gamma are (a − 1, −b): a step towards the target is linear in a and b
        for log_value, target in (
            (self.log_concentration, self.get_buffer("prior_concentration") + half_n),
            (self.log_rate, torch.addcmul(self.get_buffer("prior_rate"), half_n, squares)),
        ):
            log_value.copy_(torch.lerp(log_value.exp(), target, step).log_())

    def posterior_as_prior(self) -> GaussianLikelihood:
        """The same likelihood, its posterior now being its prior: what earlier rows said about the noise."""
        updated = copy.deepcopy(self)
        with torch.no_grad():
            updated.get_buffer("prior_concentration").copy_(self.log_concentration.exp())
            updated.get_buffer("prior_rate").copy_(self.log_rate.exp())
        return updated

    def student(self) -> tuple[Tensor, Tensor]:
        """Degrees of freedom and scale of p(y | f) with τ integrated out, each [*batch_shape, n_outputs]."""
        q = self.posterior
        return 2 * q.concentration, (q.rate / q.concentration).sqrt()

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and degrees of freedom of p(y | f) for f [..., B, n_network_outputs], broadcastable."""
        df, scale = self.student()
        return f, scale.unsqueeze(-2), df.unsqueeze(-2)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale, df = self.components(f)
        return mean, student_variance(scale, df)

    def is_untouched(self) -> bool:
        return self.conjugate and not self.get_buffer("n_updates")


class KnownNoiseLikelihood(Likelihood):
    """y ~ N(f, scale²) with a scale that is given, one number or one for each output [LW16, §4.3]."""

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        values = torch.as_tensor(scale, dtype=torch.get_default_dtype()).reshape(-1)
        if not is_positive(scale):
            raise ValueError(f"scale must be positive; got {values.min().item():g}")
        self.register_buffer("scale", values)

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        scale = self.get_buffer("scale")
        require_outputs(f, y, f.shape[-1] if scale.numel() == 1 else scale.numel())
        return -0.5 * (((y - f) / scale).square() + LOG_2PI + 2 * scale.log()).sum(-1)

    def student(self) -> tuple[Tensor, Tensor]:
        """Infinite degrees of freedom, and the scale."""
        scale = self.get_buffer("scale")
        return torch.full_like(scale, math.inf), scale

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and degrees of freedom of p(y | f)."""
        df, scale = self.student()
        return f, scale, df

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return f, self.get_buffer("scale").square()
