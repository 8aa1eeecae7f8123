"""Bayes by Backprop (Blundell et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg_paper.baselines.base import BaselineRegressor
from vmg_paper.baselines.held_out_choice import HeldOutChoice
from vmg_paper.layers.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture

__all__ = ["BayesByBackpropClassifier", "BayesByBackpropRegressor", "geometric_kl_weights"]


def geometric_kl_weights(n_batches: int) -> list[float]:
    """π_i = 2^(M−i)/(2^M − 1), the share of the KL that batch i of an epoch's M bears (Blundell et al. 2015, §3.4).

    Early batches are led by the prior, late ones by the data. They sum to one.
    """
    if n_batches < 1:
        raise ValueError(f"n_batches must be at least 1; got {n_batches}")
    whole = -math.expm1(-n_batches * math.log(2))  # 1 − 2^−M: 2^M itself would overflow
    return [math.ldexp(1.0, -i) / whole for i in range(1, n_batches + 1)]


PRIORS = tuple(
    ScaleMixture(share, 1.0, narrow) for narrow in (math.exp(-3), math.exp(-6)) for share in (0.75, 0.5, 0.25)
)
"""Priors that are tried: the source's π, with two s₂ that for fifty inputs span its e⁻⁸ to e⁻⁶ of plain weights."""


class BayesByBackprop(HeldOutChoice):
    """Factorised Gaussian weights drawn once a batch, with a scale mixture prior.

    Parameters
    ----------
    mixture : (float, float, float) or "auto"
        π, s₁ and s₂ of the prior π N(0, s₁²) + (1 − π) N(0, s₂²); "auto" tries :data:`PRIORS` on held-out training
        rows, as the source chooses them.
    geometric_kl : bool
        Let the first batches of an epoch bear most of the KL divergence, 2^(M−i)/(2^M − 1), instead of all the same.
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        mixture: tuple[float, float, float] | str = "auto",
        geometric_kl: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(hidden_layer_sizes, **options)
        self.mixture = mixture
        self.geometric_kl = geometric_kl

    def _priors(self) -> Sequence[ScaleMixture]:
        if isinstance(self.mixture, str):
            if self.mixture != "auto":
                raise ValueError(f"mixture must be (share, wide, narrow) or 'auto'; got {self.mixture!r}")
            return PRIORS
        return (ScaleMixture(*self.mixture),)

    def _tried(self) -> Sequence[float]:
        """Numbers of the priors in their list."""
        return [float(number) for number in range(len(self._priors()))]

    def _make_layer(
        self, in_features: int, out_features: int, *, batch_shape: Sequence[int], rate: float | Tensor, **place: Any
    ) -> BayesByBackpropLinear:
        priors, numbers = self._priors(), torch.as_tensor(rate).reshape(-1).long().tolist()
        chosen = [priors[number] for number in numbers]
        return BayesByBackpropLinear(in_features, out_features, prior=chosen, batch_shape=batch_shape)

    def _kl_weights(self, n_batches: int) -> float | Sequence[float]:
        """The objective gives every batch the share 1/M of the KL; M π_i makes it π_i."""
        return [n_batches * share for share in geometric_kl_weights(n_batches)] if self.geometric_kl else 1.0


class BayesByBackpropRegressor(BayesByBackprop, BaselineRegressor):
    """:class:`PseudoDataRegressor` with Bayes by Backprop."""


class BayesByBackpropClassifier(BayesByBackprop, PseudoDataClassifier):
    """:class:`PseudoDataClassifier` with Bayes by Backprop."""
