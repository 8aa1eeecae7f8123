"""Monte Carlo dropout (Gal & Ghahramani 2016): dropout kept at test time, column "Dropout" of the paper's Table 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from vmg.likelihoods import Likelihood
from vmg.nn.mlp import Activation
from vmg.prediction import draw_functions
from vmg.variational.fitter import Array, Fitter, LikelihoodFactory, Method, TrainingSet, stack
from vmg.variational.recipe import Trials, per_replica
from vmg_paper.baselines.base import LayerBaseline, Place
from vmg_paper.baselines.held_out_search import DRAWS, candidate_rates, enough_rows, trial_scores
from vmg_paper.layers import DropoutLinear

__all__ = ["MCDropout", "PrecisionLikelihood", "RateAndPrecision"]

PRECISIONS = np.geomspace(0.25, 2.5e5, 49)
"""Candidates of τ for a standardised target: noise between two standard deviations and one five-hundredth."""


class PrecisionLikelihood(Likelihood):
    """y_c ~ N(f_c, 1/τ_c) with τ given, [*batch_shape, n_outputs]."""

    def __init__(self, precision: Tensor) -> None:
        super().__init__()
        if not (torch.isfinite(precision) & (precision > 0)).all():
            raise ValueError(f"precision must be positive and finite; got {precision}")
        self.register_buffer("precision", precision)

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        tau = self.get_buffer("precision")
        if f.shape != y.shape or f.shape[-1] != tau.shape[-1]:
            raise ValueError(
                f"f and y must have one shape and {tau.shape[-1]} outputs; got {tuple(f.shape)} and {tuple(y.shape)}"
            )
        tau = tau.unsqueeze(-2)
        return 0.5 * (tau.log() - math.log(2 * math.pi) - tau * (y - f).square()).sum(-1)

    def components(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centre, scale and (infinite) degrees of freedom of p(y | f)."""
        scale = self.get_buffer("precision").rsqrt().unsqueeze(-2)
        return f, scale, torch.full_like(scale, math.inf)


class RateAndPrecision(NamedTuple):
    """The choice: a dropout rate, and τ of the standardised target."""

    rate: float
    precision: float = 1.0


def chosen_precision(
    n_targets: int, n_steps: int, units: Array, choices: Sequence[RateAndPrecision]
) -> PrecisionLikelihood:
    """A likelihood with the τ that was chosen; all targets share it in standard units."""
    precision = torch.tensor([choice.precision for choice in choices], dtype=torch.float32).unsqueeze(-1)
    return PrecisionLikelihood(precision.expand(len(choices), n_targets).clone())


@dataclass(frozen=True)
class RateAndPrecisionSearch:
    """Chooses the rate and τ together, by the log-likelihood of held-out training rows.

    A trial trains with each rate, its noise learned by ``trial_likelihood``; every τ is then read off the same trial.
    """

    rates: tuple[float, ...]
    trial_likelihood: LikelihoodFactory

    @property
    def example(self) -> RateAndPrecision:
        return RateAndPrecision(self.rates[-1])

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[RateAndPrecision]]:
        if not enough_rows(sets):
            return [[self.example] * fitter.n_members for _ in sets]
        learned = replace(fitter, method=replace(fitter.method, likelihood=self.trial_likelihood))
        scores = trial_scores(learned, sets, [RateAndPrecision(rate) for rate in self.rates], _score_precisions)
        rates, precisions = np.divmod(scores.reshape(len(sets), -1).argmax(-1), len(PRECISIONS))
        chosen = [RateAndPrecision(self.rates[r], float(PRECISIONS[p])) for r, p in zip(rates, precisions, strict=True)]
        return [[choice] * fitter.n_members for choice in chosen]


def _score_precisions(trials: Trials) -> Array:
    """Held-out log-likelihood of every τ, [sets, candidates]."""
    held_out = trials.held_out * trials.n_candidates
    functions = draw_functions(trials.trained.network, stack(held_out, 1)[0], DRAWS, trials.fitter.seed).numpy()
    scores = np.empty((len(held_out), len(PRECISIONS)))
    for k, rows in enumerate(held_out):
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

    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[RateAndPrecision]) -> DropoutLinear:
        rate = per_replica([choice.rate for choice in choices])
        return DropoutLinear(n_in, n_out, rate=rate, precision=self.length_scale**2, batch_shape=(len(choices),))

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        search = RateAndPrecisionSearch(candidate_rates(self.rate), likelihood)
        return replace(super().method(hidden, activation, likelihood), likelihood=chosen_precision, search=search)
