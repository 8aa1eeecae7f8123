"""A network with global inducing points as an estimator: pseudo-data of the whole network, trained by a true bound."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vmg.nn.bayesian import use_generator
from vmg.prediction import Prediction
from vmg.training import cosine, train
from vmg.variational.fitter import GaussianNoise, TrainingSet, stack
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.layers import GlobalInducingMLP

__all__ = ["GlobalInducingRegressor"]


@dataclass(eq=False)
class GlobalInducingRegressor(BatchedRegressor):
    """A network whose inducing points start at training rows; scales of the weights and the noise are learned.

    Parameters
    ----------
    hidden_layer_sizes
        Units of each hidden layer.
    n_inducing : int
        Inducing points; at most the number of training rows is used.
    n_steps, batch_size, learning_rate
        Steps of Adam, whose rate falls along half a cosine.
    n_draws : int
        Posterior draws behind a prediction.
    random_state : int
        Of the start, the batches and the draws.
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    n_inducing: int = 100
    n_steps: int = 6_000
    batch_size: int = 32
    learning_rate: float = 0.01
    n_draws: int = 200
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[Any], int]:
        generator = torch.Generator().manual_seed(self.random_state)
        rows = [TrainingSet(_single(s.x), _single(s.y[:, None]), None, np.array([s.unit])) for s in sets]
        n_points = min(self.n_inducing, min(len(one.x) for one in rows))
        options: dict[str, Any] = {"n_inducing": n_points, "learn_prior": True, "batch_shape": (len(sets),)}
        network = GlobalInducingMLP(rows[0].x.shape[1], self.hidden_layer_sizes, 1, **options)
        network.reset_parameters(generator)
        chosen = [one.take(torch.randperm(len(one.x), generator=generator)[:n_points]) for one in rows]
        network.start_at(torch.stack([one.x for one in chosen]), torch.stack([one.y for one in chosen]))
        likelihood = GaussianNoise()(self.n_steps, np.ones((len(sets), 1)), [None] * len(sets))
        x, y, _, n_rows = stack(rows, 1)
        train(
            network,
            likelihood,
            x,
            y,
            n_steps=self.n_steps,
            batch_size=self.batch_size,
            batch_shape=(len(sets),),
            n_rows=n_rows,
            learning_rate=self.learning_rate,
            schedule=cosine,
            averaging=0.99,
            report_every=max(1, self.n_steps // 10),
            generator=generator,
        )
        return [(network, likelihood, k) for k in range(len(sets))], self.n_steps

    @torch.no_grad()
    def _predict_standard(self, x: Array) -> Prediction:
        network, likelihood, position = self.posterior_  # of all networks that trained together, and one's place
        exact = copy.deepcopy(network).double()
        use_generator(exact, torch.Generator().manual_seed(self.random_state))
        functions = exact.sample_functions(self.n_draws)(torch.as_tensor(x))  # [S, replicas, N, 1]
        parts = np.broadcast_arrays(*(part.double().numpy() for part in likelihood.components(functions)))
        loc, scale, df = (part[:, position] for part in parts)
        return Prediction(loc, scale, df)


def _single(values: Array) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
