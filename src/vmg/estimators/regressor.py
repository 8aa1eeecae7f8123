"""``VMGRegressor``: regression with honest intervals, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from vmg.estimators.base import Array, VMGEstimator
from vmg.estimators.pseudo_data.regressor import PseudoDataRegressor
from vmg.estimators.reading import ReadsNumbers
from vmg.estimators.scaling import Standardiser
from vmg.fit.regression import RegressionEnsemble, fit_regression
from vmg.prediction import Prediction
from vmg.prediction.student import StudentPrediction

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["VMGRegressor"]


class VMGRegressor(MultiOutputMixin, RegressorMixin, ReadsNumbers, VMGEstimator):
    """Bayesian neural network regression with the output layer integrated out [LW16, §2.3].

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
    n_pseudo : int, sequence of int or None
        None integrates the output layer out. A number fits the paper's own model with so many pseudo-points instead, as
        :class:`~vmg.estimators.PseudoDataRegressor` does, which has all of its options.
    noise : {"auto", "constant"}
        "auto" lets the noise depend on the input where held-out rows are predicted better so.
    n_members : "auto" or int
        Networks in the ensemble.
    batch_size : "auto" or int
        Rows of a training step; tables that are shorter are taken whole.
    learning_rate_init : float
        Adam's learning rate.
    max_iter : "auto" or int
        Most steps before the last ones on all rows.
    n_iter_no_change : "auto" or int
        Training ends when held-out rows were not predicted better for as many checks, one every ten steps.
    random_state : int, RandomState or None
        Same seed, same numbers.
    verbose : bool
        Print how training goes.

    Attributes
    ----------
    ensemble_ : RegressionEnsemble
        The fitted networks; None where ``n_pseudo`` is given.
    history_ : History
        What training reported.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    feature_relevance_ : array [n_features_in_]
        How strongly each input can move the first layer, largest 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from vmg import VMGRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = VMGRegressor(random_state=0).fit(X[:400], y[:400])
    >>> model.predict_interval(X[400:], coverage=0.9).shape
    (42, 2)
    """

    _parameter_constraints = {  # noqa: RUF012
        **VMGEstimator._parameter_constraints,
        "noise": [StrOptions({"auto", "constant"})],
    }

    ensemble_: RegressionEnsemble | None
    pseudo_data_: PseudoDataRegressor | None

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] | str = "auto",
        activation: str = "auto",
        n_pseudo: int | Sequence[int] | None = None,
        *,
        noise: str = "auto",
        n_members: int | str = "auto",
        batch_size: int | str = "auto",
        learning_rate_init: float = 0.03,
        max_iter: int | str = "auto",
        n_iter_no_change: int | str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.n_pseudo = n_pseudo
        self.noise = noise
        self.n_members = n_members
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Update with new rows only: output layers are conditioned on them exactly, in milliseconds.

        The first call is a :meth:`fit`; units, hidden layers and calibration stay those of the first call. Forgets a
        conformal calibration, as ``fit`` does.

        Parameters
        ----------
        X, y, sample_weight
            New rows, as in :meth:`fit`.

        Returns
        -------
        self
        """
        return self._partial_fit(X, y, sample_weight)

    def _check_data(self, X: Any, y: Any, *, reset: bool) -> tuple[Array, NDArray]:
        # one memory order, so that frames and arrays of the same numbers give the same bits
        options = {"dtype": np.float64, "order": "C", "reset": reset}
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, **options)
        y = np.asarray(y, dtype=np.float64)
        n_outputs = 1 if y.ndim == 1 else y.shape[1]
        if reset:
            self.n_outputs_, self._single_output = n_outputs, y.ndim == 1
        elif n_outputs != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} outputs, as in the first call; got shape {y.shape}")
        return X, y

    def _fit(self, X: Array, y: NDArray, weight: Array | None) -> None:
        self.conformal_scores_ = None
        if self.n_pseudo is not None:
            self._fit_pseudo_data(X, y, weight)
            return
        targets = y.reshape(len(y), -1)
        known = self._known_scaling or (Standardiser.fit(X, weight), Standardiser.fit(targets, weight))
        self.input_scaling_, self.target_scaling_ = known
        size = self._size(len(X))
        self.ensemble_, self.history_ = fit_regression(
            self.input_scaling_.transform(X),
            self.target_scaling_.transform(targets),
            weight,
            hidden=size.hidden,
            activations=size.activations,
            n_members=size.n_members,
            plan=size.plan,
            input_noise=self.noise == "auto",
            seed=self.seed_,
            callbacks=self._listeners(),
        )
        self.pseudo_data_ = None

    def _fit_pseudo_data(self, X: Array, y: NDArray, weight: Array | None) -> None:
        noise = "constant" if self.noise == "constant" else "input"
        model = PseudoDataRegressor(**self._pseudo_data_options(), noise=noise)
        model._callbacks = self._callbacks
        self.pseudo_data_, self.ensemble_ = model.fit(X, y, weight), None
        del model._callbacks
        self.input_scaling_, self.target_scaling_ = model.input_scaling_, model.target_scaling_
        self.history_ = model.history_

    def _update(self, X: Array, y: NDArray, weight: Array | None) -> None:
        self.conformal_scores_ = None  # they were of the model before
        if self.pseudo_data_ is not None:
            self.pseudo_data_ = self.pseudo_data_.partial_fit(X, y, weight)
            return
        assert self.ensemble_ is not None
        targets = self.target_scaling_.transform(y.reshape(len(y), -1))
        self.ensemble_ = self.ensemble_.updated(self.input_scaling_.transform(X), targets, weight)

    def pred_dist(self, X: Any) -> StudentPrediction | Prediction:
        """The whole predictive distribution of each row of X.

        Returns
        -------
        StudentPrediction
            With ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``log_prob``, ``cdf``, ``quantile``,
            ``interval``, ``crps`` and ``sample``, in the target's own units. Where ``n_pseudo`` is given it is a
            :class:`~vmg.prediction.Prediction`, a mixture over draws.
        """
        check_is_fitted(self, "seed_")
        return self._distribution(self._check_X(X))

    def _distribution(self, rows: Array) -> StudentPrediction | Prediction:
        if self.pseudo_data_ is not None:
            return self.pseudo_data_._distribution(rows)
        assert self.ensemble_ is not None
        ensemble = self.ensemble_
        x, unit = self.input_scaling_.transform(rows), self.target_scaling_.scale
        found = ensemble.predict(x)
        return StudentPrediction(
            self.target_scaling_.inverse(found.loc),
            np.sqrt(found.noise_variance) * unit,
            np.sqrt(found.function_variance) * unit,
            found.degrees,
            lambda: ensemble.function_factor(x) * unit,
            squeeze=self._single_output,
        )

    @property
    def feature_relevance_(self) -> Array:
        """How much each input can move the first layer, [D], largest 1."""
        return self._relevance()
