"""A Gaussian process as an expert beside the networks: the limit of networks of infinite width [LW16, §2.3].

Its kernel is a Matérn 5/2 with a length for every input, a straight line and a constant,

    k(x, x') = s² (1 + r + r²/3) e^(−r) + l² xᵀx'/D + c²,        r² = 5 Σ (x_d − x'_d)²/ℓ_d².

Lengths, sizes and noise σ² maximise the marginal likelihood of some rows, under a weak prior: 600 of up to 1,000, else
300. Functions of the Matérn kernel are combinations of its values at M centres. Where these are all rows, this is the
exact process, else it has Nyström's features of 300 rows, with the prior variance that they leave. Up to 1,000 rows are
centres where held-out rows are predicted clearly better so: predictions then take longer. With L the root of the kernel
between centres, features of a row are φ = (L⁻¹k(centres, x), l x/√D, c), and the function φᵀw with w ~ N(0, I)
is Bayesian linear regression: with A = I + ΦᵀωΦ/σ²,

    mean φᵀA⁻¹Φᵀωy/σ²,        variance k(x, x) − φᵀ(I − A⁻¹)φ.

Sums over rows are all that it keeps of these, so more rows are an exact update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, optimize

from vmg.fit.design import FitRows
from vmg.fit.ensemble import Expert, Function
from vmg.math.distributions import Array
from vmg.math.linalg import cholesky
from vmg.model_file import require_shapes

__all__ = ["GaussianProcess", "Kernel", "negative_log_evidence"]

MOST_INPUTS = 200  # each has a length
CENTRES = 300  # at most, unless all rows are centres,
EXACT_ROWS = 1000  # which so many may be
GAIN = 0.9  # if the mean squared error of held-out rows falls below this share of that with few centres
SEARCHED_ROWS = 600  # at most, from which hyper-parameters of EXACT_ROWS are learned; of more, and in groups, CENTRES
ROWS_AT_ONCE = 1024
COSINES = 256  # that a function drawn from the prior is a sum of
JITTER = 1e-6  # of the kernel between centres, in units of its size
LEAST_NOISE = 1e-8  # variance
FIRST_SEARCH, NEXT_SEARCH = 60, 12  # steps, of all rows and from there without those of a group

# log ℓ/√D, s, l, c and σ: the centre and spread of their normal priors, in standard units of inputs and targets
PRIOR_CENTRE, PRIOR_SPREAD = (0.7, 0.0, -1.0, -1.0, -1.5), (1.5, 1.5, 2.0, 2.0, 2.0)
LIMIT = 4.0  # spreads from the centre, within which the search stays


@dataclass(frozen=True)
class Kernel:
    """Logarithms of the lengths [D], and of s, l, c and the noise's σ: [D + 4]."""

    log: Array

    @property
    def n_inputs(self) -> int:
        """D."""
        return len(self.log) - 4

    @cached_property
    def lengths(self) -> Array:
        """ℓ, [D]."""
        return np.exp(self.log[:-4])

    @cached_property
    def variances(self) -> Array:
        """s², l², c² and σ²."""
        return np.exp(2 * self.log[-4:]) + np.array([0.0, 0.0, 0.0, LEAST_NOISE])

    def matern(self, a: Array, b: Array) -> Array:
        """The Matérn part between rows [N, D] and [M, D], [N, M]."""
        r = self._distance(a, b)
        return self.variances[0] * (1 + r + r * r / 3) * np.exp(-r)

    def _distance(self, a: Array, b: Array) -> Array:
        """R = √5 times the distance of rows in units of the lengths."""
        left, right = a / self.lengths, b / self.lengths
        squared = np.square(left).sum(1)[:, None] + np.square(right).sum(1) - 2 * left @ right.T
        return np.sqrt(np.maximum(5 * squared, 0.0))

    @property
    def is_noisy(self) -> bool:
        """Whether the jitter between centres is small beside the noise, so that centres at all rows are exact."""
        return bool(self.variances[3] > 10 * JITTER * self.variances[0])

    def covariance(self, a: Array, b: Array) -> Array:
        """k between rows [N, D] and [M, D], [N, M]."""
        _, linear, constant, _ = self.variances
        return self.matern(a, b) + linear / self.n_inputs * (a @ b.T) + constant

    def variance(self, x: Array) -> Array:
        """k(x, x) of each row, [N]."""
        size, linear, constant, _ = self.variances
        return size + linear / self.n_inputs * np.square(x).sum(1) + constant


