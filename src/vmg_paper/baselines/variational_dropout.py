"""Variational dropout, variant A with the whole KL divergence (Kingma, Salimans & Welling 2015)."""

from __future__ import annotations

from dataclasses import dataclass

from vmg.fit.variational import Given, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, layers_of
from vmg_paper.layers.variational_dropout import VariationalDropoutLinear

__all__ = ["VariationalDropout"]


@dataclass(frozen=True)
class VariationalDropout(Baseline):
    """Gaussian dropout on each layer's inputs, its noise learned."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        return Method(LayerNetworks(hidden, activation, layers_of(VariationalDropoutLinear)), likelihood, Given())
