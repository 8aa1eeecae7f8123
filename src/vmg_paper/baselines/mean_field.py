"""Mean field: a fully factorised Gaussian posterior with local reparametrisation (Kingma et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vmg.fit.variational import Given, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg.priors import GammaPrior, IsotropicPrior
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place
from vmg_paper.layers.mean_field import MeanFieldLinear

__all__ = ["MeanField"]

PRIORS = {"gamma": GammaPrior, "isotropic": IsotropicPrior}


@dataclass(frozen=True)
class MeanField(Baseline):
    """Factorised Gaussian layers; priors, noise and training are those of the matrix Gaussian."""

    prior: str = "gamma"
    """Precisions of the weights learned from data ("gamma"), or fixed at one ("isotropic")."""

    def __post_init__(self) -> None:
        if self.prior not in PRIORS:
            raise ValueError(f"prior must be one of {tuple(PRIORS)}; got {self.prior!r}")

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> MeanFieldLinear:
            return MeanFieldLinear(n_in, n_out, prior=PRIORS[self.prior](), batch_shape=(len(choices),))

        return Method(LayerNetworks(hidden, activation, layer), likelihood, Given())
