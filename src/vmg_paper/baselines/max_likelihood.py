"""Maximum likelihood: an ordinary network, stopped early on held-out training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import BaselineRegressor, MeanNetwork
from vmg_paper.layers.deterministic import DeterministicLinear

__all__ = ["MaximumLikelihood", "MaximumLikelihoodClassifier", "MaximumLikelihoodRegressor"]


class MaximumLikelihood(MeanNetwork):
    """Ordinary layers.

    Parameters
    ----------
    precision : float
        Of a Gaussian prior on the weights, that is, weight decay; 0 is maximum likelihood.
    early_stopping : bool
        On by default: nothing else keeps the network from fitting the noise.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        precision: float = 0.0,
        early_stopping: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(hidden_layer_sizes, early_stopping=early_stopping, **options)
        self.precision = precision

    def _make_layer(
        self, in_features: int, out_features: int, *, batch_shape: Sequence[int], **place: Any
    ) -> DeterministicLinear:
        return DeterministicLinear(in_features, out_features, precision=self.precision, batch_shape=batch_shape)


class MaximumLikelihoodRegressor(MaximumLikelihood, BaselineRegressor):
    """A plain network with constant Gaussian noise."""


class MaximumLikelihoodClassifier(MaximumLikelihood, PseudoDataClassifier):
    """A plain network."""
