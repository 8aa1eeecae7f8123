"""Makers of likelihoods, one replica for each network of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.fit.variational.search import Choice
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood

__all__ = ["CategoricalClasses", "GaussianNoise", "LikelihoodFactory"]

Array = NDArray[np.float64]

NOISE_FADE = (0.3, 0.6)
"""Share of training between which input-dependent noise is faded in: the mean settles first."""

NOISE_BALANCE = 0.5
"""How far the mean is fitted as under constant noise: see :class:`~vmg.likelihoods.HeteroscedasticLikelihood`."""


class LikelihoodFactory(Protocol):
    """Makes fresh likelihoods."""

    def n_network_outputs(self, n_targets: int) -> int:
        """Outputs that the network needs."""

    def make(self, n_targets: int, n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
        """A likelihood for as many replicas as there are ``choices``.

        ``units`` [replicas, C] are what one standard unit of each target is in the target's own.
        """


@dataclass(frozen=True)
class CategoricalClasses:
    """Classes, one output each."""

    def n_network_outputs(self, n_targets: int) -> int:
        return n_targets

    def make(self, n_targets: int, n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
        return CategoricalLikelihood()


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of learned precision: the same everywhere, or a function of the input."""

    by_input: bool = False
    prior: tuple[float, float] = (1.0, 1e-3)
    """Gamma(concentration, rate) of the precision in standardised units."""

    def __post_init__(self) -> None:
        if np.shape(self.prior) != (2,):
            raise ValueError(f"noise_prior must be (concentration, rate); got {self.prior!r}")

    def n_network_outputs(self, n_targets: int) -> int:
        return n_targets * (2 if self.by_input else 1)

    def make(self, n_targets: int, n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
        concentration, rate = (float(value) for value in self.prior)
        batch_shape = (len(choices),)
        likelihood: GaussianLikelihood
        if self.by_input:
            start, stop = (int(share * n_steps) for share in NOISE_FADE)
            likelihood = HeteroscedasticLikelihood(
                n_targets,
                concentration=concentration,
                rate=rate,
                balance=NOISE_BALANCE,
                fade=(start, max(stop, start + 1)),
                batch_shape=batch_shape,
            )
        else:
            likelihood = GaussianLikelihood(n_targets, concentration=concentration, rate=rate, batch_shape=batch_shape)
        # Start at noise of unit precision, which is a standardised target's own. The prior's mean, 1000, would make
        # the first gradient so large that Adam, which remembers squares for a thousand steps, hardly moves after it.
        with torch.no_grad():
            likelihood.log_rate.copy_(likelihood.log_concentration)
        return likelihood
