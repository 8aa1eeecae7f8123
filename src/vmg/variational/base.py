"""A scikit-learn estimator around a :class:`~vmg.variational.fitter.Fitter`, and many fits as one."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from vmg.estimators.base import Array, ClassesMixin, EstimatorBase, NumbersMixin, draw_seed
from vmg.estimators.documents import Codec
from vmg.fit.design import Standardiser
from vmg.likelihoods import Likelihood
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import ACTIVATIONS, MLP
from vmg.training import Callback, History
from vmg.variational.documents import MODULE_CODECS
from vmg.variational.fitter import EarlyStopping, Fitted, Fitter
from vmg.variational.method import STANDARD, Budget, Method
from vmg.variational.rows import ClassTargets, NumericTargets, Targets, TrainingSet

__all__ = ["Array", "VariationalClasses", "VariationalEstimator", "VariationalNumbers", "fit_splits"]


@dataclass(repr=False, eq=False)
class VariationalEstimator(EstimatorBase):
    """Parameters of training, and what is left of a fit: the network and its likelihood.

    A final class says which :class:`~vmg.variational.method.Method` it fits, and is a regressor or a classifier.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS)), callable],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "averaging": [None, Interval(Real, 0, 1, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    hidden_layer_sizes: int | Sequence[int] = (50,)
    activation: str | Callable[[Tensor], Tensor] = "relu"
    _: KW_ONLY
    n_members: int = 1
    batch_size: int | str = "auto"
    learning_rate_init: float = 0.01
    max_iter: int | str = "auto"
    averaging: float | None = 0.99
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    n_draws: int = 200
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = False

    network_: MLP = field(init=False)
    likelihood_: Likelihood = field(init=False)
    input_scaling_: Standardiser = field(init=False)
    history_: History = field(init=False)
    n_iter_: int = field(init=False)
    n_features_in_: int = field(init=False)

    # -- what final classes say ---------------------------------------------------------------------------------------

    @abstractmethod
    def _method(self) -> Method:
        """The method that is fitted."""

    @abstractmethod
    def _set_choices(self, choices: Sequence[Any]) -> None:
        """Remember what was chosen for each member."""

    @abstractmethod
    def _targets(self) -> Targets:
        """How targets enter and leave the network."""

    def _budget(self) -> Budget:
        """How long it trains where the user does not say."""
        return STANDARD

    # -- fitting ------------------------------------------------------------------------------------------------------

    def _fit(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        rows = self._prepare(X, y, weight)
        if getattr(self, "warm_start", False) and hasattr(self, "network_"):
            self._take(self._fitter().train_further(self.network_, self.likelihood_, rows))
        else:
            [fitted] = self._fitter().fit([rows])
            self._take(fitted)

    def _update(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        """Learn from new rows only: the posterior so far becomes the prior."""
        self.seed_ = (self.seed_ + 1) % (2**31 - 1)
        rows = self._encode_rows(X, y, weight)
        self._take(self._fitter().update(self.network_, self.likelihood_, rows))

    def _start(self, X: Any, y: Any, callbacks: Sequence[Callback]) -> tuple[Array, NDArray[Any], tuple[Callback, ...]]:
        """Checked rows and all callbacks of a fit that :func:`fit_splits` does."""
        with self._whole_or_not_at_all(callbacks):
            self.seed_ = draw_seed(self.random_state)
            return *self._check_data(X, y, reset=True), self._callbacks

    def _fitter(self) -> Fitter:
        stopping = EarlyStopping(self.validation_fraction, self.n_iter_no_change, self.tol)
        return Fitter(
            self._method(),
            self._targets(),
            n_members=int(self.n_members),
            batch_size=None if self.batch_size == "auto" else int(self.batch_size),
            n_epochs=None if self.max_iter == "auto" else int(self.max_iter),
            learning_rate=self.learning_rate_init,
            averaging=self.averaging,
            budget=self._budget(),
            early_stopping=stopping if self.early_stopping else None,
            callbacks=self._callbacks,
            seed=self.seed_,
        )

    def _learn_units(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        """Remember the units of the training rows; classes have none."""
        self.input_scaling_ = Standardiser.fit(X, weight)

    def _prepare(self, X: Array, y: NDArray[Any], weight: Array | None) -> TrainingSet:
        """Learn the units of the rows and express the rows in them."""
        self._learn_units(X, y, weight)
        return self._encode_rows(X, y, weight)

    def _encode_rows(self, X: Array, y: NDArray[Any], weight: Array | None) -> TrainingSet:
        x = torch.as_tensor(self.input_scaling_.transform(X), dtype=torch.float32)
        w = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)
        targets = self._targets()
        return TrainingSet(x, targets.encode(y), w, targets.unit)

    def _take(self, fitted: Fitted) -> None:
        self.network_, self.likelihood_ = fitted.network, fitted.likelihood
        self.history_, self.n_iter_ = fitted.history, fitted.n_epochs
        if fitted.choices:
            self._set_choices(fitted.choices)

    @classmethod
    def _codecs(cls) -> Mapping[type[Any], Codec]:
        return {**super()._codecs(), **MODULE_CODECS}

    # -- predicting ---------------------------------------------------------------------------------------------------

    def _predict_features(self, X: Array) -> Any:
        """The predictive distribution, from draws that depend on the fitted seed alone, not on other rows."""
        return self._targets().prediction(self.likelihood_, self._functions(X))

    def _functions(self, rows: Array) -> Tensor:
        """Posterior draws of the network's outputs, [S, members, N, C]."""
        x = torch.as_tensor(self.input_scaling_.transform(rows))
        return self._method().evaluate(self.network_, x, self.n_draws, self.seed_)

    def _centre(self, rows: Array) -> NDArray[Any]:
        try:
            return self._functions(rows).numpy()
        except ValueError:  # of a layer whose inputs are not finite
            return np.full(1, np.nan)

    @property
    def feature_relevance_(self) -> Array:
        """How much each input can move the first layer, [D], largest 1.

        The norm of an input's row of mean weights: inputs are standardised, so rows compare.
        """
        first = self.network_.layers[0]
        assert isinstance(first, BayesianLinear)
        with torch.no_grad():
            weight = first.mean_weight()[..., : self.n_features_in_, :]
            relevance = torch.linalg.vector_norm(weight, dim=-1).mean(0).numpy().astype(np.float64)
        return relevance / max(relevance.max(), np.finfo(np.float64).tiny)

    def hidden_sizes(self) -> tuple[int, ...]:
        """``hidden_layer_sizes`` as a tuple."""
        return tuple(int(size) for size in np.atleast_1d(self.hidden_layer_sizes))


class VariationalNumbers(NumbersMixin, VariationalEstimator):
    """Numeric targets of networks."""

    def _learn_units(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        super()._learn_units(X, y, weight)
        self.target_scaling_ = Standardiser.fit(y.reshape(len(y), -1), weight)

    def _targets(self) -> Targets:
        return NumericTargets(self.target_scaling_, self._single_output)


class VariationalClasses(ClassesMixin, VariationalEstimator):
    """Classes as targets of networks."""

    def _targets(self) -> Targets:
        return ClassTargets(self.classes_)


Estimator = TypeVar("Estimator", bound=VariationalEstimator)


def fit_splits(
    estimator: Estimator,
    X: Any,
    y: Any,
    splits: Iterable[tuple[ArrayLike, Any]],
    *,
    callbacks: Sequence[Callback] = (),
) -> list[Estimator]:
    """Fit a clone of ``estimator`` to the training rows of every split, all in one training run.

    Much faster than one fit after another on tables where a step's work is small. Each clone scales its own rows and
    is a complete fitted estimator; test rows are never looked at, but for the names of their classes: all clones have
    the classes of the whole table. With ``early_stopping`` each keeps the parameters that were its own best.

    Parameters
    ----------
    estimator : VMGRegressor or VMGClassifier
        Left as it is.
    X, y : array-like
        The whole table.
    splits : iterable of (train, test)
        Row indices, as from ``KFold().split(X)``.
    callbacks : sequence of callable
        Called with a :class:`~vmg.training.Progress` fifty times in the run; one that returns True ends it.

    Returns
    -------
    list of fitted estimators, one for each split
    """
    pairs = list(splits)
    if not pairs:
        raise ValueError("splits must hold at least one (train, test) pair; got none")
    if any(np.size(train) == 0 for train, _ in pairs):
        raise ValueError("every split must have training rows; got one without")
    leader = clone(estimator)
    X, y, listeners = leader._start(X, y, callbacks)
    fitted = [copy.deepcopy(leader) for _ in pairs]
    sets = [one._prepare(X[train], y[train], None) for one, (train, _) in zip(fitted, pairs, strict=True)]
    fitter = replace(fitted[0]._fitter(), callbacks=listeners)
    for one, trained in zip(fitted, fitter.fit(sets), strict=True):
        one._take(trained)
    return fitted
