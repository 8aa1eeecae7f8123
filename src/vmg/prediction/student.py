"""A prediction in closed form: one Student t for each row, and how the rows' functions go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

__all__ = ["StudentPrediction"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StudentPrediction:
    """The target of each of N rows: Student t with squared scale ``noise_scale² + function_scale²``.

    All numbers are in the target's own units. Where there is one output, results are [N]; otherwise [N, C].

    Parameters
    ----------
    loc : array [N, C]
        Centres.
    noise_scale : array [N, C]
        The part of the scale that is noise.
    function_scale : array [N, C]
        The part that is ignorance of the function.
    df : array [C]
        Degrees of freedom, above 2.
    factor : callable () -> array [K, N, C]
        F with FᵀF the covariance between rows of the function, before the Student t's factor df/(df − 2).
    squeeze : bool
        Give [N] instead of [N, 1].
    """

    loc: Array
    noise_scale: Array
    function_scale: Array
    df: Array
    factor: Callable[[], Array]
    squeeze: bool = True

    def squeezed(self, values: Array) -> Array:
        return values[..., 0] if self.squeeze and values.shape[-1] == 1 else values

    def take(self, rows: NDArray[Any]) -> StudentPrediction:
        """Some rows of the prediction."""
        parts = {name: getattr(self, name)[rows] for name in ("loc", "noise_scale", "function_scale")}
        factor = self.factor
        return replace(self, **parts, factor=lambda: factor()[:, rows])

    @property
    def n_rows(self) -> int:
        return len(self.loc)

    @property
    def n_outputs(self) -> int:
        return self.loc.shape[1]

    @cached_property
    def scale(self) -> Array:
        return np.hypot(self.noise_scale, self.function_scale)

    @property
    def tails(self) -> Array:
        """Standard deviation of the Student t over its scale, [C]."""
        return np.sqrt(self.df / (self.df - 2))

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self.squeezed(self.loc)

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation: what more data would not remove."""
        return self.squeezed(self.noise_scale * self.tails)

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far the function may be from its mean."""
        return self.squeezed(self.function_scale * self.tails)

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return self.squeezed(self.scale * self.tails)

    @cached_property
    def spread(self) -> Array:
        """F with the Student t's factor, [K, N, C]."""
        return self.factor() * self.tails

    def row_covariance(self) -> Array:
        """Covariance between rows, noise on the diagonal: [N, N], or [N, N, C]."""
        between = np.einsum("knc,kmc->nmc", self.spread, self.spread)
        rows = np.arange(self.n_rows)
        between[rows, rows] += (self.noise_scale * self.tails) ** 2
        return self.squeezed(between)

    def covariance(self) -> Array:
        """Covariance between the outputs of each row, [N, C, C]."""
        between = np.einsum("knc,knd->ncd", self.spread, self.spread)
        outputs = np.arange(self.n_outputs)
        between[:, outputs, outputs] += (self.noise_scale * self.tails) ** 2
        return between

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], summed over outputs."""
        return self.log_density(self.as_rows(y)).sum(-1)

    def log_density(self, y: Array) -> Array:
        z = (y - self.loc) / self.scale
        half = 0.5 * (self.df + 1)
        normaliser = special.gammaln(half) - special.gammaln(0.5 * self.df) - 0.5 * np.log(np.pi * self.df)
        return normaliser - np.log(self.scale) - half * np.log1p(z**2 / self.df)

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row and output."""
        return self.squeezed(self.below(self.as_rows(y)))

    def below(self, y: Array) -> Array:
        return special.stdtr(self.df, (y - self.loc) / self.scale)

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N] (or [N, C]), or [Q, N, ...] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q must be inside (0, 1); got {levels}")
        return self.squeezed(self.loc + self.scale * stats.t.ppf(levels[..., None, None], self.df))

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with a coverage of its own for each output [C]: [N, 2], or [N, C, 2].

        A coverage of 1 asks for everything, (−∞, ∞).
        """
        tail = (1 - np.asarray(coverage, dtype=np.float64)) / 2
        if not ((tail >= 0) & (tail <= 0.5)).all():
            raise ValueError(f"coverage must be from 0 to 1; got {coverage}")
        half = -self.scale * stats.t.ppf(tail, self.df)  # the lower tail: 1 − tail would round to 1
        return np.moveaxis(self.squeezed(np.stack([self.loc - half, self.loc + half])), 0, -1)

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2]."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        return self.interval_at(np.asarray(coverage))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units (Jordan et al. 2019)."""
        nu, z = self.df, (self.as_rows(y) - self.loc) / self.scale
        density, below = stats.t.pdf(z, nu), special.stdtr(nu, z)
        spread = 2 * np.sqrt(nu) / (nu - 1) * special.beta(0.5, nu - 0.5) / special.beta(0.5, 0.5 * nu) ** 2
        return self.squeezed(self.scale * (z * (2 * below - 1) + 2 * density * (nu + z**2) / (nu - 1) - spread))

    def sample_functions(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the function, noise aside, [n_samples, N] or [n_samples, N, C]; rows of a draw go together."""
        return self.squeezed(self.functions(n_samples, np.random.default_rng(random_state)))

    def functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        z = rng.standard_normal((n_samples, len(self.spread), self.n_outputs))
        return self.loc + np.einsum("skc,knc->snc", z, self.spread, optimize=True)

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N] or [n_samples, N, C]: one function a draw, with noise of each row."""
        rng = np.random.default_rng(random_state)
        functions = self.functions(n_samples, rng)
        return self.squeezed(functions + self.noise_scale * rng.standard_t(self.df, functions.shape))

    def as_rows(self, y: ArrayLike) -> Array:
        values = np.asarray(y, dtype=np.float64)
        n, c = self.loc.shape
        if values.shape not in ((n,), (n, c)) or values.size != n * c:
            raise ValueError(f"y must have {n} rows and {c} outputs; got shape {values.shape}")
        return values.reshape(n, c)
