"""``TableClassifier``: class probabilities that say how unsure they are, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import StrOptions

from vmg.estimators.base import DRAWS, Array, ClassesMixin, parameter
from vmg.estimators.table_estimator import TableEstimator
from vmg.fit.classes import ClassificationEnsemble, fit_classification
from vmg.fit.design import FitSettings
from vmg.prediction import ClassPrediction

__all__ = ["TableClassifier"]


@dataclass(repr=False, eq=False)
class TableClassifier(ClassifierMixin, ClassesMixin, TableEstimator):
    """Bayesian neural network classification with a matrix Gaussian output layer at its optimum.

    An ensemble as in :class:`TableRegressor`. The softmax layer's weights have a matrix Gaussian posterior with a dense
    row covariance, found by natural-gradient steps.

    Parameters
    ----------
    hidden_layer_sizes, activation, n_members, batch_size, learning_rate_init, max_iter, n_iter_no_change, \
categorical, ignore, date_formats, decimal, random_state, verbose
        As in :class:`TableRegressor`.
    experts : "auto", str or sequence of str
        "auto" (the default) lets boosted trees help the networks where held-out rows gain by them; "networks" takes
        the networks alone. Logits of the networks and log probabilities of the trees are added with factors that
        held-out rows choose. Trees are fitted to 50 to 50,000 rows, know no ignorance, and do not change in
        ``partial_fit``: mutual information and what else is epistemic comes from the networks.
    n_draws : int
        Posterior draws behind a prediction, for each member.
    class_weight : dict, "balanced" or None
        How much rows of a class count, beside their own weight; "balanced" lets every class count the same in all.

    Attributes
    ----------
    classes_ : array [K]
        The classes, sorted.
    expert_weights_ : dict of str to float
        The factor of each expert's log probabilities.
    ensemble_, history_, n_features_in_, feature_names_in_, feature_relevance_
        As in :class:`TableRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from vmg import TableClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TableClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
    """

    _: KW_ONLY
    experts: str | Sequence[str] = parameter("auto", str, "array-like")
    n_draws: int = parameter(16, DRAWS)
    class_weight: dict[Any, float] | str | None = parameter(None, dict, StrOptions({"balanced"}), None)

    class_weights_: Array | None = field(init=False)
    ensemble_: ClassificationEnsemble = field(init=False)

    def _weigh_classes(self, y: NDArray[Any], weight: Array | None) -> Array | None:
        """Weights of rows [N] with those of their classes, which the first rows set."""
        if self.class_weights_ is None:
            return weight
        of_class = self.class_weights_[np.searchsorted(self.classes_, y)]
        return of_class if weight is None else of_class * weight

    def _described_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return np.searchsorted(self.classes_, y)

    def _fit_features(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        asked = self.class_weight
        self.class_weights_ = None if asked is None else _class_weights(asked, self.classes_, y, weight)
        weight = self._weigh_classes(y, weight)
        x, labels = self._standardise(X, weight), np.searchsorted(self.classes_, y)
        settings = FitSettings(self._size(len(X), classes=True), self.seed_, self._callbacks)
        fitted = fit_classification(x, labels, len(self.classes_), weight, settings, self._expert_names())
        self.ensemble_, self.history_ = fitted.ensemble, fitted.history

    def _update(self, X: Array, y: NDArray[Any], weight: Array | None) -> Array:
        weight = self._weigh_classes(y, weight)
        labels = np.searchsorted(self.classes_, y)
        self.ensemble_ = self.ensemble_.updated(self.input_scaling_.transform(X), labels, weight)
        return X

    def _predict_features(self, X: Array) -> ClassPrediction:
        x = self.input_scaling_.transform(X)
        return ClassPrediction(self.ensemble_.sample_probabilities(x, self.n_draws, self.seed_), self.classes_)


def _class_weights(
    given: dict[Any, float] | str, classes: NDArray[Any], y: NDArray[Any], weight: Array | None
) -> Array:
    """Weights of classes [K]; "balanced" gives n/(K n_k) with n_k the weight of all rows of a class."""
    if given == "balanced":
        mass = np.bincount(np.searchsorted(classes, y), weights=weight, minlength=len(classes))
        return np.where(mass > 0, mass.sum() / (len(classes) * np.where(mass > 0, mass, 1.0)), 1.0)
    weights = compute_class_weight(given, classes=classes, y=classes)
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError(f"class_weight must have positive numbers; got {given}")
    return weights
