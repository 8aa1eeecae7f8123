"""The paper's own model: to the letter [LW16, §4.1, and the authors' released code], and with one part changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vmg.likelihoods import GaussianLikelihood, Likelihood
from vmg.nn.mlp import Activation
from vmg.priors import GammaPrior
from vmg.training import constant
from vmg.variational.fitter import Array, LikelihoodFactory, Method
from vmg.variational.recipe import Given, MatrixGaussianNetworks, NoiseSearch
from vmg_paper.baselines.base import Baseline

__all__ = ["MatrixGaussian", "PaperVMG"]


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
        networks = MatrixGaussianNetworks(
            hidden,
            activation,
            n_pseudo=self.n_pseudo,
            make_prior=partial(GammaPrior, 1.0, 0.5, conjugate=False),
            initial_scale=1.0,
        )
        return Method(networks, paper_noise, Given(self.max_noise), schedule=constant)


def paper_noise(n_targets: int, n_steps: int, units: Array, choices: Sequence[Any]) -> Likelihood:
    """The same noise everywhere, under a Gamma(6, 6) prior in the target's own units."""
    # τ of standardised targets is τ σ_y², so Gamma(6, 6) in y's units is Gamma(6, 6/σ_y²) here
    rate = torch.as_tensor(6.0 / units**2, dtype=torch.float32)
    return GaussianLikelihood(n_targets, concentration=6.0, rate=rate, conjugate=False, batch_shape=(len(units),))


@dataclass(frozen=True)
class MatrixGaussian(Baseline):
    """The network of :class:`vmg.VMGRegressor`, with what its parameters do not offer."""

    n_pseudo: int = 20
    sampling: str = "marginal"
    """How layers draw in training: "marginal", "joint" for all rows of a batch together, as from the Gaussian process,
    or "weights" for one weight matrix a batch."""
    conjugate: bool = True
    """Posteriors of the weights' precisions in closed form, or learned by gradient, as in the paper."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        prior = partial(GammaPrior, conjugate=self.conjugate)
        networks = MatrixGaussianNetworks(
            hidden, activation, n_pseudo=self.n_pseudo, make_prior=prior, sampling=self.sampling
        )
        return Method(networks, likelihood, NoiseSearch())
