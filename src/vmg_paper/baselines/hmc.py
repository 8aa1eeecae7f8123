"""Hamiltonian Monte Carlo of a small network's weights: the truth that approximations are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vmg.prediction import Prediction
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.baselines.hamiltonian import Chains, bulk_ess, sample, split_rhat
from vmg_paper.baselines.network_posterior import CollapsedPosterior, FlatNetwork, LayerPrecisions, NetworkPosterior

__all__ = ["HMCRegressor", "SampledNetwork"]


class SampledNetwork(NamedTuple):
    """Posterior draws of one fit, and whether its chains agree."""

    model: NetworkPosterior
    chains: Chains
    rhat: float
    """The largest split R̂ of the function at the training rows and, where it is not known, of the noise."""
    ess: float
    """The smallest bulk effective sample size of the same."""


@dataclass(eq=False)
class HMCRegressor(BatchedRegressor):
    """A network with weights N(0, 1/λ), sampled by full-batch Hamiltonian Monte Carlo.

    Hidden units may change places without changing the function, so convergence is judged on functions, not weights.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The network, as in :class:`~vmg.VMGRegressor`.
    weight_prior : float, (float, float) or LayerPrecisions
        Standard deviation of the weights; Gamma(concentration, rate) of the precision that all weights share; or, with
        known noise, precisions of each layer, as the matrix Gaussian's Gamma prior has. Inputs of a layer are divided
        by √R.
    noise_prior : (float, float)
        Gamma(concentration, rate) of the noise precision in standardised units.
    noise_scale : float, optional
        Standard deviation of the noise in the target's own units, where it is known.
    n_chains, n_warmup, n_draws : int
        Chains, iterations thrown away, and draws kept of each chain.
    collapse : bool
        Integrate the output layer out where that is exact: the noise known, and hidden layers with weights N(0, s²) or
        with precisions of their own. The posterior is the same; chains mix faster.
    path_length : float
        Mean length of a trajectory, in units of the posterior's own scales.
    random_state : int
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    activation: str = "relu"
    weight_prior: float | tuple[float, float] | LayerPrecisions = (6.0, 6.0)
    noise_prior: tuple[float, float] = (1.0, 1e-3)
    noise_scale: float | None = None
    n_chains: int = 8
    n_warmup: int = 500
    n_draws: int = 500
    collapse: bool = True
    path_length: float = 1.5
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[SampledNetwork], int]:
        sampled = [self._sample(rows) for rows in sets]  # each tunes its own step size and mass
        return sampled, self.n_warmup + self.n_draws

    def _sample(self, rows: Rows) -> SampledNetwork:
        network = FlatNetwork((rows.x.shape[1], *self.hidden_layer_sizes, 1), self.activation)
        generator = torch.Generator().manual_seed(self.random_state)
        x, y = torch.as_tensor(rows.x), torch.as_tensor(rows.y)
        prior, scale = self.weight_prior, None if self.noise_scale is None else self.noise_scale / rows.unit
        if self.collapse and scale is not None and self.hidden_layer_sizes and not isinstance(prior, tuple):
            hidden = CollapsedPosterior(network, prior, scale)
            chains = self._run(hidden, x, y, generator)
            weights = hidden.draw_weights(chains.draws.flatten(0, 1), x, y, generator)
            chains = replace(chains, draws=weights.unflatten(0, chains.draws.shape[:2]))
            model = NetworkPosterior(network, 1.0, None, scale)  # its states are weights as they are
        elif isinstance(prior, LayerPrecisions):
            raise ValueError("weight_prior of each layer needs known noise, hidden layers and collapse; got others")
        else:
            model = NetworkPosterior(network, prior, self.noise_prior if scale is None else None, scale)
            chains = self._run(model, x, y, generator)
        watched = model.functions(chains.draws, x)[..., 0]
        if scale is None:
            watched = torch.cat([watched, model.noise(chains.draws).log()[..., None]], -1)
        return SampledNetwork(
            model, chains, float(split_rhat(watched.numpy()).max()), float(bulk_ess(watched.numpy()).min())
        )

    def _run(
        self, model: NetworkPosterior | CollapsedPosterior, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> Chains:
        return sample(
            lambda state: model.log_density(state, x, y),
            model.start((self.n_chains,), generator),
            n_warmup=self.n_warmup,
            n_draws=self.n_draws,
            path_length=self.path_length,
            generator=generator,
        )

    def _predict_standard(self, x: Array) -> Prediction:
        """The equal mixture of the draws' Gaussians at x [N, D]."""
        model, draws = self.posterior_.model, self.posterior_.chains.draws.flatten(0, 1)
        loc = model.functions(draws, torch.as_tensor(x)).numpy()  # [S, N, 1]
        return Prediction(loc, model.noise(draws).numpy()[:, None, None], np.full((1, 1, 1), np.inf))
