"""Baselines that are networks of one kind of layer; each is a frozen dataclass whose fields are its settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vmg.likelihoods import Likelihood
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.prediction import draw_functions
from vmg.priors import GammaPrior, IsotropicPrior
from vmg.variational.fitter import Array, LikelihoodFactory, Method
from vmg.variational.recipe import per_replica
from vmg_paper.baselines.base import LayerBaseline, Place, mean_function
from vmg_paper.baselines.held_out_search import HeldOutSearch, candidate_rates
from vmg_paper.layers import (
    BayesByBackpropLinear,
    DeterministicLinear,
    DropConnectLinear,
    DropoutLinear,
    GravesLinear,
    MeanFieldLinear,
    ScaleMixture,
    VariationalDropoutLinear,
)

__all__ = [
    "BayesByBackprop",
    "DeepEnsemble",
    "DropConnect",
    "Dropout",
    "Graves",
    "LearnedVarianceLikelihood",
    "MaximumLikelihood",
    "MeanField",
    "VariationalDropout",
]

WEIGHT_PRIORS = {"gamma": GammaPrior, "isotropic": IsotropicPrior}
MIXTURES = tuple(
    ScaleMixture(share, 1.0, narrow) for narrow in (math.exp(-3), math.exp(-6)) for share in (0.75, 0.5, 0.25)
)
"""Priors that Bayes by Backprop tries: the source's π, with two s₂ that for fifty inputs span its e⁻⁸ to e⁻⁶ of plain
weights."""


@dataclass(frozen=True)
class MeanField(LayerBaseline):
    """Factorised Gaussian posterior with local reparametrisation (Kingma et al. 2015).

    Priors, noise and training are those of the matrix Gaussian.
    """

    prior: str = "gamma"
    """Precisions of the weights learned from data ("gamma"), or fixed at one ("isotropic")."""

    def __post_init__(self) -> None:
        if self.prior not in WEIGHT_PRIORS:
            raise ValueError(f"prior must be one of {tuple(WEIGHT_PRIORS)}; got {self.prior!r}")

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> BayesianLinear:
        return MeanFieldLinear(n_in, n_out, prior=WEIGHT_PRIORS[self.prior](), batch_shape=(len(choices),))


@dataclass(frozen=True)
class Graves(LayerBaseline):
    """Practical variational inference (Graves 2011), column "VI" of the paper's Table 1.

    A factorised Gaussian with his biased gradient of the variances and his empirical prior.
    """

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> BayesianLinear:
        return GravesLinear(n_in, n_out, batch_shape=(len(choices),))


@dataclass(frozen=True)
class BayesByBackprop(LayerBaseline):
    """Factorised Gaussian weights drawn once a batch, with a scale mixture prior (Blundell et al. 2015)."""

    mixture: tuple[float, float, float] | str = "auto"
    """π, s₁ and s₂ of the prior π N(0, s₁²) + (1 − π) N(0, s₂²); "auto" tries :data:`MIXTURES` on held-out training
    rows, as the source chooses them."""

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[ScaleMixture]) -> BayesianLinear:
        return BayesByBackpropLinear(n_in, n_out, prior=choices, batch_shape=(len(choices),))

    def search(self) -> HeldOutSearch:
        if not isinstance(self.mixture, str):
            return HeldOutSearch((ScaleMixture(*self.mixture),))
        if self.mixture != "auto":
            raise ValueError(f"mixture must be (share, wide, narrow) or 'auto'; got {self.mixture!r}")
        return HeldOutSearch(MIXTURES)


@dataclass(frozen=True)
class VariationalDropout(LayerBaseline):
    """Gaussian dropout on each layer's inputs, its noise learned: variant A of Kingma et al. (2015), the whole KL."""

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> BayesianLinear:
        return VariationalDropoutLinear(n_in, n_out, batch_shape=(len(choices),))


@dataclass(frozen=True)
class MaximumLikelihood(LayerBaseline):
    """Ordinary layers; early stopping is on, as nothing else keeps the network from fitting the noise."""

    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay; 0 is maximum likelihood."""

    defaults: ClassVar[dict[str, Any]] = {"early_stopping": True}

    def evaluate(self, network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
        return mean_function(network, x)

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> BayesianLinear:
        return DeterministicLinear(n_in, n_out, precision=self.precision, batch_shape=(len(choices),))


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


def learned_variance(n_targets: int, n_steps: int, units: Array, choices: Sequence[Any]) -> Likelihood:
    """A variance for every row, as an output of the network."""
    return LearnedVarianceLikelihood(n_targets)


@dataclass(frozen=True)
class DeepEnsemble(MaximumLikelihood):
    """Plain networks from five starts, each with a variance of its own (Lakshminarayanan et al. 2017).

    Differs from the source: no adversarial training, which it calls optional; early stopping on held-out training rows
    in place of a fixed number of epochs; the predictive density is the mixture, not one Gaussian with its moments.
    """

    defaults: ClassVar[dict[str, Any]] = {**MaximumLikelihood.defaults, "n_members": 5}

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        return replace(super().method(hidden, activation, likelihood), likelihood=learned_variance)


@dataclass(frozen=True)
class Dropout(LayerBaseline):
    """Noise in training, the mean network at test time (Srivastava et al. 2014).

    Inputs of every layer but the first are dropped, those of the first with a rate of their own.
    """

    rate: float | str = "auto"
    """Probability that an input is dropped; "auto" tries a grid on held-out training rows."""
    input_rate: float = 0.0
    """Probability that an input of the network is dropped; 0.2 in the source for images."""
    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay."""

    def evaluate(self, network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
        return mean_function(network, x)

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[float]) -> BayesianLinear:
        rate = self.input_rate if place.first else per_replica(choices)
        return DropoutLinear(n_in, n_out, rate=rate, precision=self.precision, batch_shape=(len(choices),))

    def search(self) -> HeldOutSearch:
        return HeldOutSearch(candidate_rates(self.rate))


@dataclass(frozen=True)
class DropConnect(LayerBaseline):
    """Weights dropped in training, moment-matched Gaussians averaged at test time (Wan et al. 2013).

    Weights of every layer but the last are dropped, as in the source, where the last one is an ordinary softmax.
    """

    rate: float | str = "auto"
    """Probability that a weight is dropped; "auto" tries a grid on held-out training rows."""
    matched: bool = False
    """Gaussians with the moments over masks instead of a mask for each row: for wide layers."""
    precision: float = 0.0
    """Precision of a Gaussian prior on the weights, that is, weight decay."""

    def evaluate(self, network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
        """Draws from the matched Gaussians, averaged before the softmax (Wan et al. 2013, algorithm 2)."""
        return draw_functions(network, x, n_draws, seed).mean(0, keepdim=True)

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[float]) -> BayesianLinear:
        options: dict[str, Any] = {"precision": self.precision, "batch_shape": (len(choices),)}
        if place.last:
            return DeterministicLinear(n_in, n_out, **options)
        return DropConnectLinear(n_in, n_out, rate=per_replica(choices), matched=self.matched, **options)

    def search(self) -> HeldOutSearch:
        return HeldOutSearch(candidate_rates(self.rate))
