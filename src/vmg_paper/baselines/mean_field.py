"""Mean field: a fully factorised Gaussian posterior with local reparametrisation (Kingma et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import MATRIX_GAUSSIAN_OPTIONS, Baseline, BaselineRegressor
from vmg_paper.layers.mean_field import MeanFieldLinear

__all__ = ["MeanFieldClassifier", "MeanFieldRegressor"]


class MeanField(Baseline):
    """Factorised Gaussian layers; priors, noise and training are those of the matrix Gaussian."""

    _not_mine = MATRIX_GAUSSIAN_OPTIONS - {"prior"}

    def _make_layer(
        self, in_features: int, out_features: int, *, batch_shape: Sequence[int], **place: Any
    ) -> MeanFieldLinear:
        return MeanFieldLinear(in_features, out_features, prior=self._make_prior(), batch_shape=batch_shape)


class MeanFieldRegressor(MeanField, BaselineRegressor):
    """:class:`PseudoDataRegressor` with factorised Gaussian weights."""


class MeanFieldClassifier(MeanField, PseudoDataClassifier):
    """:class:`PseudoDataClassifier` with factorised Gaussian weights."""
