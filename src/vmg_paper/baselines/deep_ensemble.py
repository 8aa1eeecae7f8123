"""Deep ensembles (Lakshminarayanan et al. 2017): several plain networks, each with a variance of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vmg.fit.variational import Method
from vmg.fit.variational.likelihood_factories import Array, LikelihoodFactory
from vmg.likelihoods import Likelihood
from vmg.nn.mlp import Activation
from vmg_paper.baselines.base import Baseline
from vmg_paper.baselines.max_likelihood import MaximumLikelihood

__all__ = ["DeepEnsemble", "LearnedVarianceLikelihood"]

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


@dataclass(frozen=True)
class LearnedVariance:
    """A variance for every row, as an output of the network."""

    def n_network_outputs(self, n_targets: int) -> int:
        return 2 * n_targets

    def make(self, n_targets: int, n_steps: int, units: Array, choices: Sequence[Any]) -> Likelihood:
        return LearnedVarianceLikelihood(n_targets)


@dataclass(frozen=True)
class DeepEnsemble(Baseline):
    """Networks from five different starts; the prediction is the mixture of their Gaussians.

    Differs from the source: no adversarial training, which it calls optional; early stopping on held-out training rows
    in place of a fixed number of epochs; the predictive density is the mixture, not one Gaussian with its moments.
    """

    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay."""

    defaults: ClassVar[dict[str, Any]] = {**MaximumLikelihood.defaults, "n_members": 5}

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        plain = MaximumLikelihood(self.precision).method(hidden, activation, likelihood)
        return replace(plain, likelihood=LearnedVariance())
