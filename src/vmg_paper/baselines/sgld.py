"""Stochastic gradient Langevin dynamics of a network's weights, all splits of a table as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.prediction import Prediction
from vmg.training import minibatches
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.baselines.flat_network import FlatNetwork, NetworkPosterior
from vmg_paper.baselines.hmc import mixture
from vmg_paper.baselines.langevin import Decay, RMSprop, sample

__all__ = ["SGLDRegressor"]


class LangevinDraws(NamedTuple):
    """Posterior draws [S, dimensions] of one fit."""

    model: NetworkPosterior
    draws: Tensor


@dataclass(eq=False)
class SGLDRegressor(BatchedRegressor):
    """A network sampled by preconditioned stochastic gradient Langevin dynamics (Li et al. 2016).

    Weights and log noise precision move together; the mixture of the kept draws is the prediction.

    Parameters
    ----------
    hidden_layer_sizes, activation, weight_prior, noise_prior
        As in :class:`~vmg_paper.baselines.HMCRegressor`.
    batch_size : int
        Rows of a minibatch.
    n_steps : int
        Steps in all; the first ``burn_in`` share is thrown away.
    step_size : (float, float)
        First and last step, in units of one datum: Langevin's ε is this over the number of rows.
    n_draws : int
        Draws kept, evenly spaced after burn-in.
    random_state : int
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    activation: str = "relu"
    weight_prior: float | tuple[float, float] = (6.0, 6.0)
    noise_prior: tuple[float, float] = (1.0, 1e-3)
    batch_size: int = 32
    n_steps: int = 20_000
    burn_in: float = 0.5
    step_size: tuple[float, float] = (0.05, 0.01)
    n_draws: int = 100
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[LangevinDraws], int]:
        n, n_rows = len(sets), torch.tensor([len(rows.y) for rows in sets])
        n_data = n_rows.double()
        x = torch.zeros(n, int(n_rows.max()), sets[0].x.shape[1], dtype=torch.float64)
        y = torch.zeros(x.shape[:2], dtype=torch.float64)
        for k, rows in enumerate(sets):
            x[k, : n_rows[k]], y[k, : n_rows[k]] = torch.as_tensor(rows.x), torch.as_tensor(rows.y)
        network = FlatNetwork((x.shape[2], *self.hidden_layer_sizes, 1), self.activation)
        model = NetworkPosterior(network, self.weight_prior, self.noise_prior)
        generator = torch.Generator().manual_seed(self.random_state)
        batches = minibatches(n_rows, self.batch_size, (n,), generator)
        replicas = torch.arange(n)[:, None]

        def gradient(state: Tensor) -> Tensor:
            index = next(batches)  # [n, B]
            return model.log_density(state, x[replicas, index], y[replicas, index], n_data)[1]

        n_burn_in = int(self.burn_in * self.n_steps)
        # the likelihood's share of ∇ log p grows with N, and with it the step that is still stable shrinks
        first, last = (step / float(n_data.mean()) for step in self.step_size)
        draws = sample(
            gradient,
            model.start((n,), generator),
            step_size=Decay(first, last, self.n_steps),
            n_steps=self.n_steps,
            n_burn_in=n_burn_in,
            thinning=max(1, (self.n_steps - n_burn_in) // self.n_draws),
            precondition=RMSprop(n_data[:, None]),
            generator=generator,
        )
        return [LangevinDraws(model, draws[:, k]) for k in range(n)], self.n_steps

    def _predict_standard(self, x: Array) -> Prediction:
        return mixture(self.posterior_.model, self.posterior_.draws, x)
