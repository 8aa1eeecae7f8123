"""Conformal corrections: exact ranks, exact finite-sample coverage, groups and sets of classes."""

import math

import numpy as np
import pytest
import scipy.sparse

import vmg
from quick import class_table, ensemble_classifier, ensemble_regressor, linear_table
from vmg.prediction import Prediction
from vmg.prediction.conformal import (
    CoverageError,
    calibration_scores,
    class_scores,
    class_sets,
    conformal_level,
    row_levels,
)
from vmg.prediction.student import StudentPrediction

COVERAGES = pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])


# -- the rank ---------------------------------------------------------------------------------------------------------


def test_scores_are_the_coverage_that_just_holds_the_target():
    prediction = Prediction(np.zeros((1, 3, 2)), np.ones((1, 1, 1)), np.full((1, 1, 1), np.inf))
    y = prediction.quantile(np.array([0.5, 0.05, 0.95, 0.4, 0.2, 0.999]))[0, 0].reshape(3, 2)
    expected = np.array([[0.0, 0.9], [0.9, 0.2], [0.6, 0.998]])
    np.testing.assert_allclose(calibration_scores(prediction, y), expected, atol=1e-12)


@COVERAGES
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 9, 10, 19, 98, 99, 100, 101])
def test_the_level_is_the_smallest_score_with_enough_ranks_below(n, coverage):
    scores = (np.arange(n) + 1.0)[:, None] / (n + 1)  # of uniform scores, the expected ones
    enough = next(m for m in range(1, 10_000) if math.ceil(round((m + 1) * coverage, 9)) <= m)
    if n < enough:
        message = rf"conformalize needs at least {enough} rows for coverage {coverage}; got {n}$"
        with pytest.raises(CoverageError, match=message):
            conformal_level(scores, coverage)
        return
    level = conformal_level(scores, coverage)
    assert level.shape == (1,)
    assert coverage - 1e-9 <= level[0] < coverage + 1 / (n + 1) - 1e-9
    assert conformal_level(scores, 1e-12) == scores[0]


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_coverage_outside_of_its_range(coverage):
    with pytest.raises(ValueError, match=r"coverage must be inside \(0, 1\)"):
        conformal_level(np.linspace(0, 1, 50)[:, None], coverage)


# -- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.2, 1.0, 4.0, 9.0, 100.0])
def test_coverage_of_intervals_of_a_wrong_model(spread):
    """The model says N(0, 1), or a mixture around it; the truth is ``spread`` times wider and not centred."""
    n, n_new, n_trials, coverage = 19, 5, 400, 0.9
    y = 0.3 + spread * np.random.default_rng(0).normal(size=(n + n_new, n_trials))
    loc = np.array([-0.1, 0.1])[:, None, None] * np.ones((2, n + n_new, n_trials))  # a trial is an output
    model = Prediction(loc, np.ones((1, 1, 1)), np.full((1, 1, 1), 30.0))
    scores = calibration_scores(model, y)[:n]
    low, high = np.moveaxis(model.interval_at(conformal_level(scores, coverage))[n:], -1, 0)
    hits = ((low <= y[n:]) & (y[n:] <= high)).mean(0)
    error = 4 * hits.std() / math.sqrt(n_trials)
    assert coverage - error <= hits.mean()
    if spread < 9:  # beyond, scores round to one and intervals may be infinite
        assert hits.mean() <= coverage + 1 / (n + 1) + error


def rows(rng, n):
    """Predictions that are wrong in shape and size, and targets."""
    noise = rng.uniform(0.5, 3, (n, 1))
    prediction = StudentPrediction(0 * noise, 0.3 * noise, 0.03 * noise, np.full(1, 5.0), lambda: 0.03 * noise[None])
    return prediction, noise[:, 0] * rng.standard_exponential(n)


def test_groups_cover_each_on_its_own():
    def each(rng, n, n_new):
        prediction, y = rows(rng, n)
        label = np.arange(n) % 2
        y = np.where(label == 1, 10 * y, y)  # the model is ten times too sure of one group
        new, target = rows(rng, n_new)
        new_label = np.arange(n_new) % 2
        target = np.where(new_label == 1, 10 * target, target)
        ends = new.interval_at(row_levels(calibration_scores(prediction, y), label, 0.8, new_label, n_new))
        inside = (ends[:, 0] <= target) & (target <= ends[:, 1])
        return [inside[new_label == group].mean() for group in (0, 1)]

    rng = np.random.default_rng(1)
    covered = np.mean([each(rng, 48, 20) for _ in range(400)], axis=0)
    assert (np.abs(covered - 0.8) < 4 * np.sqrt(0.16 / 400 / 4)).all()


