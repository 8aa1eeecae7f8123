import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

from quick import linear_table, regressor


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
