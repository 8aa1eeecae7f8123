"""Predictions in closed form: Student t with a centre and a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from vmg.math.distributions import student_cdf, student_log_density, student_quantile, student_variance
from vmg.prediction.base import Array, Factor, Generator, NumberPrediction, scaled_factor

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StudentPrediction"]

KNOTS = np.linspace(-7.9, 7.9, 2**12 + 1)  # normal numbers at which draws know quantiles; beyond are 1e-15


@dataclass(frozen=True, repr=False)
class StudentPrediction(NumberPrediction):
    """The target of each of N rows: Student t with squared scale ``noise_scale² + function_scale²``."""

    loc: Array  # centres, [N, C]
    noise_scale: Array  # the part of the scale that is noise, [N, C]
    function_scale: Array  # the part that is ignorance of the function, [N, C]
    df: Array  # degrees of freedom above 2, [C]
    factor: Factor  # of the function, before the Student t's factor df/(df − 2)
    squeeze: bool = True
    n_shared: int = 0  # so many of the factor's functions, the first ones, are shared by all outputs
    row_fields = ("loc", "noise_scale", "function_scale", "factor")

    @property
    def shape(self) -> tuple[int, int]:
        return self.loc.shape[0], self.loc.shape[1]

    @cached_property
    def scale(self) -> Array:
        """The scale of the target, [N, C]."""
        return np.hypot(self.noise_scale, self.function_scale)

    def widened(self, extra_std: Array) -> Self:
        """The prediction with an extra standard deviation [N, C] of ignorance, which moves all rows together."""
        extra = np.where(np.isfinite(extra_std), extra_std, 0.0) / self.tails
        function_scale = np.hypot(self.function_scale, extra)
        return replace(self, function_scale=function_scale, factor=partial(_with_function, self.factor, extra))

    @property
    def tails(self) -> Array:
        """Standard deviation over the scale, [C]."""
        return np.sqrt(student_variance(self.df))

    def in_units(self, mean: Array, unit: Array, *, squeeze: bool) -> Self:
        """The prediction of targets that are ``mean`` [C] and ``unit`` [C] times these."""
        parts = {name: getattr(self, name) * unit for name in ("loc", "noise_scale", "function_scale")}
        parts["loc"] += mean
        return replace(self, **parts, factor=partial(scaled_factor, self.factor, unit), squeeze=squeeze)

    @property
    def _mean(self) -> Array:
        return self.loc

    @property
    def _aleatoric(self) -> Array:
        return self.noise_scale * self.tails

    @property
    def _epistemic(self) -> Array:
        return self.function_scale * self.tails

    def log_density(self, y: Array) -> Array:
        """log p(y) of each row and output, [N, C]."""
        return student_log_density(y - self.loc, self.scale**2, self.df)

    def _log_prob(self, y: Array) -> Array:
        return self.log_density(y).sum(-1)

    def _cdf(self, y: Array) -> Array:
        return student_cdf((y - self.loc) / self.scale, self.df)

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        lower = student_quantile(np.broadcast_to(tail, (*tail.shape[:-1], self.n_outputs)), self.df)
        return self.loc + self.scale * (-lower if upper else lower)

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units (Jordan et al. 2019)."""
        nu, z = self.df, (self._as_rows(y) - self.loc) / self.scale
        density, below = np.exp(student_log_density(z, np.ones(1), nu)), student_cdf(z, nu)
        spread = 2 * np.sqrt(nu) / (nu - 1) * special.beta(0.5, nu - 0.5) / special.beta(0.5, 0.5 * nu) ** 2
        return self._shaped(self.scale * (z * (2 * below - 1) + 2 * density * (nu + z**2) / (nu - 1) - spread))

    @cached_property
    def _function_factor(self) -> Array:
        return self.factor()

    def _factors(self) -> tuple[Array, int]:
        return self._function_factor * self.tails, self.n_shared

    def _draw(self, n_samples: int, functions: Generator, noise: Generator | None) -> Array:
        """Normal draws Fᵀz of the function, and of each row's noise, and of their sum the quantile at the same level.

        So a row's draws have exactly its distribution, and rows and outputs go together as their functions do.
        """
        z = functions.standard_normal((n_samples, len(self._function_factor), self.n_outputs))
        z[:, : self.n_shared] = z[:, : self.n_shared, :1]
        normal = np.einsum("skc,knc->snc", z, self._function_factor, optimize=True)
        if noise is None:
            return self._mean + normal * self.tails
        normal += self.noise_scale * noise.standard_normal(normal.shape)
        normal /= np.sqrt(np.square(self._function_factor).sum(0) + self.noise_scale**2)
        for c, quantiles in enumerate(self.error_quantiles(KNOTS).T):
            normal[..., c] = np.interp(normal[..., c], KNOTS, quantiles)
        return self.loc + self.scale * normal

    def error_quantiles(self, normal: Array) -> Array:
        """Quantiles [Q, C] of errors over the scale, at the levels of normal numbers [Q] that are symmetric."""
        middle = len(normal) // 2
        lower = student_quantile(special.ndtr(normal[: middle + 1])[:, None], self.df)
        return np.concatenate([lower, -lower[-2::-1]])


def _with_function(factor: Factor, deviation: Array) -> Array:
    """A factor with one more function, whose deviation is known."""
    return np.concatenate([factor(), deviation[None]])
