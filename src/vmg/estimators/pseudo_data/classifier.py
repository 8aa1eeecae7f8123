"""``PseudoDataClassifier``: class probabilities that say how unsure they are, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from vmg.estimators.pseudo_data.base import Array, PseudoDataEstimator
from vmg.estimators.reading import ReadsClasses
from vmg.likelihoods import CategoricalLikelihood, Likelihood
from vmg.prediction import ClassPrediction

__all__ = ["PseudoDataClassifier"]


class PseudoDataClassifier(ClassifierMixin, ReadsClasses, PseudoDataEstimator):
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

    classes_: NDArray
    _announced: NDArray | None = None  # classes of the first partial_fit, during that call

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

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> PseudoDataClassifier:
        """Update with new rows only: the posterior so far becomes the prior.

        Parameters
        ----------
        X, y, sample_weight
            New rows, as in ``fit``.
        classes : array-like, optional
            All classes that will ever come; needed on the first call where its rows do not show them all.

        Returns
        -------
        self
        """
        if hasattr(self, "network_"):
            if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")
            return self._update(X, y, sample_weight)
        self._announced = None if classes is None else np.unique(classes)
        try:
            return self.fit(X, y, sample_weight)
        finally:
            self._announced = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> PseudoDataClassifier:
        """Fit to rows X [N, D] with classes y [N]; see :meth:`PseudoDataRegressor.fit`."""
        return super().fit(X, y, sample_weight)

    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray]:
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", reset=reset)
        check_classification_targets(y)
        found = np.unique(y)
        if reset:
            classes = found if self._announced is None else self._announced
            if len(classes) < 2:
                raise ValueError(f"y must hold at least 2 classes; got one class, {classes[0]!r}")
            if self.warm_start and hasattr(self, "network_") and not np.array_equal(classes, self.classes_):
                raise ValueError(f"warm_start needs the classes of the last fit, {self.classes_}; got {classes}")
            self.classes_ = classes
        unknown = np.setdiff1d(found, self.classes_)
        if len(unknown):
            raise ValueError(f"y must be among the classes {self.classes_}; got {unknown}")
        return X, y

    def _fit_target_scaling(self, y: NDArray, weight: Array | None) -> None:
        """Classes have no units."""
        return None

    def _encode(self, y: NDArray) -> Tensor:
        return torch.as_tensor(np.searchsorted(self.classes_, y), dtype=torch.int64)

    def _n_network_outputs(self) -> int:
        return len(self.classes_)

    def _target_unit(self) -> Array:
        return np.ones(1)

    def _make_likelihood(self, n_steps: int, units: Array) -> Likelihood:
        return CategoricalLikelihood()

    def _likelihood_as_prior(self) -> Likelihood:
        return self.likelihood_

    def _log_probs(self, functions: Tensor, targets: list[Tensor]) -> list[Array]:
        probabilities = torch.softmax(functions, -1).numpy()  # [S, replicas, N, K]
        found = []
        for k, y in enumerate(targets):
            members = slice(k * self.n_members, (k + 1) * self.n_members)
            mean = probabilities[:, members].mean((0, 1))[np.arange(len(y)), y.numpy()]
            found.append(np.log(np.maximum(mean, np.finfo(np.float64).tiny)))
        return found

    def pred_dist(self, X: Any) -> ClassPrediction:
        """The whole predictive distribution of each row of X.

        Returns
        -------
        ClassPrediction
            With ``probabilities``, ``label``, ``predictive_entropy``, ``expected_entropy``, ``mutual_information``
            and ``log_prob``.
        """
        check_is_fitted(self, "network_")
        return self._distribution(self._check_X(X))

    def _distribution(self, rows: Array) -> ClassPrediction:
        probabilities = torch.softmax(self._draw_functions(rows), -1).flatten(0, 1).numpy()
        return ClassPrediction(probabilities, self.classes_)
