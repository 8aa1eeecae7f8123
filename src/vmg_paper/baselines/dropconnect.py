"""DropConnect (Wan et al. 2013): weights dropped in training, moment-matched Gaussians averaged at test time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vmg.fit.variational import Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.fit.variational.search import per_replica
from vmg.nn.mlp import MLP, Activation
from vmg.prediction import draw_functions
from vmg_paper.baselines.base import Baseline, LayerNetworks, Place
from vmg_paper.baselines.held_out_search import HeldOutSearch, candidate_rates
from vmg_paper.layers.deterministic import DeterministicLinear, PointLinear
from vmg_paper.layers.dropconnect import DropConnectLinear

__all__ = ["DropConnect"]


@dataclass(frozen=True)
class DropConnect(Baseline):
    """Weights of every layer but the last are dropped, as in the source, where the last one is an ordinary softmax."""

    rate: float | str = "auto"
    """Probability that a weight is dropped; "auto" tries a grid on held-out training rows."""
    matched: bool = False
    """Gaussians with the moments over masks instead of a mask for each row: for wide layers."""
    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def layer(n_in: int, n_out: int, place: Place, choices: Sequence[float]) -> PointLinear:
            batch_shape = (len(choices),)
            if place.last:
                return DeterministicLinear(n_in, n_out, precision=self.precision, batch_shape=batch_shape)
            return DropConnectLinear(
                n_in,
                n_out,
                rate=per_replica(choices),
                matched=self.matched,
                precision=self.precision,
                batch_shape=batch_shape,
            )

        search = HeldOutSearch(candidate_rates(self.rate))
        return Method(LayerNetworks(hidden, activation, layer), likelihood, search, evaluate=_mean_of_draws)


def _mean_of_draws(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Draws from the matched Gaussians, averaged before the softmax (Wan et al. 2013, algorithm 2)."""
    return draw_functions(network, x, n_draws, seed).mean(0, keepdim=True)
