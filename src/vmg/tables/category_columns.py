"""Columns of categories: frequent levels as 0/1, all levels by what the target is there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.column import Column, Features, Mask, Reading
from vmg.tables.values import to_texts
from vmg.tables.wording import count

__all__ = ["CategoryColumn"]

Array = NDArray[np.float64]

MAX_LEVELS = 20
MIN_LEVEL_ROWS = 2  # a category seen once teaches nothing of its own
FREQUENT_ROWS = 50  # of a level that has a feature of its own beside the target's mean
MAX_KNOWN = 10_000  # levels whose target statistics are kept; the rarest beyond count as unseen
PRIOR_ROWS = 4.0  # rows' worth of the overall mean that every level's mean is drawn to
FOLDS = 5
SEED = 0


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A 0/1 feature for each frequent level, and what stands for the others.

    Without a target they are one feature, ``other``. With one, every level has the mean of the target in its rows,
    drawn to the overall mean as if by ``PRIOR_ROWS`` rows of it: ``effects`` [levels, outputs], in the
    order of ``known``.
    """

    levels: list[str]
    n_pooled: int
    known: list[str] = field(default_factory=list)
    effects: list[list[float]] = field(default_factory=list)

    kind, plural = "category", "categories"

    @classmethod
    def fit(cls, column: pd.Series, reading: Reading) -> CategoryColumn | None:
        texts = to_texts(column)
        counts = texts.value_counts()  # most frequent first
        order = sorted(counts.index, key=lambda level: (-counts[level], level))
        levels = [level for level in order[:MAX_LEVELS] if counts[level] >= MIN_LEVEL_ROWS]
        if not levels:
            return None
        return cls(str(column.name), int(texts.isna().sum()), levels, len(counts) - len(levels), order[:MAX_KNOWN])

    def with_effects(self, column: pd.Series, target: Array) -> tuple[CategoryColumn, Array | None]:
        """The column with target statistics, and those of the training rows themselves, each without its own fold.

        ``target`` [N, outputs] is centred. A column of few levels needs none. On the development tables, with columns
        cut into 23 to 60 levels of 11 to 15 rows, such means were better than 0/1 features of all levels, of the
        largest, or of both.
        """
        if len(self.known) <= MAX_LEVELS:
            return self, None
        counts = to_texts(column).value_counts()
        frequent = [level for level in self.levels if counts.get(level, 0) >= FREQUENT_ROWS]
        place = self._places(column)
        fold = np.random.default_rng(SEED).permutation(np.arange(len(place)) % FOLDS)
        apart = np.zeros(target.shape)
        for k in range(FOLDS):
            apart[fold == k] = self._means(place[fold != k], target[fold != k])[place[fold == k]]
        effects = self._means(place, target)[:-1].tolist()
        return replace(self, levels=frequent, n_pooled=len(counts) - len(frequent), effects=effects), apart

    def _means(self, place: NDArray[np.int64], target: Array) -> Array:
        """Drawn means of each known level [levels + 1, outputs]; the last, for all else, is the overall mean."""
        sums, rows = np.zeros((len(self.known) + 1, target.shape[1])), np.zeros(len(self.known) + 1)
        np.add.at(sums, place, target)
        np.add.at(rows, place, 1.0)
        overall = target.mean(0)
        means = (sums + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)[:, None]
        means[-1] = overall
        return means

    def _places(self, column: pd.Series) -> NDArray[np.int64]:
        """The place of each cell in ``known``; its length where it is none of them."""
        places = {level: place for place, level in enumerate(self.known)}
        return np.array([places.get(text, len(places)) for text in to_texts(column)], dtype=np.int64)

    def transform(self, column: pd.Series) -> Features:
        texts = to_texts(column)
        features = {f"{self.name} = {level}": (texts == level).to_numpy(dtype=np.float64) for level in self.levels}
        if len(self.effects):
            effects = np.vstack([np.asarray(self.effects), np.zeros((1, len(self.effects[0])))])
            features |= dict(zip(self.effect_names, effects[self._places(column)].T, strict=True))
        elif self.n_pooled:
            other = texts.notna() & ~texts.isin(self.levels)
            features[f"{self.name}: other"] = other.to_numpy(dtype=np.float64)
        return features | self._missing_mark(texts)

    @property
    def effect_names(self) -> list[str]:
        """Names of the features that hold target statistics."""
        n = len(self.effects[0]) if len(self.effects) else 0
        return [f"{self.name}: effect" + (f" {k + 1}" if n > 1 else "") for k in range(n)]

    def marks(self, column: pd.Series) -> dict[str, Mask]:
        texts = to_texts(column)
        return {"missing": texts.isna().to_numpy(), "unseen": (texts.notna() & ~texts.isin(self._seen())).to_numpy()}

    def _seen(self) -> list[str]:
        """Levels of training rows, as far as the file says; a file of an earlier version does not name pooled ones."""
        return list(self.known) or list(self.levels)

    def feature_scales(self) -> list[float]:
        other = np.sqrt(2.0) if self.n_pooled and not len(self.effects) else np.inf
        rest = [other] * (len(self.effects[0]) if len(self.effects) else bool(self.n_pooled))
        return [*[float(np.sqrt(2.0))] * len(self.levels), *rest, *[1.0] * bool(self.n_missing)]

    def unseen(self, column: pd.Series) -> list[str]:
        if self.n_pooled and not len(self.known):  # they join the pooled ones
            return []
        texts = to_texts(column).dropna()
        return sorted(texts[~texts.isin(self._seen())].unique())

    def notes(self) -> list[str]:
        if not self.n_pooled:
            return []
        rare = count(self.n_pooled, "rarer category", "rarer categories")
        if len(self.effects):
            n = len(self.levels) + self.n_pooled
            return [f"Column '{self.name}': {n} categories, {rare} known by the target's mean in their rows."]
        return [f"Column '{self.name}': {rare} pooled as 'other', {len(self.levels)} kept."]
