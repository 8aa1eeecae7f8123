"""Practical variational inference for neural networks (Graves 2011): column "VI" of the paper's Table 1."""

from __future__ import annotations

from dataclasses import dataclass

from vmg.fit.variational import Given, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, layers_of
from vmg_paper.layers.graves import GravesLinear

__all__ = ["Graves"]


@dataclass(frozen=True)
class Graves(Baseline):
    """Factorised Gaussian layers with Graves's biased gradient of the variances and his empirical prior."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        return Method(LayerNetworks(hidden, activation, layers_of(GravesLinear)), likelihood, Given())
