import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

from quick import linear_table, regressor
from vmg.prediction import Prediction
from vmg.prediction.conformal import calibration_scores, conformal_level

COVERAGES = pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.99])


def needed(coverage):
    """The fewest rows n with ⌈(n + 1) coverage⌉ <= n."""
    return next(n for n in range(1, 10_000) if math.ceil(round((n + 1) * coverage, 9)) <= n)


# -- the rank ---------------------------------------------------------------------------------------------------------


def test_scores_are_the_coverage_that_just_holds_the_target():
    cdf = np.array([[0.5, 0.05], [0.95, 0.4], [0.2, 1.0]])
    expected = np.array([[0.0, 0.2], [0.6, 0.9], [0.9, 1.0]])
    np.testing.assert_allclose(calibration_scores(cdf), expected, atol=1e-15)


@COVERAGES
@pytest.mark.parametrize("n", [1, 2, 9, 10, 19, 99, 100, 101])
def test_the_level_is_the_smallest_score_with_enough_ranks_below(n, coverage):
    scores = (np.arange(n) + 1.0)[:, None] / (n + 1)  # of uniform scores, the expected ones
    if n < needed(coverage):
        with pytest.raises(ValueError, match="conformalize needs"):
            conformal_level(scores, coverage)
        return
    level = conformal_level(scores, coverage)
    assert level.shape == (1,)
    assert coverage - 1e-9 <= level[0] < coverage + 1 / (n + 1) - 1e-9


@COVERAGES
def test_too_few_rows(coverage):
    enough = needed(coverage)
    scores = (np.arange(enough) + 1.0)[:, None] / enough
    assert conformal_level(scores, coverage) == 1, "the largest"
    message = rf"conformalize needs at least {enough} rows for coverage {coverage}; got {enough - 1}$"
    with pytest.raises(ValueError, match=message):
        conformal_level(scores[:-1], coverage)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_coverage_outside_of_its_range(coverage):
    with pytest.raises(ValueError, match=r"coverage must be inside \(0, 1\)"):
        conformal_level(np.linspace(0, 1, 50)[:, None], coverage)


def test_a_tiny_coverage_takes_the_smallest_score():
    assert conformal_level(np.linspace(0.1, 1, 10)[:, None], 1e-12) == 0.1


# -- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("n", [9, 25, 40])
@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (1, 5)], ids=["calibrated", "overconfident", "timid"])
def test_coverage_holds_in_finite_samples(n, coverage, shape):
    """Over calibration sets and a new row, for scores of any distribution: c <= coverage <= c + 1/(n + 1)."""
    n_trials = 40_000
    rng = np.random.default_rng(0)
    scores = np.sort(rng.beta(*shape, size=(n, n_trials)), axis=0)
    covered = rng.beta(*shape, size=n_trials) <= conformal_level(scores, coverage)
    error = 4 * math.sqrt(coverage * (1 - coverage) / n_trials)
    assert coverage - error <= covered.mean() <= coverage + 1 / (n + 1) + error


@pytest.mark.parametrize("spread", [0.2, 1.0, 4.0, 9.0, 100.0])
def test_coverage_of_intervals_of_a_wrong_model(spread):
    """The model says N(0, 1), or a mixture around it; the truth is ``spread`` times wider and not centred."""
    n, n_new, n_trials, coverage = 19, 5, 400, 0.9
    y = 0.3 + spread * np.random.default_rng(0).normal(size=(n + n_new, n_trials))
    loc = np.array([-0.1, 0.1])[:, None, None] * np.ones((2, n + n_new, n_trials))  # a trial is an output
    model = Prediction(loc, np.ones((1, 1, 1)), np.full((1, 1, 1), 30.0))
    scores = calibration_scores(model.cdf(y)[:n])
    low, high = np.moveaxis(model.interval_at(conformal_level(scores, coverage))[n:], -1, 0)
    hits = ((low <= y[n:]) & (y[n:] <= high)).mean(0)
    error = 4 * hits.std() / math.sqrt(n_trials)
    assert coverage - error <= hits.mean()
    if spread < 9:  # beyond, scores round to one and intervals may be infinite
        assert hits.mean() <= coverage + 1 / (n + 1) + error


