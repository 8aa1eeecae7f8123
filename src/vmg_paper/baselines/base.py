"""A baseline is a method of fitting, inside an estimator for numbers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from vmg.estimators.base import parameter
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.prediction import draw_functions
from vmg.variational.estimators import VariationalNumbers
from vmg.variational.fitter import STANDARD, Budget, LikelihoodFactory, Method, Search
from vmg.variational.recipe import GaussianNoise, Given

__all__ = [
    "Baseline",
    "BaselineRegressor",
    "LayerBaseline",
    "Place",
    "mean_function",
]


class Baseline(ABC):
    """A method that the paper compares with. Subclasses are frozen dataclasses; their fields are its settings."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Parameters of the estimator that differ from the estimator's own defaults."""
    budget: ClassVar[Budget] = STANDARD
    """How long it trains where the user does not say."""

    @abstractmethod
    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        """The method of fitting; ``likelihood`` is that of the targets, unless the method has its own."""

    def regressor(self, hidden_layer_sizes: int | Sequence[int] = (50,), **options: Any) -> BaselineRegressor:
        """The method as an estimator for numbers."""
        return BaselineRegressor(hidden_layer_sizes, baseline=self, **{**self.defaults, **options})


class Place(NamedTuple):
    """The place of a layer: the first takes the data, the last gives the outputs."""

    first: bool
    last: bool


@torch.no_grad()
def mean_function(network: MLP, x: Tensor, n_draws: int = 1, seed: int = 0) -> Tensor:
    """The mean network at x as the one draw of a distribution: [1, *batch_shape, N, C], in double precision."""
    return copy.deepcopy(network).double().forward_centre(x.double()).unsqueeze(0)


class LayerBaseline(Baseline):
    """A network of one kind of layer."""

    @abstractmethod
    def layer(self, n_in: int, n_out: int, place: Place, choices: Sequence[Any]) -> BayesianLinear:
        """The layer at a place, with one replica for each choice."""

    def search(self) -> Search:
        """Choices to be made on held-out training rows; none unless a method overrides this."""
        return Given()

    def evaluate(self, network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
        """Outputs at x [S, replicas, N, C]: draws from the posterior, unless a method predicts by other means."""
        return draw_functions(network, x, n_draws, seed)

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        return Method(LayerNetworks(hidden, activation, self), likelihood, self.search(), evaluate=self.evaluate)


@dataclass(frozen=True)
class LayerNetworks:
    """Networks of a baseline's layers."""

    hidden: tuple[int, ...]
    activation: str | Activation
    baseline: LayerBaseline

    def __call__(self, n_inputs: int, n_outputs: int, choices: Sequence[Any]) -> MLP:
        def make(position: int, n_in: int, n_out: int) -> BayesianLinear:
            return self.baseline.layer(n_in, n_out, Place(position == 0, position == len(self.hidden)), choices)

        with torch.random.fork_rng(devices=[]):
            return MLP(n_inputs, self.hidden, n_outputs, activation=self.activation, make_layer=make)


@dataclass(repr=False, eq=False)
class BaselineRegressor(MultiOutputMixin, RegressorMixin, VariationalNumbers):
    """A baseline for numbers.

    Parameters
    ----------
    baseline : Baseline
        The method of fitting.
    noise : {"constant", "input"}
        Constant noise is that of the sources of all methods but deep ensembles, which have their own.
    hidden_layer_sizes, activation, noise_prior, n_members, batch_size, learning_rate_init, max_iter, averaging, \
early_stopping, validation_fraction, n_iter_no_change, tol, n_draws, random_state, verbose
        As in :class:`vmg.VMGRegressor`.

    Attributes
    ----------
    choice_
        The choice made on held-out rows, such as a dropout rate; None where nothing was to be chosen.
    """

    _: KW_ONLY
    baseline: Baseline = field(metadata={"allowed": (Baseline,)})
    noise: str = parameter("constant", StrOptions({"constant", "input"}))
    noise_prior: tuple[float, float] = parameter((1.0, 1e-3), "array-like")

    choice_: Any = field(init=False)

    def _method(self) -> Method:
        likelihood = GaussianNoise(self.noise == "input", self.noise_prior)
        return self.baseline.method(self.hidden_sizes(), self.activation, likelihood)

    def _budget(self) -> Budget:
        return self.baseline.budget

    def _set_choices(self, choices: Sequence[Any]) -> None:
        self.choice_ = choices[0]  # the same for all members
