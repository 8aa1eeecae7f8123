"""Gaussian noise whose size is a second output of the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vmg.likelihoods.base import require_outputs
from vmg.likelihoods.gaussian import GaussianLikelihood
from vmg.math.evidence import NoisePrior

__all__ = ["HeteroscedasticLikelihood"]


class HeteroscedasticLikelihood(GaussianLikelihood):
    """y_c ~ N(f_c, e^{2g_c}/τ_c): noise that depends on the input, through a second half of outputs g.

    g = 0 is constant noise, which the prior of the weights pulls towards; a bounded g, |g| < ``limit``, cannot run
    away where there are no data. Learned from the start, g would explain by noise what the mean has not fitted yet
    and the mean would never be fitted; so g is faded in between the updates ``fade[0]`` and ``fade[1]``.

    Even then rows of little noise outweigh all others in the mean's gradient. ``balance`` β multiplies that gradient
    by (s²/⟨s²⟩)^β, where s = e^g and ⟨⟩ is the mean over the batch: 0 follows the bound, 1 fits the mean as under
    constant noise, and what lies between trades one for the other (after Seitzer et al. 2022, whose β-NLL lacks the
    mean in the denominator; with it the likelihood keeps its weight against the KL). With β > 0 a step follows the
    gradient of *no* objective: the weight is held fixed while the mean's gradient is taken, and no function has both
    parts as its gradient. What :func:`vmg.elbo` then reports is a bound all the same, only not what is climbed.

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
        if f.shape[-1] != self.n_network_outputs:
            raise ValueError(
                f"the network must have {self.n_network_outputs} outputs, a mean and a log scale for each target; "
                f"got {f.shape[-1]}"
            )
        start, stop = self.get_buffer("fade")
        strength = ((self.get_buffer("n_updates") - start) / (stop - start)).clamp(0, 1)
        mean, raw = f[..., : self.n_outputs], f[..., self.n_outputs :]
        return mean, strength * self.limit * torch.tanh(raw / self.limit)

    def _mean_weight(self, log_scale: Tensor) -> Tensor:
        """(s²/⟨s²⟩)^β of every row, held fixed where the mean's gradient is taken."""
        square = torch.exp(2 * log_scale)
        return (square / square.mean(-2, keepdim=True)) ** self.balance

    def noise_prior(self) -> NoisePrior:
        raise TypeError("HeteroscedasticLikelihood has noise that differs between rows: it cannot be integrated out")

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, log_scale = self._split(f)
        require_outputs(mean, y, self.n_outputs)
        if self.balance and f.requires_grad:
            fixed = mean.detach()
            mean = fixed + self._mean_weight(log_scale.detach()) * (mean - fixed)  # the same value, another gradient
        return self._expected_log_prob((y - mean) * torch.exp(-log_scale))[0] - log_scale.sum(-1)

    @torch.no_grad()
    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        mean, log_scale = self._split(f)
        require_outputs(mean, y, self.n_outputs)
        super().update_((mean - y) * torch.exp(-log_scale), torch.zeros_like(y), n_data, weight)

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_scale = self._split(f)
        df, scale = self.student()
        return mean, scale.unsqueeze(-2) * torch.exp(log_scale), df.unsqueeze(-2)