def test_coverage_of_new_rows_of_an_estimator():
    """Targets have moved since the fit; after calibration with n rows the coverage is Beta(k, n + 1 − k)."""
    X, y = linear_table(1_250)
    y[50:] += 3
    model = regressor(n_draws=20).fit(X[:50], y[:50])
    before = model.predict_interval(X[250:], 0.8)
    model.conformalize(X[50:250], y[50:250])
    after = model.predict_interval(X[250:], 0.8)
    inside = [((low <= y[250:]) & (y[250:] <= high)).mean() for low, high in (before.T, after.T)]
    rank = math.ceil(201 * 0.8)
    low, high = stats.beta(rank, 201 - rank).ppf([1e-3, 1 - 1e-3])
    error = 3 * math.sqrt(0.8 * 0.2 / 1000)
    assert inside[0] < low - error, "the test needs a model that is wrong"
    assert low - error < inside[1] < high + error


# -- the estimator ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    X, y = linear_table()
    return regressor().fit(X, y)


@pytest.fixture
def model(fitted):
    fitted.conformal_scores_ = None
    return fitted


def test_changes_intervals_alone(model):
    X, y = linear_table(40, seed=1)
    mean, std = model.predict(X, return_std=True)
    quantiles, interval = model.predict_quantiles(X, [0.05, 0.95]), model.predict_interval(X)
    assert model.conformalize(X, y + 1) is model
    np.testing.assert_array_equal(model.predict(X, return_std=True), (mean, std))
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.05, 0.95]), quantiles)
    assert (model.predict_interval(X) != interval).all()
    inside = (model.predict_interval(X)[:, 0] <= y + 1) & (y + 1 <= model.predict_interval(X)[:, 1])
    assert inside.mean() >= 0.9, "the calibration rows themselves"


def test_calling_it_again_replaces_the_calibration(model):
    X, y = linear_table(40, seed=1)
    wide = model.conformalize(X, y + 3).predict_interval(X)
    narrow = model.conformalize(X, y).predict_interval(X)
    assert (np.diff(narrow) < np.diff(wide)).all()
    assert model.conformal_scores_.shape == (40, 1)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_fitting_forgets_the_calibration(method):
    X, y = linear_table(40)
    model = regressor(max_iter=2).fit(X, y).conformalize(X, y)
    calibrated = model.predict_interval(X)
    getattr(model, method)(X, y)
    assert model.conformal_scores_ is None
    assert (model.predict_interval(X) == model.pred_dist(X).interval(0.9)).all()
    assert (model.predict_interval(X) != calibrated).any()


def test_each_output_is_calibrated_on_its_own():
    X, y = linear_table(200, n_outputs=2)
    model = regressor(max_iter=10).fit(X[:50], y[:50])
    y[:, 1] *= 5  # only the second output is now off
    model.conformalize(X[50:], y[50:])
    assert model.conformal_scores_.shape == (150, 2)
    interval = model.predict_interval(X[50:], 0.8)
    assert interval.shape == (150, 2, 2)
    inside = (interval[..., 0] <= y[50:]) & (y[50:] <= interval[..., 1])
    assert (abs(inside.mean(0) - 0.8) < 0.02).all()
    first = regressor(max_iter=10).fit(X[:50], y[:50] / [1, 5]).conformalize(X[50:], y[50:] / [1, 5])
    np.testing.assert_allclose(first.predict_interval(X, 0.8)[:, 0], model.predict_interval(X, 0.8)[:, 0], atol=1e-8)


def test_too_few_calibration_rows(model):
    X, y = linear_table(8)
    model.conformalize(X, y)
    with pytest.raises(ValueError, match=r"conformalize needs at least 9 rows for coverage 0\.9; got 8"):
        model.predict_interval(X)
    assert model.predict_interval(X, coverage=0.5).shape == (8, 2)


@pytest.mark.parametrize("coverage", [0, 1, 2.0])
def test_bad_coverage_after_calibration(model, coverage):
    X, y = linear_table(20)
    model.conformalize(X, y)
    with pytest.raises(ValueError, match=r"coverage must be inside \(0, 1\)"):
        model.predict_interval(X, coverage)


def test_frames_and_mistakes(model):
    X, y = linear_table(20)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = regressor(max_iter=2).fit(frame, y).conformalize(frame, pd.Series(y))  # and no warning of lost names
    plain = regressor(max_iter=2).fit(X, y).conformalize(X, y)
    np.testing.assert_array_equal(named.predict_interval(frame), plain.predict_interval(X))
    with pytest.raises(ValueError, match="feature names should match"):
        named.conformalize(frame[["b", "a", "c"]], y)
    with pytest.raises(ValueError, match="y must have 1 outputs, as in the first call"):
        model.conformalize(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.conformalize(X, y[:-1])
    with pytest.raises(NotFittedError):
        regressor().conformalize(X, y)
