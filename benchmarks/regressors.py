"""The regressors that benchmarks of quality compare, all with the same face: ``fit`` and ``pred_dist``."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gaussian_process import GaussianProcess
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from vmg import TableRegressor
from vmg.variational import VMGRegressor
from vmg_paper.baselines import DeepEnsemble, HMCRegressor
from vmg_paper.baselines.hmc import LayerPrecisions

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Normal:
    """A normal distribution of each row (Student t where ``df`` is finite), of ignorance and noise: all [N]."""

    mean: Array
    epistemic_std: Array
    noise_std: Array
    df: float = math.inf

    @property
    def std(self) -> Array:
        return np.hypot(self.epistemic_std, self.noise_std)

    def log_prob(self, y: Array) -> Array:
        return stats.t.logpdf(y, self.df, self.mean, self.std)

    def interval(self, coverage: float) -> Array:
        half = self.std * stats.t.ppf(0.5 + coverage / 2, self.df)
        return np.stack([self.mean - half, self.mean + half], -1)


class ExactGP:
    """A Gaussian process with an ARD Matérn-5/2 kernel on standardised columns."""

    def __init__(self, **options: Any) -> None:
        self.process = GaussianProcess(**options)

    def fit(self, X: Array, y: Array) -> ExactGP:
        self.shift, scale = X.mean(0), X.std(0)
        self.scale = np.where(scale > 0, scale, 1.0)
        self.centre, self.unit = y.mean(), y.std()
        self.process.fit((X - self.shift) / self.scale, (y - self.centre) / self.unit)
        return self

    def pred_dist(self, X: Array) -> Normal:
        mean, std = self.process.predict((X - self.shift) / self.scale)
        noise = np.full(len(X), self.process.noise_std * self.unit)
        return Normal(self.centre + self.unit * mean, self.unit * std, noise)


class Linear:
    """Least squares under a flat prior: Student t with the residuals' degrees of freedom."""

    def fit(self, X: Array, y: Array) -> Linear:
        self.shift = X.mean(0)
        _, singular, basis = np.linalg.svd(X - self.shift, full_matrices=False)
        kept = singular > 1e-8 * singular[0]
        self.basis = basis[kept].T / singular[kept]  # columns of scores are orthonormal on training rows
        scores, self.n_rows = (X - self.shift) @ self.basis, len(X)
        self.centre, self.weights = y.mean(), scores.T @ y
        self.df = max(len(X) - 1 - int(kept.sum()), 1)
        self.noise = math.sqrt(np.square(y - self.centre - scores @ self.weights).sum() / self.df)
        return self

    def pred_dist(self, X: Array) -> Normal:
        scores = (X - self.shift) @ self.basis
        epistemic = self.noise * np.sqrt(1 / self.n_rows + np.square(scores).sum(1))
        return Normal(self.centre + scores @ self.weights, epistemic, np.full(len(X), self.noise), self.df)


class Trees:
    """Boosted trees with their defaults; the noise is one number, from rows that a first fit leaves out, a fifth."""

    def fit(self, X: Array, y: Array) -> Trees:
        some_X, other_X, some_y, other_y = train_test_split(X, y, test_size=0.2, random_state=0)
        self.noise = math.sqrt(np.square(boosted_trees().fit(some_X, some_y).predict(other_X) - other_y).mean())
        self.model = boosted_trees().fit(X, y)
        return self

    def pred_dist(self, X: Array) -> Normal:
        return Normal(self.model.predict(X), np.zeros(len(X)), np.full(len(X), self.noise))


HAS_LIGHTGBM = importlib.util.find_spec("lightgbm") is not None
TREES = "LightGBM" if HAS_LIGHTGBM else "HistGradientBoosting"


def boosted_trees() -> Any:
    """LightGBM where it is installed, else scikit-learn's."""
    if not HAS_LIGHTGBM:
        return HistGradientBoostingRegressor(random_state=0)
    from lightgbm import LGBMRegressor

    return LGBMRegressor(random_state=0, n_jobs=1, verbose=-1)


def sampled_network(noise: float, **options: Any) -> HMCRegressor:
    """Hamiltonian Monte Carlo of 50 ReLU units under this library's Gamma prior, the noise known."""
    return HMCRegressor(weight_prior=LayerPrecisions(1.0, 0.5), noise_scale=noise, **options)


def paper_recipe(n_rows: int, n_steps: int) -> VMGRegressor:
    """The paper's model: 50 units, 10 pseudo-points a layer, √α <= 0.07, for about ``n_steps`` steps of 32 rows."""
    options: dict[str, Any] = {"n_pseudo": 10, "max_noise": 0.07, "noise": "constant", "batch_size": 32}
    return VMGRegressor(max_iter=max(1, round(n_steps * 32 / n_rows)), random_state=0, **options)


Make = Callable[[int], Any]
"""Gives an unfitted regressor for a number of training rows."""


def methods(*, quick: bool = False) -> dict[str, Make]:
    """Regressors by name; ``quick`` ones only show that they run."""
    few, one_pass = ({"max_iter": 20, "n_members": 2}, {"max_iter": 1}) if quick else ({}, {})
    process = {"n_starts": 1, "max_steps": 3} if quick else {}
    chains = dict(zip(("n_chains", "n_warmup", "n_draws"), (2, 5, 8) if quick else (4, 60, 60), strict=True))
    return {
        "table": lambda n_rows: TableRegressor(random_state=0, **few),
        "GP": lambda n_rows: ExactGP(**process),
        "deep ensemble": lambda n_rows: DeepEnsemble().regressor(random_state=0, **one_pass),
        "linear": lambda n_rows: Linear(),
        "trees": lambda n_rows: Trees(),
        "vmg": lambda n_rows: paper_recipe(n_rows, 50 if quick else 3_000),
        "HMC": lambda n_rows: sampled_network(0.1, **chains),
        "vmg-defaults": lambda n_rows: VMGRegressor(random_state=0, **one_pass),
    }
