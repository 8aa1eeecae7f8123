"""Base of the reference methods: parameters, scaling, and fitting all splits of a table in one run."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y

from vmg.fit.design import Standardiser
from vmg.prediction import Prediction

__all__ = ["Array", "BatchedRegressor", "Rows", "fit_together"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Training rows of one fit in standard units."""

    x: Array  # [N, D]
    y: Array  # [N]
    unit: float  # what one standard unit of the target is in the target's own


class BatchedRegressor(RegressorMixin, BaseEstimator, ABC):
    """A regressor of one target whose fits of several training sets run as one.

    Subclasses are dataclasses: their fields are the parameters of a scikit-learn estimator.
    """

    input_scaling_: Standardiser
    target_scaling_: Standardiser
    posterior_: Any
    n_steps_: int

    @abstractmethod
    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[Any], int]:
        """A posterior for each training set, and the number of steps that it took."""

    @abstractmethod
    def _predict_standard(self, x: Array) -> Prediction:
        """The predictive distribution at standardised rows x [N, D], in standard units."""

    def fit(self: Model, X: ArrayLike, y: ArrayLike) -> Model:
        """Fit to rows X [N, D] with targets y [N]; scaling is done inside."""
        with torch.inference_mode(False), torch.enable_grad():
            fit_together([self], [check_X_y(X, y, dtype=np.float64, y_numeric=True)])
        return self

    def pred_dist(self, X: ArrayLike) -> Prediction:
        """The whole predictive distribution of each row of X, in the target's own units."""
        check_is_fitted(self)
        rows: Array = check_array(X, dtype=np.float64)
        n_features = len(self.input_scaling_.mean)
        if rows.shape[1] != n_features:
            raise ValueError(f"X must be [N, {n_features}], as in fit; got shape {rows.shape}")
        standard = self._predict_standard(self.input_scaling_.transform(rows))
        unit = self.target_scaling_.scale
        return dataclasses.replace(
            standard, loc=self.target_scaling_.inverse(standard.loc), scale=standard.scale * unit
        )

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The mean of the target at each row, [N], and its standard deviation if asked for."""
        prediction = self.pred_dist(X)
        return (prediction.mean, prediction.std) if return_std else prediction.mean


Model = TypeVar("Model", bound=BatchedRegressor)


def fit_together(models: Sequence[BatchedRegressor], tables: Sequence[tuple[Array, Array]]) -> None:
    """Fit estimators with the same parameters, each to its own rows [N, D] and targets [N], in one run."""
    sets = []
    for model, (X, y) in zip(models, tables, strict=True):
        model.input_scaling_, model.target_scaling_ = Standardiser.fit(X), Standardiser.fit(y[:, None])
        standard = model.target_scaling_.transform(y[:, None])[:, 0]
        sets.append(Rows(model.input_scaling_.transform(X), standard, float(model.target_scaling_.scale[0])))
    posteriors, n_steps = models[0]._fit_all(sets)
    for model, posterior in zip(models, posteriors, strict=True):
        model.posterior_, model.n_steps_ = posterior, n_steps
