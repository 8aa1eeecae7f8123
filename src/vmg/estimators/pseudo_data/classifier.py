"""``VMGClassifier``: class probabilities that say how unsure they are, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sklearn.base import ClassifierMixin

from vmg.estimators.network import Array, NetworkEstimator, one_or_all
from vmg.estimators.pseudo_data.method import CONSTRAINTS, PseudoDataParameters, pseudo_data_method
from vmg.estimators.reading import ReadsClasses
from vmg.fit.variational import CategoricalClasses, Method
from vmg.training import Callback

__all__ = ["VMGClassifier"]


@dataclass(repr=False, eq=False)
class VMGClassifier(ClassifierMixin, ReadsClasses, PseudoDataParameters, NetworkEstimator):
    """Bayesian neural network classification with matrix Gaussian posteriors and pseudo-data [LW16].

    Parameters
    ----------
    hidden_layer_sizes, activation, n_pseudo, max_noise, pseudo_noise, row_covariance, column_covariance, zero_mean, \
prior, n_members, batch_size, learning_rate_init, max_iter, averaging, early_stopping, validation_fraction, \
n_iter_no_change, tol, warm_start, n_draws, random_state, verbose
        As in :class:`VMGRegressor`.

    Attributes
    ----------
    classes_ : array [K]
        The classes, sorted.
    network_, likelihood_, history_, n_features_in_, feature_names_in_, feature_relevance_
        As in :class:`VMGRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from vmg.estimators import VMGClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = VMGClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
    """

    _parameter_constraints = CONSTRAINTS

    max_noise_: float | Array = field(init=False)

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> VMGClassifier:
        """Update with new rows only: the posterior so far becomes the prior.

        Parameters
        ----------
        X, y, sample_weight, callbacks
            New rows, as in ``fit``.
        classes : array-like, optional
            All classes that will ever come; needed on the first call where its rows do not show them all.

        Returns
        -------
        self
        """
        if hasattr(self, "network_"):
            self._check_announced(classes)
            return self._update(X, y, sample_weight, callbacks=callbacks)
        with self._announce(classes):
            return self.fit(X, y, sample_weight, callbacks=callbacks)

    def _method(self) -> Method:
        return pseudo_data_method(self, self.hidden_sizes(), self.activation, CategoricalClasses())

    def _set_choices(self, choices: list[float]) -> None:
        self.max_noise_ = one_or_all(choices)
