"""Predictions that are known to be less certain than they look, stretched around their medians."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vmg.prediction.base import Array, NumberPrediction, Rows

__all__ = ["WidenedPrediction", "widen"]


def widen(prediction: NumberPrediction, extra_std: Array) -> NumberPrediction:
    """The prediction with an extra standard deviation [N, C], in the target's units, that counts as ignorance."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        factor = np.sqrt(1 + np.square(extra_std / prediction._std))
    return WidenedPrediction(prediction, np.where(np.isfinite(factor), factor, 1.0))


@dataclass(frozen=True, repr=False)
class WidenedPrediction(NumberPrediction):
    """A continuous prediction whose distance from its median is multiplied by ``factor`` [N, C], at least 1.

    What would leave the support of the target is at its end. The added variance counts as ignorance.
    """

    base: NumberPrediction
    factor: Array

    @property
    def squeeze(self) -> bool:  # type: ignore[override]
        return self.base.squeeze

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    def take(self, rows: Rows) -> WidenedPrediction:
        """Some rows of the prediction."""
        return replace(self, base=self.base.take(rows), factor=self.factor[rows])

    @cached_property
    def _median(self) -> Array:
        return self.base._quantile(np.full((1, 1), 0.5))

    def _wider(self, values: Array) -> Array:
        return np.clip(self._median + self.factor * (values - self._median), *self._support)

    def _narrower(self, values: Array) -> Array:
        return self._median + (values - self._median) / self.factor

    @property
    def _mean(self) -> Array:
        return self._wider(self.base._mean)

    @property
    def _std(self) -> Array:
        return self.factor * self.base._std

    @property
    def _aleatoric(self) -> Array:
        return self.base._aleatoric

    @property
    def _epistemic(self) -> Array:
        return np.sqrt(np.maximum(self._std**2 - self._aleatoric**2, 0.0))

    def _factors(self) -> tuple[Array, Array]:
        return self.base._factors()

    @property
    def _support(self) -> tuple[float, float]:
        return self.base._support

    def _cdf(self, y: Array) -> Array:
        low, high = self._support
        inside = self.base._cdf(self._narrower(y))
        return np.where(y < low, 0.0, np.where(y >= high, 1.0, inside))

    def _quantile(self, tail: Array, *, upper: bool = False) -> Array:
        return self._wider(self.base._quantile(tail, upper=upper))

    def _log_prob(self, y: Array) -> Array:
        return self.base._log_prob(self._narrower(y)) - np.log(self.factor).sum(-1)

    def _draw(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._wider(self.base._draw(n_samples, rng))

    def _draw_functions(self, n_samples: int, rng: np.random.Generator) -> Array:
        return self._wider(self.base._draw_functions(n_samples, rng))
