"""What the regressor and the classifier share: parameters, training of all members at once, online updates."""

from __future__ import annotations

import copy
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from vmg.estimators.pseudo_data.effort import STANDARD, Effort
from vmg.estimators.pseudo_data.going_on import check_going_on
from vmg.estimators.pseudo_data.online import posterior_as_prior
from vmg.estimators.pseudo_data.selection import CANDIDATES, choose_max_noise
from vmg.estimators.pseudo_data.stopping import BestSoFar, State
from vmg.estimators.pseudo_data.training_sets import TrainingSet, hold_out, stack
from vmg.estimators.scaling import Standardiser
from vmg.estimators.weights import weighed
from vmg.estimators.whole_fit import whole_or_not_at_all
from vmg.likelihoods import Likelihood
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.covariance_parameters import FAMILIES
from vmg.nn.mlp import ACTIVATIONS, MLP
from vmg.nn.pseudo_data import NOISE_KINDS
from vmg.persistence import write
from vmg.prediction import draw_functions
from vmg.priors import GammaPrior, IsotropicPrior, Prior
from vmg.training import Callback, History, Progress, Schedule, TrainingError, cosine, train

__all__ = ["PseudoDataEstimator"]

Array = NDArray[np.float64]

CHECKED_ROWS = 8  # at which a trained network must be finite
PRIORS: dict[str, type[Prior]] = {"gamma": GammaPrior, "isotropic": IsotropicPrior}


