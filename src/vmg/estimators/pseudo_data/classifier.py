"""``PseudoDataClassifier``: class probabilities that say how unsure they are, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from torch import Tensor

from vmg.estimators.network import Array, NetworkEstimator, one_or_all
from vmg.estimators.pseudo_data.method import CONSTRAINTS, pseudo_data_method
from vmg.estimators.reading import ReadsClasses
from vmg.fit.variational import CategoricalClasses, Method
from vmg.training import Callback

__all__ = ["PseudoDataClassifier"]


class PseudoDataClassifier(ClassifierMixin, ReadsClasses, NetworkEstimator):
    """Bayesian neural network classification with matrix Gaussian posteriors and pseudo-data [LW16].

    Parameters
    ----------
    hidden_layer_sizes, activation, n_pseudo, max_noise, pseudo_noise, row_covariance, column_covariance, zero_mean, \
prior, n_members, batch_size, learning_rate_init, max_iter, averaging, early_stopping, validation_fraction, \
n_iter_no_change, tol, warm_start, n_draws, random_state, verbose
        As in :class:`PseudoDataRegressor`.

    Attributes
    ----------
    classes_ : array [K]
        The classes, sorted.
    network_, likelihood_, history_, n_features_in_, feature_names_in_, feature_relevance_
        As in :class:`PseudoDataRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from vmg.estimators import PseudoDataClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = PseudoDataClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
    """

    _parameter_constraints = CONSTRAINTS

    max_noise_: float | Array

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str | Callable[[Tensor], Tensor] = "relu",
        n_pseudo: int | Sequence[int] = 10,
        *,
        max_noise: float | str = "auto",
        pseudo_noise: str = "layer",
        row_covariance: str = "diagonal",
        column_covariance: str = "diagonal",
        zero_mean: bool = False,
        prior: str = "gamma",
        n_members: int = 1,
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.01,
        max_iter: int | str = "auto",
        averaging: float | None = 0.99,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        n_draws: int = 200,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_pseudo = n_pseudo
        self.max_noise = max_noise
        self.pseudo_noise = pseudo_noise
        self.row_covariance = row_covariance
        self.column_covariance = column_covariance
        self.zero_mean = zero_mean
        self.prior = prior
        self.n_members = n_members
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.averaging = averaging
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.n_draws = n_draws
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
    ) -> PseudoDataClassifier:
        """Update with new rows only: the posterior so far becomes the prior.

        Parameters
        ----------
        X, y, sample_weight
            New rows, as in ``fit``.
        classes : array-like, optional
            All classes that will ever come; needed on the first call where its rows do not show them all.
        callbacks
            As in ``fit``.

        Returns
        -------
        self
        """
        if hasattr(self, "network_"):
            if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")
            return self._update(X, y, sample_weight, callbacks=callbacks)
        self._announced = None if classes is None else np.unique(classes)
        try:
            return self.fit(X, y, sample_weight, callbacks=callbacks)
        finally:
            del self._announced

    def _method(self) -> Method:
        return pseudo_data_method(self, CategoricalClasses())

    def _set_choices(self, choices: list[float]) -> None:
        self.max_noise_ = one_or_all(choices)
