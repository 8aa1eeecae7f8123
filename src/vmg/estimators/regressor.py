"""``TableRegressor``: regression with honest intervals, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval, StrOptions

from vmg.estimators.base import Array, NumbersMixin, parameter
from vmg.estimators.table_estimator import TableEstimator
from vmg.fit.choice import TargetFit, TargetFitter, TargetModel, choose_target
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.glm import ScalarEnsemble
from vmg.likelihoods.families import LIKELIHOODS
from vmg.prediction import AtomPrediction, NumberPrediction, StudentPrediction, TransformedPrediction

__all__ = ["TableRegressor"]

FINITE = Interval(Real, None, None, closed="neither")


@dataclass(repr=False, eq=False)
class TableRegressor(MultiOutputMixin, RegressorMixin, NumbersMixin, TableEstimator):
    """Bayesian neural network regression with the output layer integrated out [LW16, §2.3].

    Rows are arrays or data frames. Numbers, none missing, are taken as they are. A frame with words, dates or missing
    cells, or an array with NaN, is encoded column by column. Rows with unknown cells are predicted as mixtures over
    the values that training rows have there.

    An ensemble of networks. Hidden weights of each start at a draw from a matrix Gaussian prior and are anchored
    there; the output layer and its noise are integrated out in closed form. Each network leaves out a part of the rows,
    some of them whole regions. How well it predicts those says when to stop, how noisy targets are, and how unsure to
    be where there are no data.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int
        Sizes of the hidden layers; "auto" follows the number of rows.
    activation : {"auto", "relu", "tanh", "silu", "gelu", "cos", "logistic", "identity"}
        "auto" gives half of the networks "relu" and half "tanh".
    noise : {"auto", "constant"}
        "auto" lets the noise depend on the input where held-out rows are predicted better so.
    likelihood : str
        How targets scatter. With the output layer integrated out: "student", "normal", "lognormal" (the logarithm is a
        Student t). With a natural-gradient output layer: "poisson", "negative-binomial", "beta", "ordinal" (a
        few ordered values), "binomial", where ``y`` [N, 2] has successes and trials, and "censored", where ``y`` [N, 2]
        has a lower and an upper bound of the target, equal where it is seen and infinite where there is none. "auto"
        compares those that the target's values allow on held-out training rows; several outputs get "student".
    lower_limit, upper_limit : float or None
        Targets ``y`` [N] at or beyond a limit are known to be there only, as with a sensor's range: the likelihood is
        then "censored". Predictions are of the target itself, beyond the limits too.
    n_members : "auto" or int
        Networks in the ensemble.
    experts : "auto", str or sequence of str
        Models that predict together, weighed by held-out rows: "networks", which are always there, a
        "gaussian_process" and "boosted_trees". "auto" takes all that suit. Whatever is asked for, there are networks
        alone for several outputs, fewer than 50 or more than 50,000 rows, fleets, streams, and likelihoods other than
        "student", "normal" and "lognormal" (so also for censored targets). :meth:`partial_fit` conditions
        networks and the process on new rows; trees stay.
    batch_size : "auto" or int
        Rows of a training step; tables that are shorter are taken whole.
    learning_rate_init : float
        Adam's learning rate.
    max_iter : "auto" or int
        Most steps before the last ones on all rows.
    n_iter_no_change : "auto" or int
        Training ends when held-out rows were not predicted better for as many checks, one every ten steps.
    categorical, ignore : sequence of str
        Columns whose values are names, and columns to leave out.
    date_formats : dict of str to str, optional
        Such as ``{"sold": "%d/%m/%Y"}``.
    decimal : {".", ","} or None
        What numbers in texts have; None: found out.
    random_state : int, RandomState or None
        Same seed, same numbers.
    verbose : bool
        Print how training goes.

    Attributes
    ----------
    ensemble_ : RegressionEnsemble or ScalarEnsemble
        The fitted networks.
    expert_weights_ : dict of str to float
        The weight of each expert that is left; an expert without weight is dropped.
    likelihood_, likelihood_reason_ : str
        The likelihood that was fitted, and why.
    likelihood_scores_ : dict
        Mean log probability of a small interval around held-out targets, of each candidate, where some were compared.
    atom_, atom_chance_ : float and ScalarEnsemble, or None
        A value that many rows share, and the networks that say how probable it is; the likelihood is of other rows.
    n_outliers_ : int
        Rows that were left out, for their targets are absurdly far beyond all others.
    history_ : History
        What training reported.
    inputs_ : TableInputs or None
        How columns become features (``inputs_.encoder``), and the training rows that missing cells are drawn from.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    feature_relevance_ : array
        How strongly each feature can move the first layer, largest 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from vmg import TableRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TableRegressor(random_state=0).fit(X[:400], y[:400])
    >>> model.predict_interval(X[400:], coverage=0.9).shape
    (42, 2)
    """

    _: KW_ONLY
    noise: str = parameter("auto", StrOptions({"auto", "constant"}))
    likelihood: str = parameter("auto", StrOptions({"auto", *LIKELIHOODS}))
    experts: str | Sequence[str] = parameter("auto", str, "array-like")
    lower_limit: float | None = parameter(None, FINITE, None)
    upper_limit: float | None = parameter(None, FINITE, None)

    ensemble_: RegressionEnsemble | ScalarEnsemble = field(init=False)
    likelihood_: str = field(init=False)
    likelihood_reason_: str = field(init=False)
    likelihood_scores_: dict[str, float] = field(init=False)
    atom_: float | None = field(init=False)
    atom_chance_: ScalarEnsemble | None = field(init=False)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the mean on rows X with targets y; where targets have limits, of what is measured."""
        measured, mean = (np.clip(values, *self.limits) for values in (y, self.predict(X)))
        return float(r2_score(measured, mean, sample_weight=sample_weight))

    def _check_y(self, y: Any, *, reset: bool) -> NDArray[Any]:
        name = self._asked_likelihood() if reset else self.likelihood_
        if name == "auto" or not LIKELIHOODS[name].paired:
            return super()._check_y(y, reset=reset)
        if np.ndim(y) == 1 and np.isfinite(self.limits).any():
            y = super()._check_y(y, reset=reset)
            low, high = self.limits
            ends = np.where(y <= low, -np.inf, np.minimum(y, high)), np.where(y >= high, np.inf, np.maximum(y, low))
            return np.stack(ends, 1)
        self._check_outputs(1, True, reset=reset)
        return check_array(y, dtype=np.float64, ensure_all_finite=False, input_name="y")  # bounds may be infinite

    @property
    def limits(self) -> tuple[float, float]:
        """The limits of what is measured, infinite where there are none."""
        low, high = self.lower_limit, self.upper_limit
        return (-np.inf if low is None else float(low)), (np.inf if high is None else float(high))

    def _asked_likelihood(self) -> str:
        """The likelihood that parameters ask for; limits ask for the one of censored targets."""
        if not np.isfinite(self.limits).any():
            return self.likelihood
        low, high = self.limits
        if low >= high:
            raise ValueError(f"lower_limit must be below upper_limit; got {low:g} and {high:g}")
        if self.likelihood not in ("auto", "censored"):
            raise ValueError(f"limits of the target need likelihood 'auto' or 'censored'; got {self.likelihood!r}")
        return "censored"

    def _conformal_scores(self, rows: Any, y: NDArray[Any]) -> Array:
        if self.likelihood_ == "censored":
            raise ValueError("conformalize needs targets that are seen; the likelihood is censored")
        return super()._conformal_scores(rows, y)

    def _described_targets(self, y: NDArray[Any]) -> NDArray[Any]:
        name = self._asked_likelihood()
        if name == "binomial":
            return y[:, 0] / np.maximum(y[:, 1], 1.0)
        if name == "censored":  # the middle of the bounds, or the finite one
            low, high = np.where(np.isfinite(y), y, y[:, ::-1]).T
            middle = (low + high) / 2
            return np.where(np.isfinite(middle), middle, np.median(middle[np.isfinite(middle)]))
        return y

    def _fit_features(self, X: Array, y: NDArray[Any], weight: Array | None) -> None:
        if y.ndim == 2 and y.shape[1] == 1:  # one output, however it comes
            y = y[:, 0]
        fitted = self._fit_target(self._standardise(X, weight), y, weight)
        self.likelihood_, self.likelihood_reason_ = fitted.likelihood, fitted.reason
        self.likelihood_scores_, self.n_outliers_, self.history_ = fitted.scores, fitted.n_outliers, fitted.history
        self._keep_model(fitted.model)

    def _fit_target(self, x: Array, y: NDArray[Any], weight: Array | None) -> TargetFit:
        scaling = self._known_scaling[1] if self._known_scaling else None
        name = self._asked_likelihood()
        fitter = TargetFitter(
            self._size,
            self.seed_,
            input_noise=self.noise == "auto",
            rectify=name == "auto",
            scaling=scaling,
            experts=self._expert_names(),
            callbacks=self._callbacks,
        )
        if name != "auto":
            if self.n_outputs_ > 1 and not LIKELIHOODS[name].closed_form:
                raise ValueError(f"the likelihood {name} is of one output; got {self.n_outputs_}")
            if scaling is not None and name not in ("student", "normal"):
                raise ValueError(f"likelihood must be student or normal for rows in a stream; got {name}")
            LIKELIHOODS[name].require(y)
            return fitter.fit(name, x, y, weight)
        if scaling is not None or self.n_outputs_ > 1:
            reason = f"there are {self.n_outputs_} outputs" if scaling is None else "the rows come in a stream"
            return replace(fitter.fit("student", x, y, weight), reason=reason)
        return choose_target(x, y.reshape(len(y)), weight, fitter)

    def _keep_model(self, model: TargetModel) -> None:
        self.ensemble_, self.target_scaling_, self.target_transform_ = model.ensemble, model.scaling, model.transform
        self.atom_, self.atom_chance_ = model.atom, model.chance

    @property
    def _model(self) -> TargetModel:
        """The fitted model of the target in its own unit."""
        parts = (self.ensemble_, self.target_scaling_, self.target_transform_)
        return TargetModel(*parts, self.atom_, self.atom_chance_)

    def _update(self, X: Array, y: NDArray[Any], weight: Array | None) -> Array:
        rest = y if self.atom_ is None else y[y != self.atom_]
        if len(rest):
            LIKELIHOODS[self.likelihood_].require(rest)
        self._keep_model(self._model.updated(self.input_scaling_.transform(X), y, weight))
        return X

    def _predict_features(self, X: Array) -> NumberPrediction:
        x, squeeze = self.input_scaling_.transform(X), self._single_output
        if isinstance(self.ensemble_, ScalarEnsemble):
            prediction: NumberPrediction = self.ensemble_.distribution(x, squeeze=squeeze)
        else:
            units = self.target_scaling_
            prediction = self.ensemble_.predict(x).in_units(units.mean, units.scale, squeeze=squeeze)
        if self.target_transform_ is not None and isinstance(prediction, StudentPrediction):
            prediction = TransformedPrediction(prediction, self.target_transform_)
        if self.atom_ is None or self.atom_chance_ is None:
            return prediction
        return AtomPrediction(self.atom_, self.atom_chance_.distribution(x, squeeze=squeeze), prediction)
