"""Figure 1: predictive bands on 20 points of x³ with known noise, every method beside the truth [LW16, §4.3].

The truth is Hamiltonian Monte Carlo of the same network with the prior of PBP: one Gamma(6, 6) precision for all
weights. The factorised and the matrix Gaussian have weights N(0, 1), near that prior's centre. Under N(0, 1) the true
band is 0.6 times as wide beyond the data, and distances to it differ: the choice of truth matters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from vmg.baselines import HMCRegressor, PBPRegressor
from vmg.data.toy import cubic
from vmg.experiments.bands import Array, Band, ToyResult, fit_network
from vmg.nn import MLP
from vmg.nn.dropout import DropoutLinear
from vmg.nn.mean_field import MeanFieldLinear

__all__ = ["Settings", "run"]

NOISE = 3.0  # standard deviation, known to every method
RANGE = (-6.0, 6.0)  # drawn; data are in [-4, 4]
HIDDEN = 100
TRUTH = "HMC"


@dataclass(frozen=True)
class Settings:
    """How much work each method may do."""

    n_steps: int = 3_000
    n_draws: int = 200  # as in the paper
    n_epochs: int = 200
    """Of PBP. Its paper's 40 are 800 updates on so few rows, and its band is then still far from hugging the data."""
    n_starts: int = 20
    """Of PBP, the one with the best evidence kept: single ones differ wildly on so few rows."""
    n_chains: int = 8
    n_warmup: int = 200
    n_kept: int = 100
    n_points: int = 241


def _mean_field() -> MLP:
    return MLP(1, [HIDDEN], 1, make_layer=lambda place, n_in, n_out: MeanFieldLinear(n_in, n_out))


def _dropout() -> MLP:
    """Rate 0 for the input layer and 0.2 for the hidden one, weight decay of a length-scale of 0.01."""

    def make_layer(place: int, n_in: int, n_out: int) -> DropoutLinear:
        return DropoutLinear(n_in, n_out, rate=0.2 if place else 0.0, precision=1e-4)

    return MLP(1, [HIDDEN], 1, make_layer=make_layer)


def _matrix_gaussian() -> MLP:
    """2 and 4 pseudo-points; the paper's bound 0.2 is on √α."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")  # the paper's own choice
        return MLP(1, [HIDDEN], 1, n_pseudo=[2, 4], max_noise=0.2)


def run(*, seed: int = 0, settings: Settings | None = None, tell: Callable[[str], None] = print) -> ToyResult:
    """Fit all methods to the same 20 points; ``tell`` hears of each as it starts."""
    s = Settings() if settings is None else settings
    X, y = cubic(seed=seed)
    x, grid = X[:, 0], np.linspace(*RANGE, s.n_points)

    def bands() -> Iterator[Band]:
        for name, make in (
            ("Factorised Gaussian", _mean_field),
            ("Dropout", _dropout),
            ("Matrix Gaussian", _matrix_gaussian),
        ):
            tell(name)
            prediction = fit_network(
                make(), x, y, grid, noise_scale=NOISE, n_steps=s.n_steps, n_draws=s.n_draws, seed=seed
            )
            yield Band.of(name, grid, prediction, truth=TRUTH)
        tell("PBP")
        pbp = PBPRegressor(
            (HIDDEN,), n_epochs=s.n_epochs, noise_scale=NOISE, n_starts=s.n_starts, random_state=seed
        ).fit(X, y)
        yield Band.of("PBP", grid, pbp.pred_dist(grid[:, None]), truth=TRUTH)

    order = ("Factorised Gaussian", "PBP", "Dropout", "Matrix Gaussian")  # the paper's
    found = sorted(bands(), key=lambda band: order.index(band.name))
    tell(TRUTH)
    return ToyResult(x, y, _cube, found, [_truth(X, y, grid, s, seed)], [(float(x.min()), float(x.max()))])


def _cube(x: Array) -> Array:
    return x**3


def _truth(X: Array, y: Array, grid: Array, s: Settings, seed: int) -> Band:
    hmc = HMCRegressor(
        (HIDDEN,),
        noise_scale=NOISE,
        n_chains=s.n_chains,
        n_warmup=s.n_warmup,
        n_draws=s.n_kept,
        random_state=seed,
    ).fit(X, y)
    posterior = hmc.posterior_
    note = f"split R̂ {posterior.rhat:.2f}, effective draws {posterior.ess:.0f}"
    return Band.of(TRUTH, grid, hmc.pred_dist(grid[:, None]), note=note)
