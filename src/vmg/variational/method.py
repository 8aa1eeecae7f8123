"""Methods fitted by the variational objective: makers of networks and likelihoods, a search, and a training budget."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.nn.mlp import MLP, Activation
from vmg.prediction import draw_functions
from vmg.priors import GammaPrior, Prior
from vmg.training import Schedule, cosine

if TYPE_CHECKING:
    from vmg.variational.fitter import Fitter
    from vmg.variational.rows import TrainingSet

__all__ = [
    "LONG",
    "STANDARD",
    "Budget",
    "CategoricalClasses",
    "Choice",
    "GaussianNoise",
    "Given",
    "LikelihoodFactory",
    "MatrixGaussianNetworks",
    "Method",
    "NetworkFactory",
    "Search",
    "per_replica",
]

Array = NDArray[np.float64]

STEPS_END_AT = 40_000  # rows, from which steps grow no further
SMALLEST_BATCH, LARGEST_BATCH = 32, 256

NOISE_FADE = (0.3, 0.6)
"""Share of training between which input-dependent noise is faded in: the mean settles first."""

NOISE_BALANCE = 0.5
"""How far the mean is fitted as under constant noise: see :class:`~vmg.likelihoods.HeteroscedasticLikelihood`."""


@dataclass(frozen=True)
class Budget:
    """Steps grow with the root of the number of rows, batches with the number itself."""

    fewest_steps: int
    most_steps: int
    batches: int
    """Batches of an epoch, about, while their size is between the limits."""

    def steps(self, n_rows: int) -> int:
        """Steps of the optimiser."""
        grown = self.most_steps * math.sqrt(n_rows / STEPS_END_AT)
        return int(np.clip(grown, self.fewest_steps, self.most_steps))

    def batch_size(self, n_rows: int) -> int:
        """Rows of a minibatch, a power of two."""
        nearest = 2 ** round(math.log2(max(n_rows, 2) / self.batches))
        return int(np.clip(nearest, SMALLEST_BATCH, LARGEST_BATCH))


STANDARD = Budget(12_000, 20_000, batches=64)
LONG = Budget(30_000, 40_000, batches=128)
"""The budget of ensembles of regressors; see docs/table1.md."""

# -- what is searched -------------------------------------------------------------------------------------------------

Choice = Any
"""A search's choice for one network, such as a limit on noise or a dropout rate; factories read it."""


class Search(Protocol):
    """Chooses something for every network of a fit."""

    @property
    def example(self) -> Choice:
        """Any choice that may be made, for a network of which only the shapes matter."""

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[Choice]]:
        """The choice of each member, for each training set; a set's own rows alone decide."""


@dataclass(frozen=True)
class Given:
    """No search: the same choice for all."""

    example: Choice = None

    def choose(self, fitter: Fitter, sets: list[TrainingSet]) -> list[list[Choice]]:
        return [[self.example] * fitter.n_members for _ in sets]


def per_replica(values: Sequence[float]) -> float | torch.Tensor:
    """Numbers of all replicas as a layer takes them: one where all are the same, else a tensor."""
    if len(set(values)) == 1:
        return float(values[0])
    return torch.as_tensor(values, dtype=torch.get_default_dtype())


# -- networks and likelihoods -----------------------------------------------------------------------------------------


NetworkFactory = Callable[[int, int, Sequence[Choice]], MLP]
"""(inputs, outputs, choices) to an untrained network of as many replicas as there are choices."""


class MatrixGaussianNetworks:
    """Makes networks of the paper's layers; a choice is the limit ``max_noise`` on the noise √α of pseudo-points.

    Args:
        hidden, activation: of :class:`~vmg.nn.MLP`.
        make_prior: gives each network its prior.
        initial_scale: of the weights at the start; chosen by the bound that a given number of steps reaches.
        options: all others of :class:`~vmg.nn.MLP` and :class:`~vmg.nn.MatrixGaussianLinear`.
    """

    def __init__(
        self,
        hidden: tuple[int, ...],
        activation: str | Activation = "relu",
        *,
        make_prior: Callable[[], Prior] = GammaPrior,
        initial_scale: float = math.exp(-9),
        **options: Any,
    ) -> None:
        self.hidden, self.make_prior = hidden, make_prior
        self.options: dict[str, Any] = {"activation": activation, "initial_scale": initial_scale, **options}

    def __call__(self, n_inputs: int, n_outputs: int, choices: Sequence[Choice]) -> MLP:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # the paper itself uses more pseudo-points than inputs on narrow tables
            warnings.filterwarnings("ignore", message="n_pseudo should be <")
            return MLP(
                n_inputs,
                self.hidden,
                n_outputs,
                max_noise=per_replica(choices),
                prior=self.make_prior(),
                batch_shape=(len(choices),),
                **self.options,
            )


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


# -- the method -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """One method: factories, the search, how the network trains and how it is evaluated."""

    network: NetworkFactory
    likelihood: LikelihoodFactory
    search: Search
    evaluate: Callable[[MLP, Tensor, int, int], Tensor] = draw_functions
    """(network, x [N, D], draws, seed) to the network's outputs [S, replicas, N, C], in double precision."""
    schedule: Schedule = cosine
