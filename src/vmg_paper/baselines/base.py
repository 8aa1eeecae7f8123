"""A baseline is a method of fitting, inside an estimator for numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions

from vmg.estimators.base import parameter
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.variational.estimators import VariationalNumbers
from vmg.variational.fitter import GaussianNoise, LikelihoodFactory, Method, given

__all__ = [
    "Baseline",
    "BaselineRegressor",
    "LayerBaseline",
]


class Baseline(ABC):
    """A method that the paper compares with. Subclasses are frozen dataclasses; their fields are its settings."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Parameters of the estimator that differ from the estimator's own defaults."""

    @abstractmethod
    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        """The method of fitting; ``likelihood`` is that of the targets, unless the method has its own."""

    def regressor(self, hidden_layer_sizes: int | Sequence[int] = (50,), **options: Any) -> BaselineRegressor:
        """The method as an estimator for numbers."""
        return BaselineRegressor(hidden_layer_sizes, baseline=self, **{**self.defaults, **options})


class LayerBaseline(Baseline):
    """A network of one kind of layer."""

    @abstractmethod
    def layer(self, n_in: int, n_out: int, choices: Sequence[Any]) -> BayesianLinear:
        """A layer with one replica for each choice."""

    def method(self, hidden: tuple[int, ...], activation: str | Activation, likelihood: LikelihoodFactory) -> Method:
        def networks(n_inputs: int, n_outputs: int, choices: Sequence[Any]) -> MLP:
            with torch.random.fork_rng(devices=[]):
                return MLP(
                    n_inputs,
                    hidden,
                    n_outputs,
                    activation=activation,
                    make_layer=lambda place, n_in, n_out: self.layer(n_in, n_out, choices),
                )

        return Method(networks, likelihood, given())


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

    def _set_choices(self, choices: Sequence[Any]) -> None:
        self.choice_ = choices[0]  # the same for all members
