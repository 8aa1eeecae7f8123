"""Maximum likelihood: an ordinary network, stopped early on held-out training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vmg.fit.variational import Given, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place, mean_function
from vmg_paper.layers.deterministic import DeterministicLinear

__all__ = ["MaximumLikelihood"]


@dataclass(frozen=True)
class MaximumLikelihood(Baseline):
    """Ordinary layers; early stopping is on, as nothing else keeps the network from fitting the noise."""

    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay; 0 is maximum likelihood."""

    defaults: ClassVar[dict[str, Any]] = {"early_stopping": True}

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> DeterministicLinear:
            return DeterministicLinear(n_in, n_out, precision=self.precision, batch_shape=(len(choices),))

        return Method(LayerNetworks(hidden, activation, layer), likelihood, Given(), evaluate=mean_function)
