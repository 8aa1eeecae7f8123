"""The fully factorised Gaussian with local reparametrisation, the usual mean field of Bayesian networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vmg.fused.diagonal_kl import Coefficients
from vmg.priors import IsotropicPrior, Prior
from vmg_paper.layers.factorised import FactorisedLinear

__all__ = ["MeanFieldLinear", "isotropic_kl", "sample_local"]


def sample_local(x: Tensor, M: Tensor, S: Tensor, noise: Tensor) -> Tensor:
    """Each output on its own, N(x̂M, x̂² S²) (Kingma, Salimans & Welling 2015, eq. 6); noise [..., B, C]."""
    variance = x.square() @ S.square()
    return x @ M + variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt() * noise  # √ has no slope at 0


def isotropic_kl(energy: Tensor, logdet: Tensor, prior: Coefficients) -> Tensor:
    """KL to a prior that knows a posterior by E = E‖W‖² and its log-determinant only: any Gaussian posterior's KL.

    ½τE − ½ log|Σ| + constant; where the precisions have a conjugate posterior, τ = (a/b)² at its optimum b.
    """
    if not prior.concentration:
        return 0.5 * (prior.precision * energy - logdet) + prior.constant
    a, rate = prior.concentration, prior.rate
    b = 0.5 * (rate + (rate**2 + 2 * a * energy).sqrt())  # b² − rate·b − ½aE = 0
    own = 2 * a * (b.log() + rate / b)
    return 0.5 * ((a / b).square() * energy - logdet) + own + prior.constant


class MeanFieldLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²), drawn through the outputs (Kingma, Salimans & Welling 2015).

    Parameters
    ----------
    in_features, out_features, bias, initial_scale, batch_shape
        As in :class:`~vmg_paper.layers.factorised.FactorisedLinear`.
    prior : Prior, optional
        N(0, 1) for every weight if None, or any prior with ``coefficients``: the priors of the matrix Gaussian layers.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        prior: Prior | None = None,
        initial_scale: float = 0.01,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, initial_scale=initial_scale, batch_shape=batch_shape)
        self.prior = (IsotropicPrior() if prior is None else prior).fresh(self.batch_shape)
        coefficients = self.prior.coefficients(self.n_rows * out_features)
        if coefficients is None:
            raise ValueError(f"prior must be isotropic, or have conjugate precisions; got {self.prior}")
        self._coefficients = coefficients

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        noise = self.draw_noise(*sample_shape, *self.batch_shape, x.shape[-2], self.out_features)
        return sample_local(x, self.loc, self.log_scale.exp(), noise)

    def kl_divergence(self) -> Tensor:
        energy = (self.loc.square() + (2 * self.log_scale).exp()).sum((-2, -1))
        return isotropic_kl(energy, 2 * self.log_scale.sum((-2, -1)), self._coefficients)

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.prior.sample((*sample_shape, *self.loc.shape), self.generator).to(self.loc)
