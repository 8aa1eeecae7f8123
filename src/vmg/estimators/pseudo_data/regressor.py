"""``PseudoDataRegressor``: numbers with honest intervals, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vmg.estimators.network import Array, NetworkEstimator, one_or_all
from vmg.estimators.pseudo_data.method import CONSTRAINTS, pseudo_data_method
from vmg.estimators.reading import ReadsNumbers
from vmg.fit.variational import LONG, STANDARD, Budget, GaussianNoise, Method
from vmg.math.moments import normal_points
from vmg.prediction import Prediction, propagate_moments
from vmg.training import Callback

__all__ = ["PseudoDataRegressor"]

MOMENT_POINTS = 32
"""Equally likely points that stand for a Gaussian of given mean and variance in a sampling-free prediction."""


class PseudoDataRegressor(MultiOutputMixin, RegressorMixin, ReadsNumbers, NetworkEstimator):
    """Bayesian neural network regression with matrix Gaussian posteriors and pseudo-data [LW16].

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int
        Units of each hidden layer.
    activation : {"relu", "tanh", "silu", "gelu", "cos", "logistic", "identity"} or callable
        Nonlinearity between layers.
    n_pseudo : int or sequence of int
        Pseudo-points of every layer, or of each.
    max_noise : float or "auto"
        Limit on the relative noise √α of pseudo-points: larger is more cautious. "auto" tries five limits on held-out
        rows first and then fits all rows with the best one, or with those whose mixture is best for an ensemble.
    pseudo_noise : {"layer", "factored"}
        One √α per layer, or a factor per point and dimension.
    row_covariance, column_covariance : {"diagonal", "rank_one", "dense"}
        Families of the weights' covariances.
    zero_mean : bool
        Let pseudo-data alone carry the mean.
    prior : {"gamma", "isotropic"}
        Precisions of the weights learned from data, or fixed at one.
    noise : {"input", "constant"}
        Noise of the target: learned as a function of the input, or the same everywhere.
    noise_prior : (float, float)
        Gamma(concentration, rate) of the noise's precision in standardised units.
    n_members : int
        Size of the ensemble, trained as one batched network.
    batch_size : int or "auto"
        Rows of a minibatch.
    learning_rate_init : float
        Adam's first learning rate; it falls to zero along a cosine.
    max_iter : int or "auto"
        Passes over the data.
    averaging : float or None
        Decay of the average of parameters over steps.
    early_stopping : bool
        Hold out ``validation_fraction`` of the rows and stop when their log-likelihood has not improved by ``tol``
        for ``n_iter_no_change`` checks (there are fifty checks in a full run).
    validation_fraction, n_iter_no_change, tol
        See ``early_stopping``.
    warm_start : bool
        Let ``fit`` continue from the last solution, with its activation, prior and limit on the noise.
    n_draws : int
        Posterior draws behind a prediction, for each member.
    random_state : int, RandomState or None
        Same seed, same numbers.
    verbose : bool
        Print the lower bound as training goes.

    Attributes
    ----------
    network_, likelihood_
        The fitted torch modules, [n_members] replicas.
    history_ : History
        What training reported.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    max_noise_ : float or array [n_members]
        The limit in use, or that of each member.
    feature_relevance_ : array [n_features_in_]
        How strongly each input can move the first layer, largest 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from vmg.estimators import PseudoDataRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = PseudoDataRegressor(random_state=0).fit(X[:400], y[:400])
    >>> model.predict_interval(X[400:], coverage=0.9).shape
    (42, 2)
    """

    _parameter_constraints = {  # noqa: RUF012
        **CONSTRAINTS,
        "noise": [StrOptions({"constant", "input"})],
        "noise_prior": ["array-like"],
    }

    max_noise_: float | Array

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        activation: str | Callable[[Tensor], Tensor] = "relu",
        n_pseudo: int | Sequence[int] = 20,
        *,
        max_noise: float | str = "auto",
        pseudo_noise: str = "layer",
        row_covariance: str = "diagonal",
        column_covariance: str = "diagonal",
        zero_mean: bool = False,
        prior: str = "gamma",
        noise: str = "input",
        noise_prior: tuple[float, float] = (1.0, 1e-3),
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
        self.noise = noise
        self.noise_prior = noise_prior
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
        self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> PseudoDataRegressor:
        """Update with new rows only: the posterior so far becomes the prior.

        The first call is a :meth:`fit`; units stay those of the first call. Forgets a calibration, as ``fit`` does.

        Parameters
        ----------
        X, y, sample_weight, callbacks
            New rows, as in :meth:`fit`.

        Returns
        -------
        self
        """
        self._update(X, y, sample_weight, callbacks=callbacks)
        self.conformal_scores_ = None  # they were of the model before
        return self

    def _method(self) -> Method:
        return pseudo_data_method(self, GaussianNoise(self.noise == "input", self.noise_prior))

    def _budget(self) -> Budget:
        """Members of an ensemble may overfit a little more, as others mend it; a single network gains too little."""
        return LONG if self.n_members > 1 else STANDARD

    def _set_choices(self, choices: list[float]) -> None:
        self.max_noise_ = one_or_all(choices)

    # -- predictions --------------------------------------------------------------------------------------------------

    def pred_dist(self, X: Any, *, method: str = "draws") -> Prediction:
        """The whole predictive distribution of each row of X.

        Parameters
        ----------
        X : array-like [N, D]
        method : {"draws", "moments"}
            Average over ``n_draws`` posterior draws of the network; or carry mean and variance through it
            (:func:`vmg.prediction.propagate_moments`), about ten times faster. "moments" takes the network's outputs
            at a row for independent Gaussians, knows nothing of how rows go together (``row_covariance`` refuses), and
            needs one hidden layer and diagonal covariances.

        Returns
        -------
        Prediction
            With ``mean``, ``std``, ``aleatoric_std``, ``epistemic_std``, ``log_prob``, ``cdf``, ``quantile``,
            ``interval`` and ``sample``, in the target's own units.
        """
        check_is_fitted(self, "network_")
        if method not in ("draws", "moments"):
            raise ValueError(f"method must be 'draws' or 'moments'; got {method!r}")
        rows = self._check_X(X)
        return self._distribution(rows) if method == "draws" else self._moments(rows)

    def _moments(self, rows: Array) -> Prediction:
        """As :meth:`_distribution`, from points spread evenly over the Gaussians of the propagated moments."""
        x = torch.as_tensor(self.input_scaling_.transform(rows), dtype=torch.float32)
        mean, variance = (part.double() for part in propagate_moments(self.network_, x))
        points = normal_points(MOMENT_POINTS, mean.shape[-1])[:, None, None]  # [S, 1, 1, C]
        functions = mean + points * variance.sqrt()  # [S, E, N, C]
        return self._targets().prediction(self.likelihood_, functions, joint=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = False
        return tags
