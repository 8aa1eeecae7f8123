"""Bayes by Backprop (Blundell et al. 2015): weights drawn once a batch, a scale mixture as their prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vmg_paper.layers.factorised import FactorisedLinear

__all__ = ["BayesByBackpropLinear", "ScaleMixture", "mixture_log_prob"]

LOG_2PI = math.log(2 * math.pi)
EXACT = 40.0  # where log(1 + e^d) is d in double precision


@dataclass(frozen=True)
class ScaleMixture:
    """π N(0, s₁²) + (1 − π) N(0, s₂²) for each weight (Blundell et al. 2015, eq. 7).

    The defaults are the middle of the paper's grid: π = 1/2, s₁ = 1, s₂ = e⁻⁶.
    """

    share: float = 0.5  # π
    wide: float = 1.0  # s₁
    narrow: float = math.exp(-6)  # s₂

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be inside (0, 1); got {self.share}")
        if not 0 < self.narrow < self.wide:
            raise ValueError(f"narrow and wide must be 0 < narrow < wide; got {self.narrow} and {self.wide}")

    def log_prob(self, weight: Tensor) -> Tensor:
        """log p of each entry."""
        share, wide, narrow = (weight.new_tensor(value) for value in (self.share, self.wide, self.narrow))
        return mixture_log_prob(weight, share, wide, narrow)


def mixture_log_prob(weight: Tensor, share: Tensor, wide: Tensor, narrow: Tensor) -> Tensor:
    """log(π N(w; 0, s₁²) + (1 − π) N(w; 0, s₂²)) of each entry.

    As the wide part's logarithm plus log(1 + e^d), d the narrow part's logarithm less the wide one's: d only falls
    with |w|, so that nothing cancels far out, and each entry costs a single exponential.
    """
    square = weight.square()
    log_wide = (share / wide).log() - 0.5 * LOG_2PI - square * (0.5 / wide.square())
    odds = ((1 - share) / narrow).log() - (share / wide).log()
    d = odds - square * (0.5 / narrow.square() - 0.5 / wide.square())
    return log_wide + softplus(d, threshold=EXACT)


class BayesByBackpropLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²), one draw of W for all rows of a batch (Blundell et al. 2015).

    ``kl_divergence`` is a Monte Carlo estimate, log q(W) − log p(W) at the weights that the last ``forward`` drew; it
    may be negative. Differs from Blundell et al.: S is kept as its logarithm, and the prior is of weights whose
    inputs are divided by √R.

    Parameters
    ----------
    in_features, out_features, bias, initial_scale, batch_shape
        As in :class:`~vmg_paper.layers.factorised.FactorisedLinear`.
    prior : ScaleMixture or sequence of them
        Of every weight; replicas of a one-dimensional ``batch_shape`` may have their own.
    scale_rate : float
        How far log S moves from its start when ``log_scale`` moves by one. Adam takes steps of one size in all
        parameters, and carries scales to the prior's wide part long before the means have learned; under the plain
        gradient descent of Blundell et al. scales hardly leave their start. Well below 1 has Adam do as much.
    """

    prior: Tensor
    last_noise: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior: ScaleMixture | Sequence[ScaleMixture] | None = None,
        initial_scale: float = 0.01,
        scale_rate: float = 1.0,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, initial_scale=initial_scale, batch_shape=batch_shape)
        if not 0 <= scale_rate <= 1:
            raise ValueError(f"scale_rate must be in [0, 1]; got {scale_rate}")
        self.scale_rate = scale_rate
        priors = [prior or ScaleMixture()] if prior is None or isinstance(prior, ScaleMixture) else prior
        if len(priors) > 1 and tuple(batch_shape) != (len(priors),):
            raise ValueError(f"prior must be one or one for each replica of {tuple(batch_shape)}; got {len(priors)}")
        values = torch.tensor([astuple(each) for each in priors]).reshape(*([] if len(priors) == 1 else batch_shape), 3)
        self.register_buffer("prior", values.expand(*batch_shape, 3).clone())  # π, s₁, s₂
        self.register_buffer("last_noise", None, persistent=False)  # E of the last draw, W = M + S ⊙ E

    def scale(self) -> Tensor:
        return self._log_scale().exp()

    def _log_scale(self) -> Tensor:
        """log S."""
        if self.scale_rate == 1:
            return self.log_scale
        start = math.log(self.initial_scale)
        return start + self.scale_rate * (self.log_scale - start)

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        self.last_noise = self.draw_noise(*sample_shape, *self.loc.shape)
        return x @ (self.loc + self.scale() * self.last_noise)

    def kl_divergence(self) -> Tensor:
        """log q(W) − log p(W), summed over weights, at the last draw (or, before the first, at a fresh one)."""
        noise = self.draw_noise(*self.loc.shape) if self.last_noise is None else self.last_noise
        log_scale = self._log_scale()
        weight = self.loc + log_scale.exp() * noise
        log_q = -0.5 * (noise.square() + LOG_2PI) - log_scale
        log_p = mixture_log_prob(weight, *self.prior[..., None, None].unbind(-3))
        estimate = (log_q - log_p).sum((-2, -1))
        n_sample = estimate.dim() - len(self.batch_shape)
        return estimate.mean(tuple(range(n_sample))) if n_sample else estimate

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        noise = self.draw_noise(*sample_shape, *self.loc.shape)
        share, wide, narrow = self.prior[..., None, None].unbind(-3)
        is_wide = torch.rand(noise.shape, generator=self.generator, device=noise.device) < share
        return noise * torch.where(is_wide, wide, narrow)
