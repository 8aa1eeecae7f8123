"""DropConnect (Wan et al. 2013): weights dropped in training, moment-matched Gaussians averaged at test time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg.prediction import draw_functions
from vmg_paper.baselines.base import BaselineRegressor, MeanNetwork
from vmg_paper.baselines.dropout_rates import ChosenDropoutRate
from vmg_paper.layers.deterministic import DeterministicLinear, PointLinear
from vmg_paper.layers.dropconnect import DropConnectLinear

__all__ = ["DropConnectClassifier", "DropConnectRegressor"]


class DropConnect(ChosenDropoutRate, MeanNetwork):
    """Weights of every layer but the last are dropped, as in the source, where the last one is an ordinary softmax.

    Parameters
    ----------
    matched : bool
        Gaussians with the moments over masks instead of a mask for each row: for wide layers.
    precision : float
        Of a Gaussian prior on the weights, that is, weight decay.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        matched: bool = False,
        precision: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(hidden_layer_sizes, **options)
        self.matched = matched
        self.precision = precision

    def _make_layer(
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: Sequence[int],
        rate: float | Tensor,
        first: bool,
        last: bool,
    ) -> PointLinear:
        if last:
            return DeterministicLinear(in_features, out_features, precision=self.precision, batch_shape=batch_shape)
        return DropConnectLinear(
            in_features,
            out_features,
            rate=rate,
            matched=self.matched,
            precision=self.precision,
            batch_shape=batch_shape,
        )

    def _evaluate(self, x: Tensor, n_draws: int) -> Tensor:
        """Draws from the matched Gaussians, averaged before the softmax (Wan et al. 2013, algorithm 2)."""
        return draw_functions(self.network_, x, n_draws, self.seed_).mean(0, keepdim=True)


class DropConnectRegressor(DropConnect, BaselineRegressor):
    """A network trained with DropConnect, with constant Gaussian noise."""


class DropConnectClassifier(DropConnect, PseudoDataClassifier):
    """A network trained with DropConnect."""
