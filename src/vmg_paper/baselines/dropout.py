"""Dropout (Srivastava et al. 2014): noise in training, the mean network at test time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vmg.fit.variational import Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.fit.variational.search import per_replica
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place, mean_function
from vmg_paper.baselines.held_out_search import HeldOutSearch, candidate_rates
from vmg_paper.layers.dropout import DropoutLinear

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout(Baseline):
    """Inputs of every layer but the first are dropped, those of the first with a rate of their own."""

    rate: float | str = "auto"
    """Probability that an input is dropped; "auto" tries a grid on held-out training rows."""
    input_rate: float = 0.0
    """Probability that an input of the network is dropped; 0.2 in the source for images."""
    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[float]) -> DropoutLinear:
            rate = self.input_rate if place.first else per_replica(choices)
            return DropoutLinear(n_in, n_out, rate=rate, precision=self.precision, batch_shape=(len(choices),))

        search = HeldOutSearch(candidate_rates(self.rate))
        return Method(LayerNetworks(hidden, activation, layer), likelihood, search, evaluate=mean_function)
