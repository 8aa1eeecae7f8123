"""Means in MAPIE, and weights through scikit-learn's metadata routing, on frames with words."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import cross_validate

from vmg import TableRegressor

TINY = {"hidden_layer_sizes": (4,), "n_members": 2, "max_iter": 20, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=120), "c": rng.choice(["x", "y", "z"], 120)})
    return X, (X["a"] + (X["c"] == "x")).to_numpy()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # MAPIE tries a row of zeros
def test_mapie_calibrates_a_fitted_model(rows):
    mapie = pytest.importorskip("mapie.regression")
    (X, y), model = rows, TableRegressor(**TINY).fit(*rows)
    split = mapie.SplitConformalRegressor(model, confidence_level=0.9, prefit=True).conformalize(X, y)
    point, interval = split.predict_interval(X)
    np.testing.assert_allclose(point, model.predict(X), atol=0.5)
    assert ((interval[:, 0, 0] <= y) & (y <= interval[:, 1, 0])).mean() >= 0.9


def test_weights_reach_the_fit_through_metadata_routing(rows):
    X, y = rows
    weight = np.where(np.arange(120) % 2, 1.0, 3.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = TableRegressor(**TINY).set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
        found = cross_validate(model, X, y, cv=2, params={"sample_weight": weight}, return_estimator=True)
    direct = TableRegressor(**TINY).fit(X[60:], y[60:], weight[60:])
    np.testing.assert_allclose(found["estimator"][0].predict(X), direct.predict(X))
