"""Dropout (Srivastava et al. 2014): noise in training, the mean network at test time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import BaselineRegressor, MeanNetwork
from vmg_paper.baselines.dropout_rates import ChosenDropoutRate
from vmg_paper.layers.dropout import DropoutLinear

__all__ = ["DropoutClassifier", "DropoutRegressor"]


class Dropout(ChosenDropoutRate, MeanNetwork):
    """Inputs of every layer but the first are dropped, those of the first with a rate of their own.

    Parameters
    ----------
    input_rate : float
        Probability that an input of the network is dropped; 0.2 in the source for images.
    precision : float
        Of a Gaussian prior on the weights, that is, weight decay.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        input_rate: float = 0.0,
        precision: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(hidden_layer_sizes, **options)
        self.input_rate = input_rate
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
    ) -> DropoutLinear:
        return DropoutLinear(
            in_features,
            out_features,
            rate=self.input_rate if first else rate,
            precision=self.precision,
            batch_shape=batch_shape,
        )


class DropoutRegressor(Dropout, BaselineRegressor):
    """A network trained with dropout, with constant Gaussian noise."""


class DropoutClassifier(Dropout, PseudoDataClassifier):
    """A network trained with dropout."""
