"""Boosted trees as an expert beside the networks: they see thresholds, and nothing of where there are no rows.

scikit-learn grows the trees. A tree of at most eight leaves has at most seven splits, so which of them a row passes is
a number below 128. A table of the trees' values by this number is all that a prediction needs, and all that a model
file holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from threadpoolctl import threadpool_limits

from vmg.fit.design import FitRows
from vmg.fit.ensemble import Expert, Function
from vmg.math.distributions import Array
from vmg.model_file import require_shapes

__all__ = ["BoostedTrees", "class_log_probabilities", "grow_class_trees"]

LEAVES = 8
SPLITS = LEAVES - 1
CODES = 2**SPLITS  # that say which splits of a tree a row passes
ROWS_AT_ONCE = 1024

FOR_NUMBERS: dict[str, Any] = {"learning_rate": 0.1, "max_iter": 100}
FOR_CLASSES: dict[str, Any] = {"learning_rate": 0.15, "max_iter": 50}
LEAF_ROWS = 10  # at least
SHRINKAGE = 1.0  # rows of value zero that a leaf counts with, beside its own
LEAST_PROBABILITY = 1e-4  # of all classes together: trees that have not seen a class still allow it


@dataclass(frozen=True)
class BoostedTrees(Expert):
    """T trees of C scores; a row is beyond split s of a tree if its ``feature`` is above the ``threshold``.

    ``feature`` and ``threshold`` are [C, T, 7] and ``value`` is [C, T, 128], by the number whose bit s says that split
    s is passed. ``start`` [C] is the score before the first tree.
    """

    feature: NDArray[np.int64]
    threshold: Array
    value: Array
    start: Array

    name = "boosted_trees"

    @classmethod
    def fit(cls, rows: FitRows, index: NDArray[np.int64]) -> tuple[BoostedTrees, list[Function]]:
        def grown(some: Any) -> BoostedTrees:
            return cls.of(_grow("HistGradientBoostingRegressor", FOR_NUMBERS, rows, some))

        return grown(slice(None)), [grown(~outside).predict(rows.x[index]) for outside in rows.design.unseen]

    @classmethod
    def of(cls, model: Any) -> BoostedTrees:
        """The trees of one of scikit-learn's histogram gradient boosting models, its raw predictions being scores."""
        parts = [_arrays(tree.nodes) for trees in model._predictors for tree in trees]
        n_scores = model.n_trees_per_iteration_
        feature, threshold, value = (
            np.stack(part).reshape(-1, n_scores, len(part[0])) for part in zip(*parts, strict=True)
        )
        start = np.asarray(model._baseline_prediction, dtype=np.float64).reshape(n_scores)
        return cls(feature.swapaxes(0, 1), threshold.swapaxes(0, 1), value.swapaxes(0, 1), start)

    def scores(self, x: Array) -> Array:
        """Sums of all trees at rows x [N, D], [N, C]."""
        n_scores, n_trees, _ = self.feature.shape
        table = self.value.reshape(-1, CODES)
        first = np.arange(len(table)) * CODES
        total = np.empty((len(x), n_scores))
        for begin in range(0, len(x), ROWS_AT_ONCE):
            rows = slice(begin, begin + ROWS_AT_ONCE)
            beyond = x[rows][:, self.feature.ravel()] > self.threshold.ravel()
            code = np.packbits(beyond.reshape(-1, len(table), SPLITS), axis=-1, bitorder="little")[..., 0]
            total[rows] = table.ravel()[code + first].reshape(-1, n_scores, n_trees).sum(-1)
        return total + self.start

    def predict(self, x: Array) -> Function:
        """The sum of the trees, with no variance: trees know no ignorance."""
        return Function(self.scores(x)[:, 0], np.zeros(len(x)))

    def check(self, n_inputs: int) -> None:
        """Raise a ValueError unless arrays fit together and splits are of so many inputs."""
        trees = self.feature.shape[:2]
        shapes = {"feature": (*trees, SPLITS), "threshold": (*trees, SPLITS), "value": (*trees, CODES)}
        require_shapes({**shapes, "start": trees[:1]}, vars(self))
        if not ((self.feature >= 0) & (self.feature < n_inputs)).all():
            raise ValueError(f"splits must be of features from 0 to {n_inputs - 1}; got others")


def _arrays(nodes: NDArray[Any]) -> tuple[NDArray[np.int64], Array, Array]:
    """Features and thresholds of a tree's splits [7] and its values by the splits that are passed [128]."""
    feature, threshold, value = np.zeros(SPLITS, dtype=np.int64), np.full(SPLITS, np.inf), np.zeros(CODES)
    codes = np.arange(CODES)
    inner = {int(k): s for s, k in enumerate(np.flatnonzero(nodes["is_leaf"] == 0))}
    for k, s in inner.items():
        feature[s], threshold[s] = nodes["feature_idx"][k], nodes["num_threshold"][k]

    def fill(k: int, reached: NDArray[np.int64]) -> None:
        if k not in inner:
            value[reached] = nodes["value"][k]
            return
        beyond = (reached >> inner[k]) & 1 == 1
        fill(int(nodes["left"][k]), reached[~beyond])
        fill(int(nodes["right"][k]), reached[beyond])

    fill(0, codes)
    return feature, threshold, value


def _grow(kind: str, settings: Mapping[str, Any], rows: FitRows, some: Any) -> Any:
    """One of scikit-learn's models, fitted to some rows."""
    from sklearn import ensemble  # here, for a prediction needs nothing of it and starts sooner

    common = {"max_leaf_nodes": LEAVES, "min_samples_leaf": LEAF_ROWS, "l2_regularization": SHRINKAGE}
    model = getattr(ensemble, kind)(**settings, **common, early_stopping=False, random_state=0)
    with threadpool_limits(1):  # so few rows gain nothing from several threads
        weight = None if (rows.weight == 1).all() else rows.weight[some]
        return model.fit(rows.x[some], rows.y[some].ravel(), sample_weight=weight)


def class_log_probabilities(trees: BoostedTrees, classes: NDArray[np.int64], n_classes: int, x: Array) -> Array:
    """Log probabilities [N, K] by trees that know some ``classes``; the others share the least probability."""
    scores = trees.scores(x)
    known = special.softmax(scores if scores.shape[1] > 1 else np.column_stack([np.zeros(len(x)), scores[:, 0]]), -1)
    p = np.zeros((len(x), n_classes))
    p[:, classes] = known
    return np.log((1 - LEAST_PROBABILITY) * p + LEAST_PROBABILITY / n_classes)


def grow_class_trees(rows: FitRows, n_classes: int) -> tuple[BoostedTrees, list[Array]] | None:
    """Trees for labels, and for each group the log probabilities [N, K] by trees that have not seen its rows.

    None where the rows do not show every class: trees could never learn of it.
    """

    def grown(some: Any) -> tuple[BoostedTrees, NDArray[np.int64]]:
        model = _grow("HistGradientBoostingClassifier", FOR_CLASSES, rows, some)
        return BoostedTrees.of(model), model.classes_

    shown = [np.unique(rows.y[~outside]) for outside in rows.design.unseen]
    if len(np.unique(rows.y)) < n_classes or any(len(one) < 2 for one in shown):
        return None
    blind = [class_log_probabilities(*grown(~outside), n_classes, rows.x) for outside in rows.design.unseen]
    return grown(slice(None))[0], blind
