"""``VMGRegressor`` and ``VMGClassifier``: the paper's model, with pseudo-data in every layer, as estimators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import Interval, StrOptions

from vmg.nn.layer_parameters import FAMILIES, NOISE_KINDS
from vmg.priors import GammaPrior, IsotropicPrior, Prior
from vmg.training import Callback
from vmg.variational.base import Array, VariationalClasses, VariationalEstimator, VariationalNumbers
from vmg.variational.method import (
    LONG,
    STANDARD,
    Budget,
    CategoricalClasses,
    GaussianNoise,
    Given,
    LikelihoodFactory,
    MatrixGaussianNetworks,
    Method,
)
from vmg.variational.noise_search import NoiseSearch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["VMGClassifier", "VMGRegressor"]

PRIORS: dict[str, type[Prior]] = {"gamma": GammaPrior, "isotropic": IsotropicPrior}


@dataclass(repr=False, eq=False)
class VMGEstimator(VariationalEstimator):
    """Parameters of the network in both estimators; see :class:`VMGRegressor` for what each means."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **VariationalEstimator._parameter_constraints,
        "n_pseudo": [Interval(Integral, 0, None, closed="left"), "array-like"],
        "max_noise": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
        "pseudo_noise": [StrOptions(set(NOISE_KINDS))],
        "row_covariance": [StrOptions(set(FAMILIES))],
        "column_covariance": [StrOptions(set(FAMILIES))],
        "zero_mean": ["boolean"],
        "prior": [StrOptions(set(PRIORS))],
        "warm_start": ["boolean"],
    }

    n_pseudo: int | Sequence[int] = 10
    _: KW_ONLY
    max_noise: float | str = "auto"
    pseudo_noise: str = "layer"
    row_covariance: str = "diagonal"
    column_covariance: str = "diagonal"
    zero_mean: bool = False
    prior: str = "gamma"
    warm_start: bool = False

    max_noise_: float | Array = field(init=False)

    @abstractmethod
    def _likelihood(self) -> LikelihoodFactory:
        """How targets scatter around the network's outputs."""

    def _method(self) -> Method:
        """Matrix Gaussian networks with pseudo-data; the limit on their noise is given, or chosen on held-out rows."""
        points = self.n_pseudo
        networks = MatrixGaussianNetworks(
            self.hidden_sizes(),
            self.activation,
            n_pseudo=int(points) if isinstance(points, Integral) else [int(p) for p in np.atleast_1d(points)],
            pseudo_noise=self.pseudo_noise,
            row_covariance=self.row_covariance,
            column_covariance=self.column_covariance,
            zero_mean=self.zero_mean,
            make_prior=PRIORS[self.prior],
        )
        search = NoiseSearch()
        if self.max_noise != "auto":
            return Method(networks, self._likelihood(), Given(float(self.max_noise)))
        # without pseudo-data there is nothing to limit, and nothing to try
        return Method(networks, self._likelihood(), search if np.any(points) else Given(search.example))

    def _set_choices(self, choices: Sequence[float]) -> None:
        self.max_noise_ = choices[0] if len(set(choices)) == 1 else np.array(choices)


@dataclass(repr=False, eq=False)
class VMGRegressor(MultiOutputMixin, RegressorMixin, VariationalNumbers, VMGEstimator):
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
        rows first and then fits all rows with the best one, or with those whose mixture is best for an ensemble. A
        number skips these trials, as the paper's recipes do, and nothing then checks the intervals: with 0.1, those of
        90 % covered 60 % on five synthetic tables of 20 rows (lab/results/small_tables.jsonl).
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
    >>> from vmg import VMGRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = VMGRegressor(n_pseudo=5, random_state=0).fit(X[:400], y[:400])
    >>> model.pred_dist(X[400:]).std.shape
    (42,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **VMGEstimator._parameter_constraints,
        "noise": [StrOptions({"constant", "input"})],
        "noise_prior": ["array-like"],
    }

    n_pseudo: int | Sequence[int] = 20
    _: KW_ONLY
    noise: str = "input"
    noise_prior: tuple[float, float] = (1.0, 1e-3)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()) -> Self:
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
        return self._partial_fit(X, y, sample_weight, callbacks)

    def _likelihood(self) -> LikelihoodFactory:
        return GaussianNoise(self.noise == "input", self.noise_prior)

    def _budget(self) -> Budget:
        """Members of an ensemble may overfit a little more, as others mend it; a single network gains too little."""
        return LONG if self.n_members > 1 else STANDARD

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = False
        return tags


@dataclass(repr=False, eq=False)
class VMGClassifier(ClassifierMixin, VariationalClasses, VMGEstimator):
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
    >>> from vmg import VMGClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = VMGClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
    """

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> Self:
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
        with self._announce(classes):
            return self._partial_fit(X, y, sample_weight, callbacks)

    def _likelihood(self) -> LikelihoodFactory:
        return CategoricalClasses()
