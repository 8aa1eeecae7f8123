"""Monte Carlo dropout (Gal & Ghahramani 2016): dropout kept at test time, column "Dropout" of the paper's Table 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from vmg.estimators.pseudo_data.training_sets import Array, TrainingSet, stack
from vmg.likelihoods import Likelihood
from vmg.prediction import draw_functions
from vmg_paper.baselines.base import BaselineRegressor, GaussianComponents
from vmg_paper.baselines.dropout_rates import ChosenDropoutRate
from vmg_paper.baselines.held_out_choice import DRAWS
from vmg_paper.layers.dropout import DropoutLinear

__all__ = ["MCDropoutRegressor", "PrecisionLikelihood"]

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


class MCDropoutRegressor(GaussianComponents, ChosenDropoutRate, BaselineRegressor):
    """Dropout on the inputs of every layer, kept at test time: each mask is a draw from an approximate posterior.

    The rate and the precision τ of the noise are chosen together by the log-likelihood of held-out training rows.
    With a prior length-scale l the weight decay is l²(1 − rate)/(2Nτ) for a loss of half the mean squared error.

    Differs from the source: τ comes from a fixed, fine grid for the standardised target, not from one made by hand
    for each table, and while rates are tried τ is learned, as the weight decay hardly depends on it.

    Parameters
    ----------
    rate : float or "auto"
        Probability that an input is dropped.
    length_scale : float
        l; 0.01 in the source.
    """

    _not_mine = ChosenDropoutRate._not_mine | {"noise", "noise_prior"}
    _n_candidates = len(PRECISIONS)

    _precisions: Array = np.ones(1)  # τ of the standardised target, of each replica under training

    def __init__(
        self, hidden_layer_sizes: int | Sequence[int] = (50,), *, length_scale: float = 0.01, **options: Any
    ) -> None:
        super().__init__(hidden_layer_sizes, **options)
        self.length_scale = length_scale

    def _make_layer(
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: Sequence[int],
        rate: float | Tensor,
        first: bool,
        last: bool,
    ) -> DropoutLinear:
        precision = self.length_scale**2
        return DropoutLinear(in_features, out_features, rate=rate, precision=precision, batch_shape=batch_shape)

    def _take_candidates(self, candidates: NDArray[np.int64]) -> None:
        self._precisions = np.repeat(PRECISIONS[candidates], self.n_members)

    @property
    def precision_(self) -> Array:
        """τ of each target in its own units, [C]."""
        return self.likelihood_.get_buffer("precision")[0].double().numpy() / self.target_scaling_.scale**2

    def _make_likelihood(self, n_steps: int, units: Array) -> Likelihood:
        if self._is_trial:
            return super()._make_likelihood(n_steps, units)  # learned under the Gamma prior
        precision = torch.as_tensor(self._precisions, dtype=torch.float32).unsqueeze(-1)
        return PrecisionLikelihood(precision.expand(len(units), self.n_outputs_).clone())

    def _candidate_scores(self, held_out: list[TrainingSet]) -> Array:
        """Held-out log-likelihood of every τ, [sets, candidates]; all outputs share one τ in standard units."""
        functions = draw_functions(self.network_, stack(held_out, 1)[0], DRAWS, self.seed_).numpy()
        scores = np.empty((len(held_out), len(PRECISIONS)))
        for k, rows in enumerate(held_out):
            y = rows.y.double().numpy()
            squares = ((y - functions[:, k, : len(y)]) ** 2).sum(-1)  # [S, N]
            for j, tau in enumerate(PRECISIONS):
                log_probs = special.logsumexp(-0.5 * tau * squares, axis=0) - math.log(DRAWS)
                constant = 0.5 * y.shape[-1] * math.log(tau / (2 * math.pi))
                scores[k, j] = np.average(log_probs, weights=rows.weight) + constant
        return scores
