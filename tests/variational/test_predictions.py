"""The ways to ask a fitted regressor, and what it takes for rows."""

import copy
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import stats
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from quick import assert_same_bits, everything, linear_table, regressor

# -- predictions ------------------------------------------------------------------------------------------------------


def test_predicting_changes_nothing():
    X, _ = linear_table(7, seed=1)
    fitted = regressor(max_iter=3).fit(*linear_table())
    before, numbers = copy.deepcopy(fitted.network_.state_dict()), everything(fitted, X)
    np.testing.assert_array_equal(everything(fitted, X), numbers)
    assert all(torch.equal(value, before[name]) for name, value in fitted.network_.state_dict().items())


# -- scikit-learn's tools ---------------------------------------------------------------------------------------------


def test_pipeline_and_grid_search():
    X, y = linear_table(30)
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), regressor(max_iter=5))
    grid = {
        "vmgregressor__hidden_layer_sizes": [(2,), (4, 2)],
        "vmgregressor__noise": ["constant", "input"],
    }
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    low, high = search.best_estimator_[-1].predict_interval(search.best_estimator_[0].transform(X)).T
    assert (low < high).all()
    assert search.predict(X).shape == (30,)


# -- frames and types -------------------------------------------------------------------------------------------------


def frames(X):
    columns = {name: X[:, k] for k, name in enumerate("abc")}
    return {"pandas": pd.DataFrame(columns), "polars": pl.DataFrame(columns)}


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames(kind):
    X, y = linear_table(20)
    frame = frames(X)[kind]
    target = {"pandas": pd.Series, "polars": pl.Series}[kind](y)
    model = regressor(max_iter=3).fit(frame, target)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(model.predict(frame), regressor(max_iter=3).fit(X, y).predict(X))
    with pytest.raises(ValueError, match=r"(?s)feature names should match.*must be in the same order"):
        model.predict(frame[["b", "a", "c"]])
    renamed = frame.rename(columns={"a": "z"}) if kind == "pandas" else frame.rename({"a": "z"})
    with pytest.raises(ValueError, match=r"(?s)feature names should match.*unseen at fit time.*z"):
        model.predict(renamed)
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(renamed, target)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


def test_lists_and_types_give_the_same_numbers():
    X, y = (values.astype(np.float32) for values in linear_table(20))
    model = regressor(max_iter=3).fit(X.astype(np.float64), y.astype(np.float64))
    for X_same, y_same in ((X, y), (X.tolist(), y.tolist()), (np.asfortranarray(X), y.astype(object))):
        other = regressor(max_iter=3).fit(X_same, y_same)
        assert_same_bits(model, other, X)
        np.testing.assert_array_equal(model.predict(X_same), model.predict(X))
        assert other.predict(X_same).dtype == np.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_layer_sizes": -1}, "'hidden_layer_sizes'"),
        ({"hidden_layer_sizes": (0,)}, "must be at least 1; got 0"),
        ({"activation": "swish"}, "'activation'"),
        ({"n_pseudo": (1, 2, 3)}, "one for each of 2 layers"),
        ({"max_noise": 0.0}, "'max_noise'"),
        ({"zero_mean": True, "n_pseudo": 0}, "zero_mean needs n_pseudo"),
        ({"noise": "none"}, "'noise'"),
        ({"noise_prior": (1.0,)}, r"noise_prior must be \(concentration, rate\)"),
        ({"noise_prior": (1.0, -1.0)}, "must be positive"),
        ({"n_members": 0}, "'n_members'"),
        ({"averaging": 1.0}, "'averaging'"),
        ({"max_iter": 0}, "'max_iter'"),
        ({"learning_rate_init": 0}, "'learning_rate_init'"),
    ],
    ids=str,
)
def test_mistakes_in_parameters(options, message):
    X, y = linear_table(10)
    with pytest.raises(ValueError, match=message):
        regressor(**{"max_iter": 1, **options}).fit(X, y)


# -- conformal intervals ----------------------------------------------------------------------------------------------


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
