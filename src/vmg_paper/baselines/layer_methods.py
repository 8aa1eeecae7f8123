"""Baselines that are networks of one kind of layer; each is a frozen dataclass whose fields are its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from vmg.likelihoods import GaussianLikelihood, KnownNoiseLikelihood, Likelihood
from vmg.likelihoods.base import require_outputs
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import Activation
from vmg.prediction import draw_functions
from vmg.priors import GammaPrior, IsotropicPrior
from vmg.training import constant
from vmg.variational.fitter import (
    Array,
    Fitter,
    LikelihoodFactory,
    Method,
    TrainingSet,
    Trials,
    given,
    matrix_gaussian_networks,
    per_replica,
    run_trials,
    stack,
)
from vmg_paper.baselines.base import Baseline, LayerBaseline
from vmg_paper.layers import DeterministicLinear, DropoutLinear, GravesLinear, MeanFieldLinear

__all__ = [
    "DRAWS",
    "RATES",
    "DeepEnsemble",
    "Graves",
    "LearnedVarianceLikelihood",
    "MCDropout",
    "MatrixGaussian",
    "MeanField",
    "PaperVMG",
    "RateAndPrecision",
]

TRIAL_STEPS = 4_000
"""A trial's steps, at most; much shorter trials favour what fits, and overfits, sooner."""

DRAWS = 64  # behind a trial's score
SMALL = 1_500
"""Tables with fewer rows are split several times, so that about this many rows are judged, but at most thrice."""

FEWEST = 10
"""Rows below which no trial is made and the last candidate, the most cautious, is taken."""

RATES = (0.005, 0.01, 0.05, 0.1, 0.2)
"""Dropout rates that are tried: the grid of Gal & Ghahramani (2016) for the paper's tables, and one larger."""


@dataclass(frozen=True)
class MeanField(LayerBaseline):
    """Factorised Gaussian posterior with local reparametrisation (Kingma et al. 2015).

    Priors, noise and training are those of the matrix Gaussian.
    """

    def layer(self, n_in: int, n_out: int, choices: Sequence[Any]) -> BayesianLinear:
        return MeanFieldLinear(n_in, n_out, prior=GammaPrior(), batch_shape=(len(choices),))


@dataclass(frozen=True)
class Graves(LayerBaseline):
    """Practical variational inference (Graves 2011), column "VI" of the paper's Table 1.

    A factorised Gaussian with his biased gradient of the variances and his empirical prior.
    """

    def layer(self, n_in: int, n_out: int, choices: Sequence[Any]) -> BayesianLinear:
        return GravesLinear(n_in, n_out, batch_shape=(len(choices),))


MIN_VARIANCE = 1e-6  # of the standardised target, as in the source


class LearnedVarianceLikelihood(Likelihood):
    """y_c ~ N(f_c, softplus(g_c) + 10⁻⁶) for outputs [f, g] of the network (Lakshminarayanan et al. 2017, eq. 1)."""

    def __init__(self, n_outputs: int = 1) -> None:
        super().__init__()
        self.n_outputs, self.n_network_outputs = n_outputs, 2 * n_outputs

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance, each [..., B, C]."""
        mean, g = f.chunk(2, -1)
        return mean, torch.nn.functional.softplus(g) + MIN_VARIANCE

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        mean, variance = self._split(f)
        require_outputs(mean, y, self.n_outputs)
        return -0.5 * (variance.log() + (y - mean).square() / variance + math.log(2 * math.pi)).sum(-1)

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and (infinite) degrees of freedom of p(y | f)."""
        mean, variance = self._split(f)
        return mean, variance.sqrt(), torch.full_like(mean, math.inf)


def learned_variance(n_steps: int, units: Array, choices: Sequence[Any]) -> Likelihood:
    """A variance for every row, as an output of the network."""
    return LearnedVarianceLikelihood(units.shape[1])


@dataclass(frozen=True)
class DeepEnsemble(LayerBaseline):
    """Plain networks from five starts, each with a variance of its own (Lakshminarayanan et al. 2017).

    Differs from the source: no adversarial training, which it calls optional; early stopping on held-out training rows
    in place of a fixed number of epochs; the predictive density is the mixture, not one Gaussian with its moments.
    """

    defaults: ClassVar[dict[str, Any]] = {"early_stopping": True, "n_members": 5, "n_draws": 1}

    def layer(self, n_in: int, n_out: int, choices: Sequence[Any]) -> BayesianLinear:
        return DeterministicLinear(n_in, n_out, batch_shape=(len(choices),))

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        return replace(super().method(hidden, activation, likelihood), likelihood=learned_variance)


PRECISIONS = np.geomspace(0.25, 2.5e5, 49)
"""Candidates of τ for a standardised target: noise between two standard deviations and one five-hundredth."""


class RateAndPrecision(NamedTuple):
    """The choice: a dropout rate, and τ of the standardised target."""

    rate: float
    precision: float = 1.0


def chosen_precision(n_steps: int, units: Array, choices: Sequence[RateAndPrecision]) -> KnownNoiseLikelihood:
    """A likelihood with the τ that was chosen; all targets share it in standard units."""
    scale = torch.tensor([choice.precision for choice in choices]).rsqrt()
    return KnownNoiseLikelihood(scale[:, None, None].expand(-1, 1, units.shape[1]).clone())


