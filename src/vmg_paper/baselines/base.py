"""What baselines share: their own kind of layer, and none of the options of pseudo-data."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vmg.estimators.pseudo_data.base import Array, PseudoDataEstimator, _bound
from vmg.estimators.pseudo_data.effort import STANDARD
from vmg.estimators.pseudo_data.regressor import PseudoDataRegressor
from vmg.estimators.pseudo_data.training_sets import TrainingSet, stack
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP

__all__ = ["Baseline", "BaselineRegressor", "GaussianComponents", "MeanNetwork", "mean_function"]

MATRIX_GAUSSIAN_OPTIONS = frozenset(
    {"n_pseudo", "max_noise", "pseudo_noise", "row_covariance", "column_covariance", "zero_mean", "prior"}
)


class Baseline(PseudoDataEstimator):
    """An estimator of this library with another kind of layer.

    A subclass says which in :meth:`_make_layer` and stands left of ``BaselineRegressor`` or ``PseudoDataClassifier``
    among the bases. Parameters are those of the estimator without the options of matrix Gaussian layers, and what the
    subclass names in its own ``__init__``.
    """

    _effort = STANDARD
    _not_mine: frozenset[str] = MATRIX_GAUSSIAN_OPTIONS

    def __init__(self, hidden_layer_sizes: int | Sequence[int] = (50,), **options: Any) -> None:
        unknown = sorted(options.keys() & self._not_mine)
        if unknown:
            raise TypeError(f"{type(self).__name__} must be given parameters of its own; got {', '.join(unknown)}")
        super().__init__(hidden_layer_sizes, **options)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """scikit-learn's list of parameters, gathered over the bases: each names only what it adds."""
        names: set[str] = set()
        for base in cls.__mro__:
            if "__init__" in vars(base) and issubclass(base, PseudoDataEstimator):
                parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
                names |= {p.name for p in parameters if p.kind != p.VAR_KEYWORD}
        return sorted(names - {"self"} - cls._not_mine)

    @abstractmethod
    def _make_layer(
        self,
        in_features: int,
        out_features: int,
        *,
        batch_shape: Sequence[int],
        rate: float | Tensor,
        first: bool,
        last: bool,
    ) -> BayesianLinear:
        """One layer of the network; ``first`` takes the data, ``last`` gives the outputs.

        ``rate`` is what :meth:`_choose_max_noise` has chosen for each replica.
        """

    def _make_network(self, n_features: int, batch_shape: Sequence[int], max_noise: float | Array) -> MLP:
        hidden = tuple(int(size) for size in np.atleast_1d(self.hidden_layer_sizes))

        rate = _bound(max_noise)

        def make_layer(position: int, n_in: int, n_out: int) -> BayesianLinear:
            place = {"first": position == 0, "last": position == len(hidden)}
            return self._make_layer(n_in, n_out, batch_shape=batch_shape, rate=rate, **place)

        return MLP(n_features, hidden, self._n_network_outputs(), activation=self.activation, make_layer=make_layer)

    def _choose_max_noise(self, sets: list[TrainingSet]) -> list[float]:
        """There are no pseudo-data whose noise had a bound."""
        return [1.0] * len(sets)

    @property
    def partial_fit(self) -> Any:
        """Not there: the posterior of these layers is no prior of another fit."""
        raise AttributeError(f"{type(self).__name__} has no partial_fit; use fit with all rows")


class BaselineRegressor(PseudoDataRegressor):
    """A regressor whose noise is the same everywhere, as in the sources of all methods but deep ensembles."""

    def __init__(
        self, hidden_layer_sizes: int | Sequence[int] = (50,), *, noise: str = "constant", **options: Any
    ) -> None:
        super().__init__(hidden_layer_sizes, noise=noise, **options)


@torch.no_grad()
def mean_function(network: MLP, x: Tensor) -> Tensor:
    """The mean network at x as the one draw of a distribution: [1, *batch_shape, N, C], in double precision."""
    return copy.deepcopy(network).double().forward_centre(x.double()).unsqueeze(0)


class MeanNetwork(Baseline):
    """Predicts with the mean network: what is random in training is averaged, not drawn, at test time."""

    def _evaluate(self, x: Tensor, n_draws: int) -> Tensor:
        """The network's output [1, *batch_shape, N, C]."""
        return mean_function(self.network_, x)

    def _draw_functions(self, X: Array) -> Tensor:
        return self._evaluate(torch.as_tensor(self.input_scaling_.transform(X)), self.n_draws)

    def _held_out_log_probs(self, held_out: list[TrainingSet], n_draws: int) -> list[Array]:
        functions = self._evaluate(stack(held_out, self.n_members)[0], n_draws)
        return self._log_probs(functions, [rows.y for rows in held_out])


class GaussianComponents(Baseline):
    """For likelihoods with ``components`` that are no Gamma mixture: predictions are mixtures of Gaussians."""

    def _components(self, functions: Tensor) -> tuple[Array, Array, Array]:
        with torch.no_grad():
            parts = self.likelihood_.components(functions)  # type: ignore[operator]
            loc, scale, df = (part.double().numpy() for part in parts)
        shape = (len(functions), loc.shape[1], 1, 1)
        scale, df = (np.broadcast_to(p, np.broadcast_shapes(p.shape, shape)) for p in (scale, df))
        return loc, scale, df
