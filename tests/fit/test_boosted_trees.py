"""Trees as arrays, against scikit-learn's own predictions."""

from dataclasses import replace

import numpy as np
import pytest
from fit_rows import fit_rows

from vmg.fit.boosted_trees import (
    FOR_CLASSES,
    FOR_NUMBERS,
    BoostedTrees,
    _grow,
    class_log_probabilities,
    grow_class_trees,
)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4))
    return x, (x[:, 0] > 0.3) * x[:, 1] + x[:, 2] ** 2


def test_the_table_of_codes_is_the_sum_of_the_trees(rows):
    x, y = rows
    model = _grow("HistGradientBoostingRegressor", FOR_NUMBERS, fit_rows(x, y), slice(None))
    loc, variance = BoostedTrees.of(model).predict(x)
    np.testing.assert_allclose(loc, model.predict(x), rtol=0, atol=1e-12)
    assert not variance.any()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_those_of_scikit_learn(rows, n_classes):
    x, y = rows
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = _grow("HistGradientBoostingClassifier", FOR_CLASSES, fit_rows(x, labels), slice(None))
    p = np.exp(class_log_probabilities(BoostedTrees.of(model), model.classes_, n_classes, x))
    np.testing.assert_allclose(p, model.predict_proba(x), atol=1.1e-4)  # the least probability
    np.testing.assert_allclose(p.sum(1), 1.0)


def test_classes_that_a_fold_has_not_seen_stay_possible(rows):
    x, _ = rows
    labels = np.where(np.arange(300) < 5, 2, (x[:, 0] > 0).astype(int))
    held_out = (np.arange(300) < 100)[None]
    rows = fit_rows(x, labels, held_out)
    trees, [said] = grow_class_trees(rows, 3)
    assert len(trees.start) == 3
    assert said.shape == (300, 3)
    np.testing.assert_allclose(np.exp(said[:, 2]), 1e-4 / 3)
    assert grow_class_trees(rows, 4) is None


def test_other_inputs_and_arrays_that_do_not_fit_are_refused(rows):
    x, y = rows
    trees, _ = BoostedTrees.fit(fit_rows(x, y), np.arange(0))
    trees.check(4)
    with pytest.raises(ValueError, match="features from 0 to 1"):
        trees.check(2)
    with pytest.raises(ValueError, match="threshold must have the shape"):
        replace(trees, threshold=trees.threshold[:, 1:]).check(4)