def _prior(n_inputs: int) -> tuple[Array, Array]:
    """Centre and spread of the prior of log hyper-parameters, [D + 4] each."""
    length = PRIOR_CENTRE[0] + 0.5 * math.log(n_inputs)
    centre = np.concatenate([np.full(n_inputs, length), PRIOR_CENTRE[1:]])
    return centre, np.concatenate([np.full(n_inputs, PRIOR_SPREAD[0]), PRIOR_SPREAD[1:]])


def negative_log_evidence(log: Array, x: Array, y: Array, weight: Array) -> tuple[float, Array]:
    """− log marginal likelihood of targets y [n] − log prior, up to a constant, and its gradient [D + 4]."""
    kernel = Kernel(log)
    size, linear, constant, noise = kernel.variances
    r = kernel._distance(x, x)
    decay = np.exp(-r)
    matern, lines = size * (1 + r + r * r / 3) * decay, linear / x.shape[1] * (x @ x.T)
    K = matern + lines + constant
    K[np.diag_indices(len(x))] += noise / weight
    try:
        root = linalg.cholesky(K, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:
        return 1e10, np.zeros_like(log)
    alpha = linalg.cho_solve((root, True), y)
    inverse = linalg.lapack.dpotri(root, lower=1)[0]
    of_kernel = 0.5 * (np.tril(inverse) + np.tril(inverse, -1).T - np.outer(alpha, alpha))
    by_distance = of_kernel * (size * 5 / 3 * (1 + r) * decay)
    scaled = x / kernel.lengths
    of_lengths = 2 * (by_distance.sum(1) @ np.square(scaled) - (scaled * (by_distance @ scaled)).sum(0))
    of_noise = 2 * (noise - LEAST_NOISE) * (np.diag(of_kernel) / weight).sum()
    of_sizes = [2 * (of_kernel * part).sum() for part in (matern, lines, constant)]
    centre, spread = _prior(x.shape[1])
    standard = (log - centre) / spread
    value = 0.5 * y @ alpha + np.log(np.diag(root)).sum() + 0.5 * standard @ standard
    return float(value), np.concatenate([of_lengths, of_sizes, [of_noise]]) + standard / spread


def _search(x: Array, y: Array, weight: Array, start: Array | None, n_steps: int) -> Array:
    """Hyper-parameters of the largest marginal likelihood."""
    centre, spread = _prior(x.shape[1])
    best = optimize.minimize(
        negative_log_evidence,
        centre if start is None else start,
        (x, y, weight),
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([centre - LIMIT * spread, centre + LIMIT * spread], 1),
        options={"maxiter": n_steps},
    )
    return np.asarray(best.x)


@dataclass(frozen=True)
class GaussianProcess(Expert):
    """A process conditioned on rows, of which it keeps the sums ΦᵀωΦ [F, F] and Φᵀωy [F] and M centres [M, D]."""

    kernel: Kernel
    centres: Array
    gram: Array
    moment: Array

    name, most_inputs = "gaussian_process", MOST_INPUTS

    @property
    def noise(self) -> float:
        """σ²."""
        return float(self.kernel.variances[3])

    @classmethod
    def fit(cls, rows: FitRows, index: NDArray[np.int64]) -> tuple[GaussianProcess, list[Function]]:
        """The process of all rows, and what one without the rows of each group predicts for the rows ``index``.

        That one's hyper-parameters have not seen them either: they start at those of all rows and are learned again.
        Only the first of the copies of a row says what hyper-parameters are: copies have no noise between them.
        """
        x, y, weight = rows.x, rows.y.ravel(), rows.weight
        order = rows.rng.permutation(len(x))

        def learned(seen: NDArray[np.int64], most: int, start: Array | None, n_steps: int) -> Kernel:
            some = seen[rows.design.first[seen]][:most]
            return Kernel(_search(x[some], y[some], weight[some], start, n_steps))

        def conditioned(kernel: Kernel, seen: NDArray[np.int64], n_centres: int) -> GaussianProcess:
            centres = seen[rows.design.first[seen]][:n_centres]
            return cls.of(kernel, x[centres], x[seen], y[seen], weight[seen])

        def squared_error(said: list[Function]) -> float:
            """The sum over rows of random folds, by the process that has not seen them."""
            folds = [(k, group.held_out[index]) for k, group in enumerate(rows.design.groups) if not group.region]
            return float(sum(weight[index][held] @ np.square(y[index] - said[k].loc)[held] for k, held in folds))

        few_rows = len(x) <= EXACT_ROWS
        kernel = learned(order, SEARCHED_ROWS if few_rows else CENTRES, None, FIRST_SEARCH)
        blind = [order[~outside[order]] for outside in rows.design.unseen]
        kernels = [learned(seen, CENTRES, kernel.log, NEXT_SEARCH) for seen in blind]
        few = [conditioned(one, seen, CENTRES).predict(x[index]) for one, seen in zip(kernels, blind, strict=True)]
        if few_rows and len(x) > CENTRES and kernel.is_noisy:
            every = [
                predict_exactly(one, x[seen], y[seen], weight[seen], x[index])
                for one, seen in zip(kernels, blind, strict=True)
            ]
            if squared_error(every) < GAIN * squared_error(few):
                return conditioned(kernel, order, EXACT_ROWS), every
        return conditioned(kernel, order, CENTRES), few

    @classmethod
    def of(cls, kernel: Kernel, centres: Array, x: Array, y: Array, weight: Array | None) -> GaussianProcess:
        """The process with this kernel, conditioned on rows x [N, D] with targets y [N]."""
        n_features = len(centres) + x.shape[1] + 1
        empty = cls(kernel, centres, np.zeros((n_features, n_features)), np.zeros(n_features))
        return empty.updated(x, y, weight)

    @cached_property
    def _whitening(self) -> Array:
        """The matrix [F, F] that turns values of the kernel, inputs and a one into features."""
        size, linear, constant, _ = self.kernel.variances
        between = self.kernel.matern(self.centres, self.centres)
        between[np.diag_indices(len(between))] += JITTER * size
        root = linalg.cholesky(between, lower=True)
        inverse = linalg.solve_triangular(root, np.eye(len(root)), lower=True)
        n_inputs = self.kernel.n_inputs
        scales = np.append(np.full(n_inputs, math.sqrt(linear / n_inputs)), math.sqrt(constant))
        return np.asarray(linalg.block_diag(inverse.T, np.diag(scales)))

    @cached_property
    def _root(self) -> Array:
        """The lower Cholesky factor of A."""
        precision = self.gram / self.noise
        precision[np.diag_indices(len(precision))] += 1
        return np.asarray(linalg.cholesky(precision, lower=True))

    @cached_property
    def _solution(self) -> Array:
        """[F, 1 + F]: values of the kernel, inputs and a one times it are the mean, and Gᵀφ with GGᵀ = I − A⁻¹."""
        mean = linalg.cho_solve((self._root, True), self.moment / self.noise)
        identity = np.eye(len(mean))
        reduction = identity * (1 + 1e-10) - linalg.cho_solve((self._root, True), identity)
        root = cholesky(torch.from_numpy(0.5 * (reduction + reduction.T))).numpy()
        return self._whitening @ np.column_stack([mean, root])

    def _values(self, x: Array) -> Array:
        """Values of the Matérn kernel at the centres, inputs and a one, [N, F]."""
        return np.column_stack([self.kernel.matern(x, self.centres), x, np.ones(len(x))])

    def predict(self, x: Array) -> Function:
        """Centre and variance at rows x [N, D]."""
        loc, variance = np.empty(len(x)), self.kernel.variance(x)
        for begin in range(0, len(x), ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            both = self._values(x[rows]) @ self._solution
            loc[rows] = both[:, 0]
            variance[rows] -= np.einsum("nf,nf->n", both[:, 1:], both[:, 1:])
        return Function(loc, np.maximum(variance, 0.0))

    def factor(self, x: Array) -> Array:
        """F [K, N] with FᵀF the covariance between rows, the same for a row whatever others come with it.

        Variances are exact. How the part that centres leave of the prior correlates between rows is that of random
        cosines, whose frequencies have the Matérn's spectral density, a Student t of five degrees.
        """
        features = self._values(x) @ self._whitening
        of_weights = linalg.solve_triangular(self._root, features.T, lower=True)
        hidden, n_centres = features[:, : len(self.centres)], len(self.centres)
        left = np.maximum(self.kernel.variances[0] - np.square(hidden).sum(1), 0.0)
        rng = np.random.default_rng(0)
        gamma = np.sqrt(rng.chisquare(5, COSINES) / 5)
        frequency = rng.standard_normal((x.shape[1], COSINES)) / (self.kernel.lengths[:, None] * gamma)
        phase = rng.uniform(0, 2 * np.pi, COSINES)
        inverse = self._whitening[:n_centres, :n_centres]
        rest = np.cos(x @ frequency + phase) - hidden @ (inverse.T @ np.cos(self.centres @ frequency + phase))
        size = np.sqrt(np.maximum(np.square(rest).sum(1), np.finfo(np.float64).tiny))
        return np.concatenate([of_weights, (rest * (np.sqrt(left) / size)[:, None]).T])

    def updated(self, x: Array, y: Array, weight: Array | None) -> GaussianProcess:
        """Condition on more rows, exactly; kernel and centres stay."""
        gram, moment = self.gram.copy(), self.moment.copy()
        for begin in range(0, len(x), ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            features = self._values(x[rows]) @ self._whitening
            weighted = features if weight is None else features * weight[rows, None]
            gram += weighted.T @ features
            moment += weighted.T @ y[rows]
        return replace(self, gram=gram, moment=moment)

    def check(self, n_inputs: int) -> None:
        """Raise a ValueError unless arrays fit together, are of so many inputs and finite."""
        n_features = len(self.centres) + n_inputs + 1
        shapes = {"centres": (len(self.centres), n_inputs), "gram": (n_features, n_features), "moment": (n_features,)}
        arrays = {**vars(self), "log": self.kernel.log}
        require_shapes({**shapes, "log": (n_inputs + 4,)}, arrays)
        if not all(np.isfinite(arrays[name]).all() for name in (*shapes, "log")) or np.abs(self.kernel.log).max() > 100:
            raise ValueError("a Gaussian process must have finite numbers")


def predict_exactly(kernel: Kernel, x: Array, y: Array, weight: Array, new: Array) -> Function:
    """The process conditioned on rows x [N, D] with targets y [N], at other rows [M, D], without centres."""
    covariance = kernel.covariance(x, x)
    covariance[np.diag_indices(len(x))] += kernel.variances[3] / weight
    root = cholesky(torch.from_numpy(covariance)).numpy()
    values = linalg.solve_triangular(root, np.column_stack([y, kernel.covariance(x, new)]), lower=True)
    white, across = values[:, 0], values[:, 1:]
    return Function(white @ across, np.maximum(kernel.variance(new) - np.square(across).sum(0), 0.0))
