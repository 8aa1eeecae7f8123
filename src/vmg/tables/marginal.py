"""Predictions of rows with unknown cells: a mixture over the values that those cells may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from vmg.prediction import ClassPrediction
from vmg.prediction.quantile_search import find_quantiles
from vmg.tables.missing import Candidates

__all__ = ["MarginalPrediction", "class_mixture"]

Array = NDArray[np.float64]

GRID = 129  # points on either side of the truth at which a score is integrated
TAIL = 1e-5  # probability beyond them
PROBES = (0.123, 0.457, 0.789)  # levels at which only whole numbers have whole quantiles
SEED = 0


def class_mixture(whole: ClassPrediction, parts: ClassPrediction, candidates: Candidates) -> ClassPrediction:
    """Class probabilities whose draws go over networks and over candidates: what is unknown becomes disagreement."""
    samples = whole.samples.copy()  # [S, N, C]
    n_samples, (n_rows, n_each) = len(samples), candidates.weights.shape
    each = parts.samples.reshape(n_samples, n_rows, n_each, -1)
    order = np.random.default_rng(SEED).permutation(n_samples)
    place = (order[:, None] + 0.5) / n_samples  # evenly spread over the weights, and the same for each row
    ends = np.cumsum(candidates.weights, axis=1)
    chosen = (place[..., None] >= ends[None] / ends[None, :, -1:]).sum(-1).clip(max=n_each - 1)  # [S, G]
    samples[:, candidates.rows] = np.take_along_axis(each, chosen[..., None, None], axis=2)[:, :, 0]
    return ClassPrediction(samples, whole.classes)


@dataclass(frozen=True)
class MarginalPrediction:
    """The target of N rows, some of which are mixtures over candidates.

    What the unknown cells leave open counts as ignorance: knowing them would remove it.

    Parameters
    ----------
    whole : prediction of N rows
        Right for rows without unknown cells.
    parts : prediction of G K rows
        Of the candidates.
    candidates : Candidates
        Their rows and weights.
    """

    whole: Any
    parts: Any
    candidates: Candidates

    @property
    def n_rows(self) -> int:
        return len(self.mean)

    def take(self, rows: NDArray[np.int64], take: Callable[[Any, NDArray[np.int64]], Any]) -> MarginalPrediction:
        """Some rows of the prediction; ``take`` gives some rows of its parts."""
        place = {int(row): k for k, row in enumerate(self.candidates.rows)}
        kept = [(new, place[int(old)]) for new, old in enumerate(rows) if int(old) in place]
        new, old = (np.array([pair[k] for pair in kept], dtype=np.int64) for k in (0, 1))
        n_each = self.candidates.weights.shape[1]
        flat = (old[:, None] * n_each + np.arange(n_each)).reshape(-1)
        chosen = Candidates(new, self.candidates.features[old], self.candidates.weights[old])
        return MarginalPrediction(take(self.whole, rows), take(self.parts, flat), chosen)

    def _each(self, values: Array) -> Array:
        """Something of each candidate, [G, K]."""
        return np.asarray(values).reshape(self.candidates.weights.shape)

    def _average(self, values: Array) -> Array:
        return (self._each(values) * self.candidates.weights).sum(1)

    def _stitched(self, whole: Array, mixed: Array) -> Array:
        values = np.array(whole, dtype=np.float64)
        values[..., self.candidates.rows] = mixed
        return values

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self._stitched(self.whole.mean, self._average(self.parts.mean))

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        means, variances = self._each(self.parts.mean), self._each(self.parts.std) ** 2
        centre = self._average(self.parts.mean)[:, None]
        spread = ((variances + (means - centre) ** 2) * self.candidates.weights).sum(1)
        return self._stitched(self.whole.std, np.sqrt(spread))

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation."""
        return self._stitched(self.whole.aleatoric_std, np.sqrt(self._average(self.parts.aleatoric_std**2)))

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: of the function, and of the unknown cells."""
        return np.sqrt(np.maximum(self.std**2 - self.aleatoric_std**2, 0.0))

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row."""
        values = np.asarray(y, dtype=np.float64)
        each = self._each(self.parts.log_prob(self._repeated(values)))
        return self._stitched(self.whole.log_prob(values), logsumexp(each, axis=1, b=self.candidates.weights))

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row."""
        values = np.asarray(y, dtype=np.float64)
        return self._stitched(self.whole.cdf(values), self._average(self.parts.cdf(self._repeated(values))))

    def _repeated(self, values: Array) -> Array:
        return np.repeat(values[self.candidates.rows], self.candidates.weights.shape[1])

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N], or [Q, N] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        return self._stitched(self.whole.quantile(q), self._invert(levels.reshape(-1)).reshape(*levels.shape, -1))

    def _invert(self, levels: Array) -> Array:
        """Quantiles of the mixtures [Q, G], between those of their parts."""
        found = []
        probes = np.asarray(self.parts.quantile(np.array(PROBES)))
        counts = bool((probes == np.round(probes)).all())  # a distribution of whole numbers
        for level in levels:
            each = self._each(self.parts.quantile(level))
            at_level = find_quantiles(self._mixed_cdf, level, each.min(1), each.max(1))
            found.append(np.round(at_level) if counts else at_level)
        return np.stack(found)

    def _mixed_cdf(self, y: Array) -> Array:
        """P(target <= y) of the mixtures, [G]."""
        return self._average(self.parts.cdf(self._spread(y)))

    def crps(self, y: ArrayLike) -> Array:
        """Continuous ranked probability score of each row: ∫(F(x) − [y <= x])² dx, by the trapezium rule."""
        values = np.asarray(y, dtype=np.float64)
        truth = values[self.candidates.rows]
        low = self._each(self.parts.quantile(TAIL)).min(1)
        high = self._each(self.parts.quantile(1 - TAIL)).max(1)
        total = np.zeros(len(truth))
        for start, end, above in ((np.minimum(low, truth), truth, 0.0), (truth, np.maximum(high, truth), 1.0)):
            grid = np.linspace(start, end, GRID)  # [GRID, G]
            gap = np.stack([(self._average(self.parts.cdf(self._spread(at))) - above) ** 2 for at in grid])
            total += ((gap[1:] + gap[:-1]) * np.diff(grid, axis=0)).sum(0) / 2
        return self._stitched(self.whole.crps(values), total)

    def _spread(self, values: Array) -> Array:
        return np.repeat(values, self.candidates.weights.shape[1])

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with the coverage [1] of the one output: [N, 2]; a coverage of 1 asks for everything."""
        share = float(np.asarray(coverage).reshape(-1)[0])
        ends = np.array(self.whole.interval_at(np.asarray(coverage)), dtype=np.float64)
        tail = (1 - share) / 2
        if tail == 0:
            mixed = np.array([[-np.inf], [np.inf]]).repeat(len(self.candidates.rows), axis=1)
        else:
            mixed = self._invert(np.array([tail, 1 - tail]))
        ends[self.candidates.rows] = mixed.T
        return ends

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2]."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        ends = np.array(self.whole.interval(coverage), dtype=np.float64)
        ends[self.candidates.rows] = self._invert(np.array([(1 - coverage) / 2, (1 + coverage) / 2])).T
        return ends

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N]."""
        return self._draw(lambda part, rng: part.sample(n_samples, rng), n_samples, random_state)

    def sample_functions(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the function, noise aside, [n_samples, N]."""
        return self._draw(lambda part, rng: part.sample_functions(n_samples, rng), n_samples, random_state)

    def _draw(
        self,
        draw: Callable[[Any, np.random.Generator], Array],
        n_samples: int,
        random_state: int | np.random.Generator | None,
    ) -> Array:
        rng = np.random.default_rng(random_state)
        values = np.array(draw(self.whole, rng))
        each = draw(self.parts, rng).reshape(n_samples, *self.candidates.weights.shape)  # [S, G, K]
        ends = np.cumsum(self.candidates.weights, axis=1)
        place = rng.random((n_samples, len(ends)))
        chosen = (place[..., None] >= ends / ends[:, -1:]).sum(-1).clip(max=ends.shape[1] - 1)
        values[:, self.candidates.rows] = np.take_along_axis(each, chosen[..., None], axis=2)[..., 0]
        return values
