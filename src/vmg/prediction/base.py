"""Predictive distributions of numbers: the primitives of each kind, and all that follows from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from vmg.math.distributions import student_log_density

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "SCORE_LEVELS",
    "Array",
    "Factor",
    "Generator",
    "NumberPrediction",
    "Rows",
    "WrappedPrediction",
    "all_together",
    "draw_candidates",
    "integrated_score",
    "rescaled_factor",
    "row_pieces",
    "scaled_factor",
]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Generator = np.random.Generator
Seed = int | Generator | None

Factor = Callable[[], Array]
"""Makes F [K, N, C], with FᵀF the covariance between rows of each output's function, where it is asked for."""

ANYTHING, ANYTHING_DF = 1e-6, 3.0  # share of rows whose target may be anything, and the t's degrees that it has then
ROWS_AT_ONCE = 5_000  # rows that are predicted together, so that memory does not grow with them

SCORE_LEVELS = special.ndtr(np.linspace(-5.2, 5.2, 41))[:, None, None]
"""Levels of the quantiles between which the CRPS is integrated: what lies beyond them has a squared weight of 1e-14."""

SCORE_NODES, SCORE_WEIGHTS = np.polynomial.legendre.leggauss(3)  # on [−1, 1], of each of these integrals


def row_pieces(n_rows: int) -> Iterator[slice]:
    """All rows in pieces whose draws fit in memory, however many rows there are; one piece at least."""
    for start in range(0, max(n_rows, 1), ROWS_AT_ONCE):
        yield slice(start, start + ROWS_AT_ONCE)