class PseudoDataEstimator(BaseEstimator, ABC):
    """Parameters and training of both estimators; see :class:`PseudoDataRegressor` for what each parameter means."""

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012 - scikit-learn's own convention
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions(set(ACTIVATIONS)), callable],
        "n_pseudo": [Interval(Integral, 0, None, closed="left"), "array-like"],
        "max_noise": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "pseudo_noise": [StrOptions(set(NOISE_KINDS))],
        "row_covariance": [StrOptions(set(FAMILIES))],
        "column_covariance": [StrOptions(set(FAMILIES))],
        "zero_mean": ["boolean"],
        "prior": [StrOptions(set(PRIORS))],
        "n_members": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "averaging": [None, Interval(Real, 0, 1, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "n_draws": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    hidden_layer_sizes: int | Sequence[int]
    activation: str | Callable[[Tensor], Tensor]
    n_pseudo: int | Sequence[int]
    max_noise: float | str
    pseudo_noise: str
    row_covariance: str
    column_covariance: str
    zero_mean: bool
    prior: str
    n_members: int
    batch_size: int | str
    learning_rate_init: float
    max_iter: int | str
    averaging: float | None
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    tol: float
    warm_start: bool
    n_draws: int
    random_state: int | np.random.RandomState | None
    verbose: bool | int

    _schedule: Schedule = staticmethod(cosine)
    _initial_scale: float = math.exp(-9)  # of the weights; chosen by the bound that a given number of steps reaches

    _sampling: str = "marginal"  # how layers draw in training

    network_: MLP
    likelihood_: Likelihood
    input_scaling_: Standardiser
    history_: History
    n_features_in_: int
    seed_: int
    max_noise_: float | Array

    _callbacks: tuple[Callback, ...] = ()  # told of training besides the estimator's own; set around a fit

    @property
    def n_steps_(self) -> int:
        """Optimiser steps of the last fit."""
        return self.history_.last.step

    # -- what the two estimators answer differently -------------------------------------------------------------------

    @abstractmethod
    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray]:
        """Validated X [N, D] and y, with what must be remembered of them."""

    @abstractmethod
    def _fit_target_scaling(self, y: NDArray, weight: Array | None) -> None:
        """Remember the target's units (or classes) of the training rows."""

    @abstractmethod
    def _target_unit(self) -> Array:
        """What one standard unit of each target is in the target's own, [C]."""

    @abstractmethod
    def _encode(self, y: NDArray) -> Tensor:
        """Targets in the network's units."""

    @abstractmethod
    def _make_likelihood(self, n_steps: int, units: Array) -> Likelihood:
        """A fresh likelihood for as many replicas as there are rows of ``units`` [replicas, C]."""

    @abstractmethod
    def _n_network_outputs(self) -> int:
        """Outputs that the network needs."""

    @abstractmethod
    def _log_probs(self, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        """log p(y) of every row of several sets, each under its own ``n_members`` of the replicas.

        ``functions`` [S, replicas, N, C] are posterior draws at the sets' inputs, padded to the longest set's N.
        """

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit to rows X [N, D] with targets y; an interrupted or refused fit leaves the model as it was.

        Parameters
        ----------
        X : array-like or data frame [N, D]
            Numbers, none missing. Scaling is done inside.
        y : array-like [N] or [N, C]
            Targets in any unit.
        sample_weight : array-like [N], optional
            A row with weight 2 counts as two rows.

        Returns
        -------
        self
        """
        with whole_or_not_at_all(self):
            self._validate_params()
            fresh = not (self.warm_start and hasattr(self, "network_"))
            X, y = self._check_data(X, y, reset=True)
            X, y, weight = weighed(X, y, sample_weight)
            if not fresh:
                self._check_layers(X.shape[1])
                self.network_, self.likelihood_ = copy.deepcopy((self.network_, self.likelihood_))
            self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
            data = self._prepare(X, y, weight)
            if fresh:
                [self.max_noise_] = self._choose_max_noise([data])
            self._train([data], None if not fresh else [self.max_noise_])
            self._check_functions(data.x[:CHECKED_ROWS])
        return self

    def _choose_max_noise(self, sets: list[TrainingSet]) -> Sequence[float | Array]:
        """The bound on √α for each training set: one number, or one for each member."""
        if self.max_noise != "auto":
            return [float(self.max_noise)] * len(sets)
        if not np.any(self.n_pseudo):  # then there is nothing to bound, and nothing to try
            return [CANDIDATES[0]] * len(sets)
        return choose_max_noise(self, sets)

    def _check_layers(self, n_features: int) -> None:
        """A network that is trained on must still be the one that parameters and data ask for."""
        asked = self._make_network(n_features, (self.n_members,), self.max_noise_)
        check_going_on(self.network_, asked)

    def _prepare(self, X: Array, y: NDArray, weight: Array | None) -> TrainingSet:
        """Learn the units of the rows and express the rows in them."""
        self.input_scaling_ = Standardiser.fit(X, weight)
        self._fit_target_scaling(y, weight)
        return self._encode_rows(X, y, weight)

    def _encode_rows(self, X: Array, y: NDArray, weight: Array | None) -> TrainingSet:
        x = torch.as_tensor(self.input_scaling_.transform(X), dtype=torch.float32)
        w = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)
        return TrainingSet(x, self._encode(y), w, self._target_unit())

    def _make_network(self, n_features: int, batch_shape: Sequence[int], max_noise: float | Array) -> MLP:
        sizes = self.hidden_layer_sizes
        hidden = (int(sizes),) if isinstance(sizes, Integral) else tuple(int(size) for size in np.atleast_1d(sizes))
        points = self.n_pseudo
        n_pseudo = int(points) if isinstance(points, Integral) else [int(p) for p in np.atleast_1d(points)]
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # the paper itself uses more pseudo-points than inputs on narrow tables
            warnings.filterwarnings("ignore", message="n_pseudo should be <")
            return MLP(
                n_features,
                hidden,
                self._n_network_outputs(),
                activation=self.activation,
                n_pseudo=n_pseudo,
                max_noise=_bound(max_noise),
                pseudo_noise=self.pseudo_noise,
                row_covariance=self.row_covariance,
                column_covariance=self.column_covariance,
                zero_mean=self.zero_mean,
                prior=self._make_prior(),
                initial_scale=self._initial_scale,
                sampling=self._sampling,
                batch_shape=batch_shape,
            )

    def _make_prior(self) -> Prior:
        return PRIORS[self.prior]()

    def _kl_weights(self, n_batches: int) -> float | Sequence[float]:
        """Weight of the KL in each batch of an epoch; see :func:`vmg.training.train`."""
        return 1.0

    @property
    def _effort(self) -> Effort:
        """How long it trains where the user does not say."""
        return STANDARD

    def _train(
        self,
        sets: list[TrainingSet],
        max_noise: Sequence[float | Array] | None = None,
        *,
        effort: Effort | None = None,
        at_most: int | None = None,
    ) -> list[State]:
        """Train ``n_members`` replicas for each training set, all as one batched network.

        A fresh network has the bounds ``max_noise``, one for each set; without them the present network trains on.
        Returns for each set the state of network and likelihood in which its replicas are trained.
        """
        n_replicas = len(sets) * self.n_members
        smallest = min(len(s.x) for s in sets)
        effort = self._effort if effort is None else effort
        automatic = effort.batch_size(smallest) if self.batch_size == "auto" else int(self.batch_size)
        batch_size = min(automatic, smallest)
        per_epoch = max(1, smallest // batch_size)
        n_steps = effort.steps(smallest) if self.max_iter == "auto" else int(self.max_iter) * per_epoch
        n_steps = n_steps if at_most is None else min(n_steps, at_most)

        generator = torch.Generator().manual_seed(self.seed_)
        if max_noise is not None:
            bounds = np.concatenate([np.broadcast_to(bound, self.n_members) for bound in max_noise])
            self.network_ = self._make_network(sets[0].x.shape[-1], (n_replicas,), bounds)
            self.network_.reset_parameters(generator)
            units = np.repeat([rows.unit for rows in sets], self.n_members, axis=0)
            self.likelihood_ = self._make_likelihood(n_steps, units)

        train_sets, held_out = sets, None
        if self.early_stopping:
            train_sets, held_out = hold_out(sets, self.validation_fraction, generator)
        callbacks: list[Callback] = [*self._callbacks]
        if self.verbose:
            callbacks.append(_print_progress)
        best = BestSoFar(self, held_out) if held_out is not None else None
        if best is not None:
            callbacks.append(best)

        x, y, weight, n_rows = stack(train_sets, self.n_members)
        self.history_ = train(
            self.network_,
            self.likelihood_,
            x,
            y,
            n_steps=n_steps,
            batch_size=batch_size,
            learning_rate=self.learning_rate_init,
            schedule=self._schedule,
            averaging=self.averaging,
            kl_weight=self._kl_weights(max(1, min(len(s.x) for s in train_sets) // batch_size)),
            weight=weight,
            n_rows=n_rows,
            batch_shape=(n_replicas,),
            callbacks=callbacks,
            report_every=max(1, n_steps // 50),
            generator=generator,
        )
        self.n_iter_ = math.ceil(self.history_.last.step / per_epoch)
        last = self.network_.state_dict(), self.likelihood_.state_dict()
        states = [last] * len(sets) if best is None else [state or last for state in best.states]
        if len(sets) == 1:
            self.network_.load_state_dict(states[0][0])
            self.likelihood_.load_state_dict(states[0][1])
        return states

    def _update(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Learn from new rows only: the posterior so far becomes the prior."""
        if not hasattr(self, "network_"):
            return self.fit(X, y, sample_weight)
        with whole_or_not_at_all(self):
            self._validate_params()
            X, y = self._check_data(X, y, reset=False)
            X, y, weight = weighed(X, y, sample_weight)
            self._check_layers(X.shape[1])
            data = self._encode_rows(X, y, weight)
            self.seed_ = (self.seed_ + 1) % (2**31 - 1)
            generator = torch.Generator().manual_seed(self.seed_)
            self.network_ = posterior_as_prior(self.network_, generator)
            self.likelihood_ = self._likelihood_as_prior()
            self._train([data])
            self._check_functions(data.x[:CHECKED_ROWS])
        return self

    def _check_functions(self, x: Tensor) -> None:
        """Raise a TrainingError where the last steps left a network whose functions are not finite."""
        try:
            finite = bool(draw_functions(self.network_, x, self.n_draws, self.seed_).isfinite().all())
        except ValueError:  # of a layer whose inputs are not finite
            finite = False
        if not finite:
            raise TrainingError(
                f"the trained network is not finite; try a smaller learning_rate_init than {self.learning_rate_init:g}"
            )

    @abstractmethod
    def _likelihood_as_prior(self) -> Likelihood:
        """A likelihood whose prior is the present one's posterior."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, which :func:`vmg.load` reads.

        The file is safetensors inside, without code. It takes the place of an old one only when it is complete.
        """
        from vmg.estimators.saving import to_state  # knows both estimators, which are built on this class

        write(path, *to_state(self))

    # -- predicting ---------------------------------------------------------------------------------------------------

    def _draw_functions(self, X: Array) -> Tensor:
        """Posterior draws of the network's output [S, E, N, C] in its own units, in double precision.

        The draws depend on the fitted seed alone: the same row gets the same numbers in any company.
        """
        x = torch.as_tensor(self.input_scaling_.transform(X))
        return draw_functions(self.network_, x, self.n_draws, self.seed_)

    def _held_out_log_probs(self, held_out: list[TrainingSet], n_draws: int) -> list[Array]:
        """log p(y) in standard units of every held-out row, for the replicas of each set."""
        x = stack(held_out, self.n_members)[0]
        functions = draw_functions(self.network_, x, n_draws, self.seed_)
        return self._log_probs(functions, [rows.y for rows in held_out])

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


def _bound(max_noise: float | Array) -> float | Tensor:
    """One number where all replicas have the same."""
    values = np.unique(max_noise)
    return float(values[0]) if len(values) == 1 else torch.as_tensor(max_noise, dtype=torch.get_default_dtype())


def _print_progress(progress: Progress) -> None:
    print(
        f"step {progress.step:>6}/{progress.n_steps}  bound {progress.elbo:9.4f}  "
        f"fit {progress.expected_log_likelihood:9.4f}  kl {progress.kl:8.4f}  {progress.seconds:6.1f} s"
    )
