"""Practical variational inference for neural networks (Graves 2011): column "VI" of the paper's Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import Baseline, BaselineRegressor
from vmg_paper.layers.graves import GravesLinear

__all__ = ["GravesClassifier", "GravesRegressor"]


class Graves(Baseline):
    """Factorised Gaussian layers with Graves's biased gradient of the variances and his empirical prior."""

    def _make_layer(
        self, in_features: int, out_features: int, *, batch_shape: Sequence[int], **place: Any
    ) -> GravesLinear:
        return GravesLinear(in_features, out_features, batch_shape=batch_shape)


class GravesRegressor(Graves, BaselineRegressor):
    """:class:`PseudoDataRegressor` with the variational inference of Graves (2011)."""


class GravesClassifier(Graves, PseudoDataClassifier):
    """:class:`PseudoDataClassifier` with the variational inference of Graves (2011)."""
