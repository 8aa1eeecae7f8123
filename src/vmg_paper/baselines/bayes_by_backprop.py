"""Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vmg.fit.variational import Method
from vmg.fit.variational.fitter import equal_kl_weights
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place
from vmg_paper.baselines.held_out_search import HeldOutSearch
from vmg_paper.layers.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture

__all__ = ["PRIORS", "BayesByBackprop", "geometric_kl_weights"]


def geometric_kl_weights(n_batches: int) -> list[float]:
    """π_i = 2^(M−i)/(2^M − 1), the share of the KL that batch i of an epoch's M bears (Blundell et al. 2015, §3.4).

    Early batches are led by the prior, late ones by the data. They sum to one.
    """
    if n_batches < 1:
        raise ValueError(f"n_batches must be at least 1; got {n_batches}")
    whole = -math.expm1(-n_batches * math.log(2))  # 1 − 2^−M: 2^M itself would overflow
    return [math.ldexp(1.0, -i) / whole for i in range(1, n_batches + 1)]


PRIORS = tuple(
    ScaleMixture(share, 1.0, narrow) for narrow in (math.exp(-3), math.exp(-6)) for share in (0.75, 0.5, 0.25)
)
"""Priors that are tried: the source's π, with two s₂ that for fifty inputs span its e⁻⁸ to e⁻⁶ of plain weights."""


@dataclass(frozen=True)
class BayesByBackprop(Baseline):
    """Factorised Gaussian weights drawn once a batch, with a scale mixture prior."""

    mixture: tuple[float, float, float] | str = "auto"
    """π, s₁ and s₂ of the prior π N(0, s₁²) + (1 − π) N(0, s₂²); "auto" tries :data:`PRIORS` on held-out training
    rows, as the source chooses them."""
    geometric_kl: bool = False
    """Let the first batches of an epoch bear most of the KL divergence, 2^(M−i)/(2^M − 1), instead of all the same."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[ScaleMixture]) -> BayesByBackpropLinear:
            return BayesByBackpropLinear(n_in, n_out, prior=choices, batch_shape=(len(choices),))

        weights = _weights_of_batches if self.geometric_kl else equal_kl_weights
        search = HeldOutSearch(self._priors())
        return Method(LayerNetworks(hidden, activation, layer), likelihood, search, kl_weights=weights)

    def _priors(self) -> tuple[ScaleMixture, ...]:
        if not isinstance(self.mixture, str):
            return (ScaleMixture(*self.mixture),)
        if self.mixture != "auto":
            raise ValueError(f"mixture must be (share, wide, narrow) or 'auto'; got {self.mixture!r}")
        return PRIORS


def _weights_of_batches(n_batches: int) -> list[float]:
    """The objective gives every batch the share 1/M of the KL; M π_i makes it π_i."""
    return [n_batches * share for share in geometric_kl_weights(n_batches)]
