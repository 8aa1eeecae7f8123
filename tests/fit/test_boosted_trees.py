"""Trees as arrays, against scikit-learn's own predictions."""

from dataclasses import replace

import numpy as np
import pytest

from vmg.fit.boosted_trees import (
    FOR_CLASSES,
    FOR_NUMBERS,
    BoostedTrees,
    _grow,
    class_log_probabilities,
    grow_class_trees,
    grow_trees,
)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4))
    return x, (x[:, 0] > 0.3) * x[:, 1] + x[:, 2] ** 2


def test_the_table_of_codes_is_the_sum_of_the_trees(rows):
    x, y = rows
    model = _grow("HistGradientBoostingRegressor", x, y, np.ones(300), FOR_NUMBERS)
    loc, variance = BoostedTrees.of(model).predict(x)
    np.testing.assert_allclose(loc, model.predict(x), rtol=0, atol=1e-12)
    assert not variance.any()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_are_those_of_scikit_learn(rows, n_classes):
    x, y = rows
    labels = np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))
    model = _grow("HistGradientBoostingClassifier", x, labels, np.ones(300), FOR_CLASSES)
    p = np.exp(class_log_probabilities(BoostedTrees.of(model), model.classes_, n_classes, x))
    np.testing.assert_allclose(p, model.predict_proba(x), atol=1.1e-4)  # the least probability
    np.testing.assert_allclose(p.sum(1), 1.0)


def test_held_out_predictions_have_not_seen_their_rows(rows):
    x, y = rows
    held_out = np.stack([np.arange(300) % 4 == k for k in range(2)])
    _, said = grow_trees(x, y, np.ones(300), held_out, x)
    _, again = grow_trees(x, np.where(held_out[0], y + 100.0, y), np.ones(300), held_out, x)
    np.testing.assert_array_equal(said[0].loc, again[0].loc)
    assert np.abs(said[1].loc - again[1].loc).max() > 1.0


def test_classes_that_a_fold_has_not_seen_stay_possible(rows):
    x, _ = rows
    labels = np.where(np.arange(300) < 5, 2, (x[:, 0] > 0).astype(int))
    held_out = (np.arange(300) < 100)[None]
    trees, [said] = grow_class_trees(x, labels, 3, np.ones(300), held_out)
    assert len(trees.start) == 3
    assert said.shape == (300, 3)
    np.testing.assert_allclose(np.exp(said[:, 2]), 1e-4 / 3)
    assert grow_class_trees(x, labels, 4, np.ones(300), held_out) is None


def test_other_inputs_and_arrays_that_do_not_fit_are_refused(rows):
    x, y = rows
    trees, _ = grow_trees(x, y, np.ones(300), np.zeros((0, 300), dtype=bool), x)
    trees.check(4)
    with pytest.raises(ValueError, match="features from 0 to 1"):
        trees.check(2)
    with pytest.raises(ValueError, match="threshold must have the shape"):
        replace(trees, threshold=trees.threshold[:, 1:]).check(4)
