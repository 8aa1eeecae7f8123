"""Variational dropout, variant A with the whole KL divergence (Kingma, Salimans & Welling 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import Baseline, BaselineRegressor
from vmg_paper.layers.variational_dropout import VariationalDropoutLinear

__all__ = ["VariationalDropoutClassifier", "VariationalDropoutRegressor"]


class VariationalDropout(Baseline):
    """Gaussian dropout on each layer's inputs, its rate learned."""

    def _make_layer(
        self, in_features: int, out_features: int, *, batch_shape: Sequence[int], **place: Any
    ) -> VariationalDropoutLinear:
        return VariationalDropoutLinear(in_features, out_features, batch_shape=batch_shape)


class VariationalDropoutRegressor(VariationalDropout, BaselineRegressor):
    """:class:`PseudoDataRegressor` with variational dropout."""


class VariationalDropoutClassifier(VariationalDropout, PseudoDataClassifier):
    """:class:`PseudoDataClassifier` with variational dropout."""
