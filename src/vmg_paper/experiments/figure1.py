"""Figure 1: predictive bands on 20 points of x³ with known noise, every method beside the truth [LW16, §4.3].

The factorised and the matrix Gaussians have the paper's prior, weights N(0, 1), and the truth is Hamiltonian Monte
Carlo of the same network under the same prior, so that all have one model. PBP, dropout and the default for tables have
priors of their own, and PBP and the default learn the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vmg.nn import MLP
from vmg_paper.data.tables import cubic
from vmg_paper.experiments.toys import Array, MakeNetwork, Settings, Toy, ToyResult, inducing_network, paper_network
from vmg_paper.layers.factorised import MeanFieldLinear
from vmg_paper.layers.point_weights import DropoutLinear

__all__ = ["matrix_gaussian", "run"]

NOISE = 3.0  # standard deviation, as the paper says; known to the networks
RANGE = (-6.0, 6.0)  # drawn; data are in [-4, 4]
HIDDEN = 100
TRUTH = "HMC"
PRIOR_SCALE = 1.0  # of the weights [LW16, §4]


def factorised(batch_shape: Sequence[int]) -> MLP:
    """Independent Gaussians, drawn with the local reparametrisation trick."""

    def make_layer(place: int, n_in: int, n_out: int) -> MeanFieldLinear:
        return MeanFieldLinear(n_in, n_out, batch_shape=batch_shape)

    return MLP(1, [HIDDEN], 1, make_layer=make_layer)


def dropout(batch_shape: Sequence[int]) -> MLP:
    """Rate 0 for the input layer and 0.2 for the hidden one, weight decay of a length-scale of 0.01."""

    def make_layer(place: int, n_in: int, n_out: int) -> DropoutLinear:
        return DropoutLinear(n_in, n_out, rate=0.2 if place else 0.0, precision=1e-4, batch_shape=batch_shape)

    return MLP(1, [HIDDEN], 1, make_layer=make_layer)


def matrix_gaussian(batch_shape: Sequence[int], **options: Any) -> MLP:
    """Matrix Gaussian layers with 2 and 4 pseudo-points."""
    return paper_network([HIDDEN], [2, 4], batch_shape, **options)


VARIATIONAL: dict[str, MakeNetwork] = {
    "Factorised Gaussian": factorised,
    "Dropout": dropout,
    "Matrix Gaussian": matrix_gaussian,
    "Matrix Gaussian, conditional KL": partial(matrix_gaussian, kl="conditional"),
    "Global inducing points": partial(inducing_network, [HIDDEN]),
}


def run(*, seed: int = 0, settings: Settings | None = None, tell: Callable[[str], None] = print) -> ToyResult:
    """Fit all methods to the same 20 points; ``tell`` hears of each as it starts."""
    X, y = cubic(seed=seed)
    toy = Toy(X, y, NOISE, RANGE, Settings() if settings is None else settings, seed, tell)
    bands = [toy.network_band(name, make, TRUTH) for name, make in VARIATIONAL.items()]
    bands.insert(1, toy.pbp_band((HIDDEN,), TRUTH))  # the paper's order
    bands += [toy.default_band(TRUTH), toy.true_band(TRUTH, (HIDDEN,), "relu", PRIOR_SCALE)]
    x = X[:, 0]
    return ToyResult(x, y, _cube, bands, [(float(x.min()), float(x.max()))])


def _cube(x: Array) -> Array:
    return x**3
