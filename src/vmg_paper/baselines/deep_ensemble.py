"""Deep ensembles (Lakshminarayanan et al. 2017): several plain networks, each with a variance of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vmg.estimators.pseudo_data.base import Array
from vmg.likelihoods import Likelihood
from vmg_paper.baselines.base import BaselineRegressor, GaussianComponents
from vmg_paper.baselines.max_likelihood import MaximumLikelihood

__all__ = ["DeepEnsembleRegressor", "LearnedVarianceLikelihood"]

MIN_VARIANCE = 1e-6  # of the standardised target, as in the source


class LearnedVarianceLikelihood(Likelihood):
    """y_c ~ N(f_c, softplus(g_c) + 10⁻⁶) for outputs [f, g] of the network (Lakshminarayanan et al. 2017, eq. 1)."""

    def __init__(self, n_outputs: int = 1) -> None:
        super().__init__()
        self.n_outputs, self.n_network_outputs = n_outputs, 2 * n_outputs

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [..., B, C]."""
        if f.shape[-1] != self.n_network_outputs:
            raise ValueError(
                f"the network must have {self.n_network_outputs} outputs, a mean and a variance for each target; "
                f"got {f.shape[-1]}"
            )
        mean, g = f[..., : self.n_outputs], f[..., self.n_outputs :]
        return mean, torch.nn.functional.softplus(g) + MIN_VARIANCE

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, variance = self._split(f)
        if mean.shape != y.shape:
            raise ValueError(f"y must have the shape of the network's mean, {tuple(mean.shape)}; got {tuple(y.shape)}")
        return -0.5 * (variance.log() + (y - mean).square() / variance + math.log(2 * math.pi)).sum(-1)

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and (infinite) degrees of freedom of p(y | f)."""
        mean, variance = self._split(f)
        return mean, variance.sqrt(), torch.full_like(mean, math.inf)


class DeepEnsembleRegressor(GaussianComponents, MaximumLikelihood, BaselineRegressor):
    """Five networks from different starts; the prediction is the mixture of their Gaussians.

    Differs from the source: no adversarial training, which it calls optional; early stopping on held-out training rows
    in place of a fixed number of epochs; the predictive density is the mixture, not one Gaussian with its moments.

    Parameters
    ----------
    n_members : int
        Networks, trained as one batched network.
    """

    _not_mine = MaximumLikelihood._not_mine | {"noise", "noise_prior"}

    def __init__(self, hidden_layer_sizes: int | Sequence[int] = (50,), *, n_members: int = 5, **options: Any) -> None:
        super().__init__(hidden_layer_sizes, n_members=n_members, **options)

    def _n_network_outputs(self) -> int:
        return 2 * self.n_outputs_

    def _make_likelihood(self, n_steps: int, units: Array) -> Likelihood:
        return LearnedVarianceLikelihood(self.n_outputs_)