@dataclass(frozen=True)
class RateAndPrecisionSearch:
    """Chooses the rate and τ together, by the log-likelihood of held-out training rows.

    A trial trains with each rate, its noise learned by ``trial_likelihood``; every τ is then read off the same trial.
    """

    rates: tuple[float, ...]
    trial_likelihood: LikelihoodFactory

    def __call__(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[RateAndPrecision]]:
        if min(len(rows.x) for rows in sets) < FEWEST:
            return [[RateAndPrecision(self.rates[-1])] * fitter.n_members for _ in sets]
        learned = replace(fitter, method=replace(fitter.method, likelihood=self.trial_likelihood))
        candidates = [RateAndPrecision(rate) for rate in self.rates]
        trials = run_trials(learned, sets, candidates, enough=SMALL, most_steps=TRIAL_STEPS)
        scores = _score_precisions(trials).reshape(len(candidates), len(sets), trials.repeats, -1).mean(2)
        rates, precisions = np.divmod(scores.swapaxes(0, 1).reshape(len(sets), -1).argmax(-1), len(PRECISIONS))
        chosen = [RateAndPrecision(self.rates[r], float(PRECISIONS[p])) for r, p in zip(rates, precisions, strict=True)]
        return [[choice] * fitter.n_members for choice in chosen]


def _score_precisions(trials: Trials) -> Array:
    """Held-out log-likelihood of every τ for each candidate and held-out set, [candidates x sets, τ]."""
    inputs = stack(trials.held_out, 1)[0]
    functions = draw_functions(trials.trained.network, inputs, DRAWS, trials.fitter.seed).numpy()
    scores = np.empty((len(trials.held_out), len(PRECISIONS)))
    for k, rows in enumerate(trials.held_out):
        y = rows.y.double().numpy()
        squares = ((y - functions[:, k, : len(y)]) ** 2).sum(-1)  # [S, N]
        for j, tau in enumerate(PRECISIONS):
            log_probs = special.logsumexp(-0.5 * tau * squares, axis=0) - math.log(DRAWS)
            constant = 0.5 * y.shape[-1] * math.log(tau / (2 * math.pi))
            scores[k, j] = np.average(log_probs, weights=rows.weight) + constant
    return scores


@dataclass(frozen=True)
class MCDropout(LayerBaseline):
    """Dropout on the inputs of every layer, kept at test time: each mask is a draw from an approximate posterior.

    With a prior length-scale l the weight decay is l²(1 − rate)/(2Nτ) for a loss of half the mean squared error.

    Differs from the source: τ comes from a fixed, fine grid for the standardised target, not from one made by hand
    for each table, and while rates are tried τ is learned, as the weight decay hardly depends on it.
    """

    rate: float | str = "auto"
    """Probability that an input is dropped; "auto" tries a grid on held-out training rows."""
    length_scale: float = 0.01
    """l; 0.01 in the source."""

    def layer(self, n_in: int, n_out: int, choices: Sequence[RateAndPrecision]) -> DropoutLinear:
        rate = per_replica([choice.rate for choice in choices])
        return DropoutLinear(n_in, n_out, rate=rate, precision=self.length_scale**2, batch_shape=(len(choices),))

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        if isinstance(self.rate, str) and self.rate != "auto":
            raise ValueError(f"rate must be a number in [0, 1) or 'auto'; got {self.rate!r}")
        search = RateAndPrecisionSearch(RATES if isinstance(self.rate, str) else (float(self.rate),), likelihood)
        return replace(super().method(hidden, activation, likelihood), likelihood=chosen_precision, search=search)


@dataclass(frozen=True)
class PaperVMG(Baseline):
    """Matrix Gaussians with pseudo-data as the paper trained them.

    Gamma(1, 0.5) priors on the weights' precisions and Gamma(6, 6) on the noise's in the target's own units, all
    Gamma posteriors learned by gradient; Adam at a constant learning rate.
    """

    n_pseudo: int = 10
    max_noise: float = 0.25
    """Limit on √α."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        model = MatrixGaussian(self.n_pseudo, self.max_noise, conjugate=False, layer={"initial_scale": 1.0})
        return replace(model.method(hidden, activation, paper_noise), schedule=constant)


def paper_noise(n_steps: int, units: Array, choices: Sequence[Any]) -> Likelihood:
    """The same noise everywhere, under a Gamma(6, 6) prior in the target's own units."""
    # τ of standardised targets is τ σ_y², so Gamma(6, 6) in y's units is Gamma(6, 6/σ_y²) here
    rate = torch.as_tensor(6.0 / units**2, dtype=torch.float32)
    return GaussianLikelihood(units.shape[1], concentration=6.0, rate=rate, conjugate=False, batch_shape=(len(units),))


@dataclass(frozen=True)
class MatrixGaussian(Baseline):
    """Matrix Gaussians with pseudo-data in any form that the layer knows, for ablations.

    Noise and training are those of the other baselines; weights start at the scale of :class:`vmg.VMGRegressor`.
    """

    n_pseudo: int | tuple[int, ...] = 10
    max_noise: float = 0.25
    """Limit on √α."""
    prior: str = "gamma"
    """Precisions of the weights learned from data ("gamma"), or fixed at one ("isotropic")."""
    conjugate: bool = True
    """Posteriors of the weights' precisions in closed form, or learned by gradient, as in the paper."""
    layer: Mapping[str, Any] = field(default_factory=dict)
    """Other options of :class:`vmg.nn.MatrixGaussianLinear`."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        make_prior = partial(GammaPrior, conjugate=self.conjugate) if self.prior == "gamma" else IsotropicPrior
        networks = matrix_gaussian_networks(
            hidden, activation, n_pseudo=self.n_pseudo, make_prior=make_prior, **self.layer
        )
        return Method(networks, likelihood, given(self.max_noise))
