"""Makers of networks with matrix Gaussian layers, a replica for each choice of the noise limit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from vmg.fit.variational.search import Choice, per_replica
from vmg.nn.mlp import MLP, Activation
from vmg.priors import GammaPrior, Prior

__all__ = ["MatrixGaussianNetworks", "NetworkFactory"]


class NetworkFactory(Protocol):
    """Makes untrained networks."""

    def __call__(self, n_inputs: int, n_outputs: int, choices: Sequence[Choice]) -> MLP:
        """A network of as many replicas as there are ``choices``."""


@dataclass(frozen=True)
class MatrixGaussianNetworks:
    """Networks of the paper's layers; a choice is the limit ``max_noise`` on the noise √α of pseudo-points.

    Options are those of :class:`~vmg.nn.MLP` and :class:`~vmg.nn.MatrixGaussianLinear`.
    """

    hidden: tuple[int, ...] = (50,)
    activation: str | Activation = "relu"
    n_pseudo: int | Sequence[int] = 10
    pseudo_noise: str = "layer"
    row_covariance: str = "diagonal"
    column_covariance: str = "diagonal"
    zero_mean: bool = False
    make_prior: Callable[[], Prior] = GammaPrior
    initial_scale: float = math.exp(-9)
    """Scale of the weights at the start; chosen by the bound that a given number of steps reaches."""
    sampling: str = "marginal"
    """How layers draw in training."""

    def __call__(self, n_inputs: int, n_outputs: int, choices: Sequence[Choice]) -> MLP:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # the paper itself uses more pseudo-points than inputs on narrow tables
            warnings.filterwarnings("ignore", message="n_pseudo should be <")
            return MLP(
                n_inputs,
                self.hidden,
                n_outputs,
                activation=self.activation,
                n_pseudo=self.n_pseudo,
                max_noise=per_replica(choices),
                pseudo_noise=self.pseudo_noise,
                row_covariance=self.row_covariance,
                column_covariance=self.column_covariance,
                zero_mean=self.zero_mean,
                prior=self.make_prior(),
                initial_scale=self.initial_scale,
                sampling=self.sampling,
                batch_shape=(len(choices),),
            )