class NumberPrediction(ABC):
    """The predictive distributions of N rows with C outputs, all numbers in the target's own units.

    Results are [N, C], or [N] where there is one output and ``squeeze`` is set. A subclass is a frozen dataclass that
    gives the primitives, whose names begin with an underscore, for arrays [..., N, C], and two of the three deviations;
    everything else is derived here.
    """

    squeeze: bool
    row_fields: ClassVar[tuple[str, ...]]  # names of the fields that hold something of each row

    # -- primitives ---------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """N and C."""

    @property
    @abstractmethod
    def _mean(self) -> Array: ...

    @property
    def _std(self) -> Array:
        return np.hypot(self._aleatoric, self._epistemic)

    @property
    def _aleatoric(self) -> Array:
        return np.sqrt(np.maximum(self._std**2 - self._epistemic**2, 0.0))

    @property
    def _epistemic(self) -> Array:
        return np.sqrt(np.maximum(self._std**2 - self._aleatoric**2, 0.0))

    @abstractmethod
    def _cdf(self, y: Array) -> Array:
        """P(target <= y) at y [..., N, C]."""

    @abstractmethod
    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        """The value with probability ``tail`` below it, or above it; ``tail`` broadcasts to [..., N, C]."""

    @abstractmethod
    def _log_prob(self, y: Array) -> Array:
        """log p(y) of rows, [N], of all outputs together."""

    @abstractmethod
    def _factors(self) -> tuple[Array, int]:
        """F [K, N, C] of functions, and how many of them, the first ones, all outputs share."""

    @abstractmethod
    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        """Draws of the target [S, N, C], or where ``noise`` is None of its mean given the function.

        Equal generators of ``functions`` give the same functions at other rows.
        """

    def _atom(self, y: Array) -> Array:
        """P(target = y): zero for a continuous distribution."""
        return np.zeros(y.shape)

    @property
    def _support(self) -> tuple[float, float]:
        """The smallest and the largest target that an interval may have as an end."""
        return -np.inf, np.inf

    def _snapped(self, values: Array) -> Array:
        """The largest possible targets up to the values: these themselves for a continuous distribution."""
        return values

    def _score_knots(self) -> Array:
        """Values [Q, N, C] between which the cdf is smooth enough for a short rule."""
        return self._quantile(SCORE_LEVELS)

    @property
    def n_rows(self) -> int:
        return self.shape[0]

    @property
    def n_outputs(self) -> int:
        return self.shape[1]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_rows={self.n_rows}, n_outputs={self.n_outputs})"

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: Any) -> Self:
        """Some rows of the prediction, by a number, a slice, positions or a mask."""
        return self.take(np.atleast_1d(np.arange(self.n_rows)[rows]))

    def take(self, rows: Rows) -> Self:
        """Some rows of the prediction."""
        parts = {name: _take_rows(getattr(self, name), rows) for name in self.row_fields}
        return replace(cast(Any, self), **parts)

    def _shaped(self, values: Array) -> Array:
        return values[..., 0] if self.squeeze and values.shape[-1] == 1 else values

    def _as_rows(self, y: ArrayLike) -> Array:
        """Targets as [N, C]."""
        values, (n, c) = np.asarray(y, dtype=np.float64), self.shape
        if values.shape not in ((n,), (n, c)) or values.size != n * c:
            raise ValueError(f"y must have {n} rows and {c} outputs; got shape {values.shape}")
        return values.reshape(n, c)

    def _as_targets(self, y: ArrayLike) -> Array:
        """Targets as :meth:`_log_prob` takes them."""
        return self._as_rows(y)

    def widened(self, extra_std: Array) -> Self:
        """The prediction with an extra standard deviation [N, C] of ignorance, which moves all rows together."""
        raise TypeError(f"{type(self).__name__} cannot be widened")

    # -- moments ------------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self._shaped(self._mean)

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return self._shaped(self._std)

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation: what more data would not remove."""
        return self._shaped(self._aleatoric)

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far the target's mean may be from the predicted one."""
        return self._shaped(self._epistemic)

    @property
    def median(self) -> Array:
        """Median of the target: as many targets are expected above as below."""
        return self._shaped(self._quantile(np.full((1, 1), 0.5)))

    @property
    def var(self) -> Array:
        """Variance of the target."""
        return self.std**2

    def row_covariance(self) -> Array:
        """Covariance between rows, [N, N], or [N, N, C]: that of the functions, and all variance on the diagonal."""
        factor, _ = self._factors()
        between = np.einsum("knc,kmc->nmc", factor, factor, optimize=True)
        rows = np.arange(self.n_rows)
        between[rows, rows] = self._std**2
        return self._shaped(between)

    def covariance(self) -> Array:
        """Covariance between the outputs of each row, [N, C, C]: that of functions which outputs share."""
        factor, n_shared = self._factors()
        between = np.einsum("knc,knd->ncd", factor[:n_shared], factor[:n_shared], optimize=True)
        outputs = np.arange(self.n_outputs)
        between[:, outputs, outputs] = self._std**2
        return between

    # -- the distribution ---------------------------------------------------------------------------------------------

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], all outputs together; of a value that has a probability, its logarithm.

        It is finite for every finite y: one row in a million may be anything, as far from the mean as a Student t.
        """
        values = self._as_targets(y)
        log_prob = self._log_prob(values)
        return self._hedged(log_prob, values) if values.shape == self.shape else log_prob

    def _hedged(self, log_prob: Array, y: Array) -> Array:
        """Log densities [N] of targets [N, C], none below what one row in a million has."""
        spread = np.where(np.isfinite(self._std) & (self._std > 0), self._std, 1.0)
        anything = np.log(ANYTHING) + student_log_density(y - self._mean, spread**2, ANYTHING_DF).sum(-1)
        return np.where(np.isfinite(y).all(-1), np.maximum(log_prob, anything), log_prob)

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row and output."""
        return self._shaped(self._cdf(self._as_rows(y)))

    def probability(self, above: ArrayLike | None = None, below: ArrayLike | None = None) -> Array:
        """P(target > above), P(target < below), or with both P(above < target < below), of each row and output.

        Each bound is one number, or one for each row and output.
        """
        if above is None and below is None:
            raise ValueError("probability needs above, below or both; got none")
        upto, least = np.ones(self.shape), np.zeros(self.shape)
        if below is not None:
            bound = self._bound(below)
            upto = self._cdf(bound) - self._atom(bound)
        if above is not None:
            least = self._cdf(self._bound(above))
        return self._shaped(np.clip(upto - least, 0.0, 1.0))

    def _bound(self, value: ArrayLike) -> Array:
        return np.full(self.shape, value, dtype=np.float64) if np.ndim(value) == 0 else self._as_rows(value)

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N] (or [N, C]), or [N, ..., Q] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q must be inside (0, 1); got {levels}")
        values = self._shaped(self._quantile(levels.reshape(-1, 1, 1)))
        return np.moveaxis(values, 0, -1).reshape(*values.shape[1:], *levels.shape)

    def interval(self, coverage: float | Sequence[float] = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2].

        Several coverages give [N, 2, K], or [N, C, 2, K].
        """
        levels = np.asarray(coverage, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        if levels.ndim == 0:
            return self.interval_at(levels)
        return np.stack([self.interval_at(level) for level in levels], -1)

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with a coverage for each output [C], or each row and output [N, C]: [N, 2] or [N, C, 2].

        A coverage of 1 asks for everything that the target can be.
        """
        tail = np.atleast_2d((1 - np.asarray(coverage, dtype=np.float64)) / 2)
        if not ((tail >= 0) & (tail <= 0.5)).all():
            raise ValueError(f"coverage must be from 0 to 1; got {coverage}")
        inner = np.where(tail == 0, 0.25, tail)
        # by its own tail, as 1 − tail rounds to 1: conformal calibration of an overconfident model asks for such tails
        ends = [self._quantile(inner), self._quantile(inner, upper=True)]
        low, high = (np.where(tail == 0, last, end) for end, last in zip(ends, self._support, strict=True))
        return np.moveaxis(self._shaped(np.clip([low, high], *self._support)), 0, -1)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, ∫ (P(target <= t) − 1{t >= y})² dt."""
        return self.measured_crps(y, -np.inf, np.inf)

    def measured_crps(self, y: ArrayLike, low: float, high: float) -> Array:
        """The CRPS of what is measured of a target: ``low`` or ``high`` where the target itself lies beyond."""
        knots, y = np.clip(self._score_knots(), low, high), np.clip(self._as_rows(y), low, high)
        return self._shaped(integrated_score(self._cdf, knots, y))

    def sample(self, n_samples: int, random_state: Seed = None) -> Array:
        """Draws of the target, [n_samples, N] or [n_samples, N, C], each row and output as its quantiles say.

        All rows of a draw share one function and have noise of their own.
        """
        functions, noise = np.random.default_rng(random_state).spawn(2)
        return self._shaped(self._draw(n_samples, functions, noise))

    def sample_functions(self, n_samples: int, random_state: Seed = None) -> Array:
        """Draws of the target's mean given the function, [n_samples, N] or [n_samples, N, C]."""
        functions, _ = np.random.default_rng(random_state).spawn(2)
        return self._shaped(self._draw(n_samples, functions, None))

    logpdf, ppf = log_prob, quantile  # the names of SciPy's distributions, as are those of the next two

    def pdf(self, y: ArrayLike) -> Array:
        """The density of each row at y [N], all outputs together; of a value that has a probability, that."""
        return np.exp(self.log_prob(y))

    def rvs(self, size: int = 1, random_state: Seed = None) -> Array:
        """:meth:`sample`."""
        return self.sample(size, random_state)

    def to_skpro(self) -> Any:
        """The distribution of one output as skpro has it, where skpro is installed."""
        from vmg.prediction.skpro_distribution import PredictedDistribution

        return PredictedDistribution(self)


