"""The paper's model as a method of fitting, from the parameters that both estimators have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from vmg.estimators.network import NetworkEstimator
from vmg.fit.variational import Given, MatrixGaussianNetworks, Method, NoiseSearch
from vmg.fit.variational.likelihood_factories import LikelihoodFactory
from vmg.nn.layer_parameters import FAMILIES, NOISE_KINDS
from vmg.nn.mlp import Activation
from vmg.priors import GammaPrior, IsotropicPrior, Prior

__all__ = ["CONSTRAINTS", "PseudoDataParameters", "pseudo_data_method"]

PRIORS: dict[str, type[Prior]] = {"gamma": GammaPrior, "isotropic": IsotropicPrior}

CONSTRAINTS: dict[str, list[Any]] = {
    **NetworkEstimator._parameter_constraints,
    "n_pseudo": [Interval(Integral, 0, None, closed="left"), "array-like"],
    "max_noise": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="right")],
    "pseudo_noise": [StrOptions(set(NOISE_KINDS))],
    "row_covariance": [StrOptions(set(FAMILIES))],
    "column_covariance": [StrOptions(set(FAMILIES))],
    "zero_mean": ["boolean"],
    "prior": [StrOptions(set(PRIORS))],
    "warm_start": ["boolean"],
}
"""What each parameter may be, for scikit-learn."""


@dataclass(repr=False, eq=False)
class PseudoDataParameters:
    """Parameters of the network in both estimators; see :class:`VMGRegressor` for what each means."""

    n_pseudo: int | Sequence[int] = 10
    _: KW_ONLY
    max_noise: float | str = "auto"
    pseudo_noise: str = "layer"
    row_covariance: str = "diagonal"
    column_covariance: str = "diagonal"
    zero_mean: bool = False
    prior: str = "gamma"
    warm_start: bool = False


def pseudo_data_method(
    given: PseudoDataParameters,
    hidden: tuple[int, ...],
    activation: str | Activation,
    likelihood: LikelihoodFactory,
) -> Method:
    """Matrix Gaussian networks with pseudo-data; the limit on their noise is given, or chosen on held-out rows."""
    points = given.n_pseudo
    networks = MatrixGaussianNetworks(
        hidden,
        activation,
        n_pseudo=int(points) if isinstance(points, Integral) else [int(p) for p in np.atleast_1d(points)],
        pseudo_noise=given.pseudo_noise,
        row_covariance=given.row_covariance,
        column_covariance=given.column_covariance,
        zero_mean=given.zero_mean,
        make_prior=PRIORS[given.prior],
    )
    search = NoiseSearch()
    if given.max_noise != "auto":
        return Method(networks, likelihood, Given(float(given.max_noise)))
    # without pseudo-data there is nothing to limit, and nothing to try
    return Method(networks, likelihood, search if np.any(points) else Given(search.example))
