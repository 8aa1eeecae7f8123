"""Predictions whose noise has the shape of a mixture of normal distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vmg.prediction.student import StudentPrediction

__all__ = ["ShapedPrediction"]

Array = NDArray[np.float64]


class Shape(Protocol):
    """The distribution of errors in units of a row's scale."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float: ...

    def log_density(self, r: Array) -> Array: ...

    def cdf(self, r: Array) -> Array: ...

    def quantile(self, q: Array) -> Array: ...

    def crps(self, r: Array) -> Array: ...

    def sample(self, size: tuple[int, ...], rng: np.random.Generator) -> Array: ...


@dataclass(frozen=True)
class ShapedPrediction:
    """The target of each of N rows: y = loc + scale · r, loc and scale as ``base`` says and r with a shape of its own.

    ``shapes`` are those of the C outputs. Results have the shapes of
    :class:`~vmg.prediction.student.StudentPrediction`, all in closed form or by a search in one dimension.
    """

    base: StudentPrediction
    shapes: Sequence[Shape]

    @property
    def loc(self) -> Array:
        """Centres, [N, C]."""
        return self.base.loc

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def n_outputs(self) -> int:
        return self.base.n_outputs

    def take(self, rows: NDArray[Any]) -> ShapedPrediction:
        """Some rows of the prediction."""
        return replace(self, base=self.base.take(rows))

    @property
    def _stds(self) -> Array:
        return np.array([shape.std for shape in self.shapes])

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self.base.squeezed(self.base.loc + self.base.scale * np.array([shape.mean for shape in self.shapes]))

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation: what more data would not remove."""
        return self.base.squeezed(self.base.noise_scale * self._stds)

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far the function may be from its mean."""
        return self.base.squeezed(self.base.function_scale * self._stds)

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return self.base.squeezed(self.base.scale * self._stds)

    def row_covariance(self) -> Array:
        """Covariance between rows, noise on the diagonal: [N, N], or [N, N, C]."""
        factor = self.base.factor() * self._stds
        between = np.einsum("knc,kmc->nmc", factor, factor)
        rows = np.arange(self.n_rows)
        between[rows, rows] += (self.base.noise_scale * self._stds) ** 2
        return self.base.squeezed(between)

    def _errors(self, y: ArrayLike) -> Array:
        return (self.base.as_rows(y) - self.base.loc) / self.base.scale

    def _each(self, values: Array, what: str) -> Array:
        """A function of each output's shape at values [..., C]."""
        return np.stack([getattr(shape, what)(values[..., c]) for c, shape in enumerate(self.shapes)], -1)

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], summed over outputs."""
        return (self._each(self._errors(y), "log_density") - np.log(self.base.scale)).sum(-1)

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row and output."""
        return self.base.squeezed(self._each(self._errors(y), "cdf"))

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N] (or [N, C]), or [Q, N, ...] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q must be inside (0, 1); got {levels}")
        r = self._each(np.repeat(levels[..., None], self.n_outputs, -1), "quantile")
        return self.base.squeezed(self.base.loc + self.base.scale * r[..., None, :])

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with a coverage of its own for each output [C]: [N, 2], or [N, C, 2]."""
        tail = (1 - np.asarray(coverage, dtype=np.float64)) / 2
        tail = np.broadcast_to(tail, np.broadcast_shapes(tail.shape, (self.n_outputs,)))
        if not ((tail >= 0) & (tail <= 0.5)).all():
            raise ValueError(f"coverage must be from 0 to 1; got {coverage}")
        inner = np.clip(tail, 1e-15, 0.5)
        ends = []
        for level, sign in ((inner, -1), (1 - inner, 1)):
            r = np.where(tail == 0, sign * np.inf, self._each(level, "quantile"))
            ends.append(self.base.loc + self.base.scale * r)
        return np.moveaxis(self.base.squeezed(np.stack(ends)), 0, -1)

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2]."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        return self.interval_at(np.asarray(coverage))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row and output, in the target's units."""
        return self.base.squeezed(self.base.scale * self._each(self._errors(y), "crps"))

    def sample_functions(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the function, noise aside, [n_samples, N] or [n_samples, N, C]; rows of a draw go together."""
        return self.base.squeezed(self._functions(n_samples, np.random.default_rng(random_state)))

    def _functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        factor = self.base.factor() * self._stds
        z = rng.standard_normal((n_samples, len(factor), self.n_outputs))
        centre = self.base.loc + (self.base.scale - self.base.noise_scale) * np.array([s.mean for s in self.shapes])
        return centre + np.einsum("skc,knc->snc", z, factor, optimize=True)

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N] or [n_samples, N, C]: one function a draw, with noise of each row."""
        rng = np.random.default_rng(random_state)
        functions = self._functions(n_samples, rng)
        noise = np.stack([shape.sample(functions.shape[:2], rng) for shape in self.shapes], -1)
        return self.base.squeezed(functions + self.base.noise_scale * noise)
