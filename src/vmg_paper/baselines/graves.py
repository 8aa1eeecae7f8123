"""Practical variational inference for neural networks (Graves 2011): column "VI" of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vmg.fit.variational import Given, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place
from vmg_paper.layers.graves import GravesLinear

__all__ = ["Graves"]


@dataclass(frozen=True)
class Graves(Baseline):
    """Factorised Gaussian layers with Graves's biased gradient of the variances and his empirical prior."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> GravesLinear:
            return GravesLinear(n_in, n_out, batch_shape=(len(choices),))

        return Method(LayerNetworks(hidden, activation, layer), likelihood, Given())
