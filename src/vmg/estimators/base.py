"""What the regressor and the classifier share: parameters, checks, a fit that happens whole or not at all."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from vmg.estimators.reading import ReadsRows, dense
from vmg.estimators.weights import weighed
from vmg.estimators.whole_fit import whole_or_not_at_all
from vmg.fit.design import Size, Standardiser, choose_size
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.model_file import write
from vmg.nn.mlp import ACTIVATIONS
from vmg.training import Callback, History, Progress, TrainingError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TableEstimator"]

Array = NDArray[np.float64]

CHECKED_ROWS = 8  # at which a fitted model must be finite


@dataclass(repr=False, eq=False)
class TableEstimator(ReadsRows, BaseEstimator):
    """Parameters and fitting of both estimators; see :class:`TableRegressor` for what each parameter means.

    Parameters are fields of dataclasses, whose ``__init__`` scikit-learn reads; fields without ``init`` are set by
    ``fit``.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": [StrOptions({"auto"}), "array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        "n_pseudo": [None, Interval(Integral, 0, None, closed="left"), "array-like"],
        "n_members": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "n_iter_no_change": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    hidden_layer_sizes: int | Sequence[int] | str = "auto"
    activation: str = "auto"
    n_pseudo: int | Sequence[int] | None = None
    _: KW_ONLY
    n_members: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate_init: float = 0.03
    max_iter: int | str = "auto"
    n_iter_no_change: int | str = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = False

    input_scaling_: Standardiser = field(init=False)
    history_: History = field(init=False)
    ensemble_: Any = field(init=False)
    pseudo_data_: Any = field(init=False)
    n_features_in_: int = field(init=False)
    seed_: int = field(init=False)

    _callbacks: tuple[Callback, ...] = field(init=False, default=())  # of the present call of fit
    _known_scaling: tuple[Standardiser, ...] = field(init=False, default=())  # likewise

    @property
    def n_steps_(self) -> int:
        """Optimiser steps of the last fit."""
        return self.history_.last.step

    @property
    def n_iter_(self) -> int:
        """The same, under scikit-learn's name."""
        return self.n_steps_

    # -- what the two estimators answer differently -------------------------------------------------------------------

    @abstractmethod
    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray[Any]]:
        """Validated X [N, D] and y, with what must be remembered of them."""

    @abstractmethod
    def _fit(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        """Fit to checked rows and set every fitted attribute."""

    @abstractmethod
    def _update(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        """Learn from more checked rows."""

    @abstractmethod
    def _centre(self, rows: Array) -> Array:
        """What is predicted for checked rows: means, or probabilities of classes."""

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        scaling: Sequence[Standardiser] = (),
    ) -> Self:
        """Fit to rows X [N, D] with targets y; an interrupted or refused fit leaves the model as it was.

        Parameters
        ----------
        X : array-like or data frame [N, D]
            Numbers, none missing. Scaling is done inside.
        y : array-like [N] or [N, C]
            Targets in any unit.
        sample_weight : array-like [N], optional
            A row with weight 2 counts as two rows.
        callbacks : sequence of callable
            Called with a :class:`~vmg.training.Progress` as training goes; one that returns True ends it.
        scaling : sequence of Standardiser, optional
            Units of the inputs, and of numeric targets, where more rows than these are known to say them.

        Returns
        -------
        self
        """
        with whole_or_not_at_all(self):
            self._callbacks, self._known_scaling = tuple(callbacks), tuple(scaling)
            self._validate_params()
            X, y = self._check_data(dense(X), y, reset=True)
            X, y, weight = weighed(X, y, sample_weight)
            self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
            with self._with_numbers(X[:CHECKED_ROWS]):
                self._fit(X, y, weight)
            del self._callbacks, self._known_scaling
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        if not hasattr(self, "seed_"):
            return self.fit(X, y, sample_weight)
        with whole_or_not_at_all(self):
            self._validate_params()
            X, y = self._check_data(dense(X), y, reset=False)
            with self._with_numbers(X[:CHECKED_ROWS]):
                self._update(*weighed(X, y, sample_weight))
        return self

    @contextmanager
    def _with_numbers(self, rows: Array) -> Iterator[None]:
        """Raise a TrainingError where the block leaves networks that predict no numbers for the rows."""
        try:
            yield
            finite = bool(np.isfinite(self._centre(rows)).all())
        except NotPositiveDefiniteError:  # of features that are not finite
            finite = False
        if not finite:
            rate = self.learning_rate_init
            raise TrainingError(f"the trained networks are not finite; try a smaller learning_rate_init than {rate:g}")

    def _size(self, n_rows: int, *, classes: bool = False) -> Size:
        """The network and its training that parameters and table ask for."""
        return self.adjusted(choose_size(n_rows, classes=classes))

    def adjusted(self, size: Size) -> Size:
        """A size with what parameters ask for."""
        return size.changed(
            hidden=_sizes(self.hidden_layer_sizes),
            activations=None if self.activation == "auto" else (self.activation,),
            n_members=None if self.n_members == "auto" else int(self.n_members),
            max_steps=None if self.max_iter == "auto" else int(self.max_iter),
            batch_rows=None if self.batch_size == "auto" else int(self.batch_size),
            rate=float(self.learning_rate_init),
            patience=None if self.n_iter_no_change == "auto" else 10 * int(self.n_iter_no_change),
        )

    def _pseudo_data_options(self) -> dict[str, Any]:
        """Parameters of the estimator that fits the paper's own model, where the user gave them."""
        most = int(np.max(np.asarray(self.n_pseudo)))
        if most > self.n_features_in_:
            warnings.warn(
                f"n_pseudo should be < the inputs and a one ({self.n_features_in_ + 1}), or the first layer's own "
                f"variance vanishes; got {most}",
                UserWarning,
                stacklevel=4,
            )
        shared = ("hidden_layer_sizes", "activation", "n_members", "batch_size", "max_iter")
        given = {name: getattr(self, name) for name in shared}
        asked = {name: value for name, value in given.items() if not (isinstance(value, str) and value == "auto")}
        return {"n_pseudo": self.n_pseudo, "random_state": self.seed_, "verbose": self.verbose, **asked}

    def _relevance(self) -> Array:
        if self.pseudo_data_ is not None:
            return self.pseudo_data_.feature_relevance_
        relevance = self.ensemble_.relevance()
        return relevance / max(relevance.max(), np.finfo(np.float64).tiny)

    def _listeners(self) -> list[Callback]:
        return [*self._callbacks, *([print_progress] if self.verbose else [])]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file, which :func:`vmg.load` reads.

        The file is safetensors inside, without code. It takes the place of an old one only when it is complete.
        """
        check_is_fitted(self, "seed_")
        from vmg.estimators.saving import to_state  # knows both estimators, which are built on this class

        write(path, *to_state(self))


def _sizes(given: int | Sequence[int] | str) -> tuple[int, ...] | None:
    if isinstance(given, str):
        return None
    return (int(given),) if isinstance(given, Integral) else tuple(int(size) for size in np.atleast_1d(given))


def print_progress(progress: Progress) -> None:
    """Print one line about training."""
    print(f"step {progress.step:>6}  log posterior {progress.elbo:9.4f} a row  {progress.seconds:6.1f} s")