def integrated_score(cdf: Callable[[Array], Array], knots: Array, y: Array) -> Array:
    """∫ (cdf(t) − 1{t >= y})² dt [N, C], by Gauss and Legendre between ``knots`` [Q, N, C] and y [N, C]."""
    low, high = np.minimum(knots.min(0), y), np.maximum(knots.max(0), y)
    knots = np.sort(np.concatenate([knots, y[None], low[None], high[None]]), axis=0)
    total = np.zeros(y.shape)
    for left, right in pairwise(knots):
        if not (right > left).any():
            continue
        for node, weight in zip(SCORE_NODES, SCORE_WEIGHTS, strict=True):
            gap = cdf(0.5 * (left + right + node * (right - left))) - (left >= y)
            total += 0.5 * weight * (right - left) * gap**2
    return total


class WrappedPrediction(NumberPrediction):
    """A prediction that is made of another one of the same rows and outputs, its ``base``."""

    base: NumberPrediction

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.base.squeeze

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    @property
    def _support(self) -> tuple[float, float]:
        return self.base._support

    def _as_targets(self, y: ArrayLike) -> Array:
        return self.base._as_targets(y)

    def _snapped(self, values: Array) -> Array:
        return self.base._snapped(values)


# -- factors of functions ---------------------------------------------------------------------------------------------
# Module functions and ``partial`` make them, not lambdas, so that predictions pickle.


def scaled_factor(factor: Factor, scale: ArrayLike) -> Array:
    """F of functions in another unit."""
    return factor() * np.asarray(scale)


def all_together(deviation: Array) -> Factor:
    """The factor of functions with these deviations [N, C] that move all rows together."""
    return partial(np.asarray, deviation[None])


def _take_rows(part: Any, rows: Rows) -> Any:
    """Some rows of a prediction, of a factor or of an array."""
    if isinstance(part, NumberPrediction):
        return part.take(rows)
    return partial(_factor_rows, part, rows) if callable(part) else part[rows]


def _factor_rows(factor: Factor, rows: Rows) -> Array:
    return factor()[:, rows]


def rescaled_factor(factor: Array, deviation: Array) -> Array:
    """F whose rows have the ``deviation`` [N, C] and correlate as in ``factor`` [K, N, C].

    For targets that are no linear function of what is Gaussian: their deviations are known, and they correlate nearly
    as the functions before the transform.
    """
    size = np.sqrt(np.maximum(np.square(factor).sum(0), np.finfo(np.float64).tiny))
    return factor * (deviation / size)


def draw_candidates(each: Array, weights: Array, place: Array) -> Array:
    """Draws [S, G, C] from those of all candidates [S, G, K, C], chosen by their weights [G, K].

    ``place`` [S, G or 1] are numbers between 0 and 1: a candidate is chosen where the sum of the weights reaches them.
    """
    ends = np.cumsum(weights, axis=1)
    chosen = (place[..., None] >= ends / ends[:, -1:]).sum(-1).clip(max=weights.shape[1] - 1)  # [S, G]
    return np.take_along_axis(each, chosen[..., None, None], axis=2)[:, :, 0]
