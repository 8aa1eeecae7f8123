"""What a baseline is: a method of fitting, inside an estimator for numbers or for classes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from vmg.estimators.network import NetworkEstimator
from vmg.estimators.reading import ReadsClasses, ReadsNumbers
from vmg.fit.variational import CategoricalClasses, GaussianNoise, Method
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP, Activation

__all__ = ["Baseline", "BaselineClassifier", "BaselineRegressor", "LayerNetworks", "Place", "mean_function"]


class Baseline(ABC):
    """A method that the paper compares with. Subclasses are frozen dataclasses; their fields are its settings."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Parameters of the estimator that differ from the estimator's own defaults."""

    @abstractmethod
    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        """What is fitted; ``likelihood`` is that of the targets unless the method has one of its own."""

    def regressor(self, hidden_layer_sizes: int | Sequence[int] = (50,), **options: Any) -> BaselineRegressor:
        """The method as an estimator for numbers."""
        return BaselineRegressor(self, hidden_layer_sizes, **{**self.defaults, **options})

    def classifier(self, hidden_layer_sizes: int | Sequence[int] = (50,), **options: Any) -> BaselineClassifier:
        """The method as an estimator for classes."""
        return BaselineClassifier(self, hidden_layer_sizes, **{**self.defaults, **options})


class Place(NamedTuple):
    """Where a layer stands: the first takes the data, the last gives the outputs."""

    first: bool
    last: bool


@dataclass(frozen=True)
class LayerNetworks:
    """Networks of one kind of layer."""

    hidden: tuple[int, ...]
    activation: str | Activation
    make_layer: Callable[[int, int, Place, Sequence[Any]], BayesianLinear] = field(repr=False)
    """(inputs, outputs, place, choice of each replica) to a layer of as many replicas."""

    def __call__(self, n_inputs: int, n_outputs: int, choices: Sequence[Any]) -> MLP:
        def make(position: int, n_in: int, n_out: int) -> BayesianLinear:
            return self.make_layer(n_in, n_out, Place(position == 0, position == len(self.hidden)), choices)

        with torch.random.fork_rng(devices=[]):
            return MLP(n_inputs, self.hidden, n_outputs, activation=self.activation, make_layer=make)


@torch.no_grad()
def mean_function(network: MLP, x: Tensor, n_draws: int = 1, seed: int = 0) -> Tensor:
    """The mean network at x as the one draw of a distribution: [1, *batch_shape, N, C], in double precision."""
    return copy.deepcopy(network).double().forward_centre(x.double()).unsqueeze(0)


class BaselineRegressor(MultiOutputMixin, RegressorMixin, ReadsNumbers, NetworkEstimator):
    """A baseline for numbers.

    Parameters
    ----------
    baseline : Baseline
        What is fitted.
    noise : {"constant", "input"}
        Constant noise is that of the sources of all methods but deep ensembles, which have their own.
    hidden_layer_sizes, activation, noise_prior, n_members, batch_size, learning_rate_init, max_iter, averaging, \
early_stopping, validation_fraction, n_iter_no_change, tol, n_draws, random_state, verbose
        As in :class:`vmg.estimators.PseudoDataRegressor`.

    Attributes
    ----------
    choice_
        What held-out rows chose, such as a dropout rate; None where nothing was to be chosen.
    """

    _parameter_constraints = {  # noqa: RUF012
        **NetworkEstimator._parameter_constraints,
        "baseline": [Baseline],
        "noise": [StrOptions({"constant", "input"})],
        "noise_prior": ["array-like"],
    }

    choice_: Any

    def __init__(
        self,
        baseline: Baseline,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str | Activation = "relu",
        *,
        noise: str = "constant",
        noise_prior: tuple[float, float] = (1.0, 1e-3),
        n_members: int = 1,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.01,
        max_iter: int | str = "auto",
        averaging: float | None = 0.99,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        n_draws: int = 200,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.baseline = baseline
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.noise = noise
        self.noise_prior = noise_prior
        self.n_members = n_members
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.n_draws = n_draws
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        likelihood = GaussianNoise(self.noise == "input", self.noise_prior)
        return self.baseline.method(self.hidden_sizes(), self.activation, likelihood)

    def _set_choices(self, choices: list[Any]) -> None:
        self.choice_ = choices[0]  # the same for all members


class BaselineClassifier(ClassifierMixin, ReadsClasses, NetworkEstimator):
    """A baseline for classes; parameters and attributes are those of :class:`BaselineRegressor`, but for the noise."""

    _parameter_constraints = {  # noqa: RUF012
        **NetworkEstimator._parameter_constraints,
        "baseline": [Baseline],
    }

    choice_: Any

    def __init__(
        self,
        baseline: Baseline,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str | Activation = "relu",
        *,
        n_members: int = 1,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.01,
        max_iter: int | str = "auto",
        averaging: float | None = 0.99,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        n_draws: int = 200,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.baseline = baseline
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_members = n_members
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.n_draws = n_draws
        self.random_state = random_state
        self.verbose = verbose

    def _method(self) -> Method:
        return self.baseline.method(self.hidden_sizes(), self.activation, CategoricalClasses())

    def _set_choices(self, choices: list[Any]) -> None:
        self.choice_ = choices[0]  # the same for all members
