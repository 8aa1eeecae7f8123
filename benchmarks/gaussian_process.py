"""An exact Gaussian process with its evidence maximised: the yardstick of benchmarks of quality.

Kernel: s² (1 + √5 r + 5/3 r²) exp(−√5 r) with r² = Σ_d (x_d − x'_d)² / ℓ_d² (Matérn 5/2, a length-scale for each
column), and noise σ². The gradient costs one inverse and N²D, whatever the number of length-scales.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

Array = NDArray[np.float64]

LOG_BOUNDS = {"length": (-3.0, 7.0), "signal": (-4.0, 4.0), "noise": (-7.0, 1.0)}
"""Natural logarithms of length-scales and standard deviations in standard units."""
JITTER = 1e-8  # of the signal's variance, on the diagonal
ROWS_OF_STARTS = 500  # the starts are compared on so many rows; the best one goes on with all


def squared_distances(a: Array, b: Array) -> Array:
    """Between rows of a [N, D] and b [M, D]."""
    found = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
    return np.maximum(found, 0, out=found)


def matern(r2: Array) -> tuple[Array, Array]:
    """The correlation k(r), and −k'(r)/r = 5/3 (1 + √5 r) exp(−√5 r)."""
    z = np.sqrt(5 * r2)
    decay = np.exp(-z)
    slope = (1 + z) * decay
    return slope + 5 / 3 * r2 * decay, 5 / 3 * slope


def evidence(theta: Array, x: Array, y: Array) -> tuple[float, Array]:
    """log p(y | x, θ) and its gradient; θ = log of [ℓ_1 … ℓ_D, s, σ]."""
    length, signal, noise = np.exp(theta[:-2]), np.exp(theta[-2]), np.exp(theta[-1])
    scaled, n = x / length, len(x)
    correlation, slope = matern(squared_distances(scaled, scaled))
    correlation[np.diag_indices(n)] += JITTER
    covariance = signal**2 * correlation
    covariance[np.diag_indices(n)] += noise**2
    factor = linalg.cholesky(covariance, lower=True, overwrite_a=True)
    inverse = linalg.lapack.dpotri(factor, lower=1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    alpha = inverse @ y
    value = -0.5 * y @ alpha - np.log(np.diag(factor)).sum() - 0.5 * n * np.log(2 * np.pi)
    outer = np.outer(alpha, alpha) - inverse  # dL/dK = outer / 2
    weights = outer * slope * signal**2
    # Σ_ij w_ij (x_i − x_j)² for each column, by one product
    of_length = np.square(scaled).T @ weights.sum(1) - np.einsum("nd,nd->d", scaled, weights @ scaled)
    of_signal = signal**2 * np.einsum("ij,ij->", outer, correlation)
    of_noise = noise**2 * np.trace(outer)
    return float(value), np.concatenate([of_length, [of_signal, of_noise]])


class GaussianProcess:
    """Exact regression on standardised rows, hyper-parameters at the largest evidence found.

    Parameters
    ----------
    n_starts : int
        Starts of the search: all length-scales √D, then draws around it.
    max_steps : int
        Steps of L-BFGS of each search.
    """

    def __init__(self, n_starts: int = 3, max_steps: int = 60, seed: int = 0) -> None:
        self.n_starts, self.max_steps, self.seed = n_starts, max_steps, seed

    def fit(self, x: Array, y: Array) -> GaussianProcess:
        rng, d = np.random.default_rng(self.seed), x.shape[1]
        first = np.concatenate([np.full(d, 0.5 * np.log(d)), [0.0, np.log(0.3)]])
        starts = [first] + [first + rng.standard_normal(d + 2) for _ in range(self.n_starts - 1)]
        some = rng.permutation(len(x))[:ROWS_OF_STARTS]
        _, best = max((self._climb(start, x[some], y[some]) for start in starts), key=lambda pair: pair[0])
        if len(x) > ROWS_OF_STARTS:
            _, best = self._climb(best, x, y)
        self.theta, self.x = best, x
        self.length, self.signal, self.noise_std = np.exp(best[:-2]), np.exp(best[-2]), np.exp(best[-1])
        covariance = self._covariance(x, x)
        covariance[np.diag_indices(len(x))] += self.noise_std**2 + JITTER * self.signal**2
        self.factor = linalg.cholesky(covariance, lower=True, overwrite_a=True)
        self.alpha = linalg.cho_solve((self.factor, True), y)
        return self

    def _climb(self, start: Array, x: Array, y: Array) -> tuple[float, Array]:
        bounds = [LOG_BOUNDS["length"]] * (len(start) - 2) + [LOG_BOUNDS["signal"], LOG_BOUNDS["noise"]]

        def loss(theta: Array) -> tuple[float, Array]:
            value, gradient = evidence(theta, x, y)
            return -value, -gradient

        options = {"maxiter": self.max_steps}
        found = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return -float(found.fun), found.x

    def _covariance(self, a: Array, b: Array) -> Array:
        return self.signal**2 * matern(squared_distances(a / self.length, b / self.length))[0]

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the function, noise aside."""
        between = self._covariance(self.x, x)  # [N, M]
        explained = np.square(linalg.solve_triangular(self.factor, between, lower=True)).sum(0)
        return between.T @ self.alpha, np.sqrt(np.maximum(self.signal**2 - explained, 1e-12))