def test_sets_of_classes_cover():
    def covered(rng, n, n_new):
        def draw(size):
            p = rng.dirichlet(np.ones(4), size)
            label = np.array([rng.choice(4, p=row) for row in p])
            return p**2 / (p**2).sum(1, keepdims=True), label  # too sure

        p, label = draw(n)
        new, target = draw(n_new)
        return class_sets(new, conformal_level(class_scores(p, label), 0.8))[np.arange(n_new), target].mean()

    rng = np.random.default_rng(0)
    share = np.mean([covered(rng, 24, 20) for _ in range(200)])
    assert 0.8 - 4 * np.sqrt(0.16 / 200 / 6) < share < 0.87


# -- estimators -------------------------------------------------------------------------------------------------------


def test_groups_of_rows(tmp_path):
    regressor = ensemble_regressor(max_iter=40).fit(*linear_table(n_outputs=2))
    X, Y = linear_table(120, n_outputs=2, seed=3)
    label = np.where(X[:, 0] > 0, "right", "left")
    regressor.conformalize(X, Y, groups=label)
    with pytest.raises(ValueError, match="groups of the rows are needed"):
        regressor.predict_interval(X)
    with pytest.raises(ValueError, match="among those of conformalize"):
        regressor.predict_interval(X[:2], groups=["left", "above"])
    with pytest.raises(CoverageError, match="group left"):
        regressor.predict_interval(X, 0.995, groups=label)
    together = regressor.predict_interval(X, 0.8, groups=label)
    for one in ("left", "right"):
        alone = regressor.predict_interval(X[label == one], 0.8, groups=label[label == one])
        np.testing.assert_allclose(together[label == one], alone, rtol=1e-9)
    regressor.save(tmp_path / "model.vmg")  # a calibration survives its file, and not an update
    loaded = vmg.load(tmp_path / "model.vmg")
    assert np.array_equal(loaded.predict_interval(X, 0.8, groups=label), together)
    loaded.partial_fit(X, Y)
    assert loaded.predict_interval(X, 0.7).shape == (120, 2, 2)


def test_sparse_rows_are_read_everywhere():
    X, y = linear_table(60)
    model = ensemble_regressor().fit(X, y)
    given = scipy.sparse.csr_matrix(X)
    np.testing.assert_array_equal(model.pred_dist(given).mean, model.pred_dist(X).mean)
    np.testing.assert_array_equal(model.predict(given, return_cov=True)[1], model.predict(X, return_cov=True)[1])
    np.testing.assert_array_equal(model.sample(given, 3), model.sample(X, 3))
    expected = model.conformalize(X, y).predict_interval(X)
    np.testing.assert_array_equal(model.conformalize(given, y).predict_interval(given), expected)
    X, y = class_table(60)
    classifier = ensemble_classifier().fit(X, y)
    expected = classifier.conformalize(X, y).predict_set(X)
    given = scipy.sparse.csc_array(X)
    np.testing.assert_array_equal(classifier.conformalize(given, y).predict_set(given), expected)


def test_sets_of_a_classifier(tmp_path):
    model = ensemble_classifier().fit(*class_table())
    X, y = class_table(150, seed=5)
    with pytest.raises(ValueError, match="predict_set needs conformalize"):
        model.predict_set(X)
    model.conformalize(X, y)
    X_new, y_new = class_table(300, seed=6)
    found = model.predict_set(X_new, 0.9)
    assert found.shape == (300, 3) and found.any(1).all()
    assert found[np.arange(300), np.searchsorted(model.classes_, y_new)].mean() > 0.85
    model.save(tmp_path / "model.vmg")
    assert np.array_equal(vmg.load(tmp_path / "model.vmg").predict_set(X_new, 0.9), found)
    labels = np.where(X[:, 0] > 0, 1, 0)
    model.conformalize(X, y, groups=labels)
    assert model.predict_set(X, 0.8, groups=labels).shape == (150, 3)
    with pytest.raises(ValueError, match="groups"):
        model.predict_set(X, 0.8)
    assert model.fit(X, y).conformal_scores_ is None
