"""``VMGRegressor``: numbers with honest intervals, behind scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions

from vmg.estimators.network import Array, NetworkEstimator, one_or_all
from vmg.estimators.pseudo_data.method import CONSTRAINTS, PseudoDataParameters, pseudo_data_method
from vmg.estimators.reading import ReadsNumbers
from vmg.fit.variational import LONG, STANDARD, Budget, GaussianNoise, Method
from vmg.training import Callback

__all__ = ["VMGRegressor"]


@dataclass(repr=False, eq=False)
class VMGRegressor(MultiOutputMixin, RegressorMixin, ReadsNumbers, PseudoDataParameters, NetworkEstimator):
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
    >>> from vmg.estimators import VMGRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = VMGRegressor(n_pseudo=5, random_state=0).fit(X[:400], y[:400])
    >>> model.pred_dist(X[400:]).std.shape
    (42,)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "noise": [StrOptions({"constant", "input"})],
        "noise_prior": ["array-like"],
    }

    n_pseudo: int | Sequence[int] = 20
    _: KW_ONLY
    noise: str = "input"
    noise_prior: tuple[float, float] = (1.0, 1e-3)

    max_noise_: float | Array = field(init=False)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, callbacks: Sequence[Callback] = ()
    ) -> VMGRegressor:
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
        self._forget_calibration()
        return self

    def _method(self) -> Method:
        likelihood = GaussianNoise(self.noise == "input", self.noise_prior)
        return pseudo_data_method(self, self.hidden_sizes(), self.activation, likelihood)

    def _budget(self) -> Budget:
        """Members of an ensemble may overfit a little more, as others mend it; a single network gains too little."""
        return LONG if self.n_members > 1 else STANDARD

    def _set_choices(self, choices: list[float]) -> None:
        self.max_noise_ = one_or_all(choices)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = False
        return tags
