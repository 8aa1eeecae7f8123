"""Raw data frames inside scikit-learn's own tools, and sparse rows in the plain estimators."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.preprocessing import OneHotEncoder

import vmg
from vmg import TableClassifier, TableRegressor
from vmg.estimators import TableModel
from vmg.fit.design import Standardiser

TINY = {"hidden_layer_sizes": (4,), "n_members": 2, "max_iter": 5}


def table(n=80, seed=0):
    rng = np.random.default_rng(seed)
    area, city = rng.uniform(40, 200, n), rng.choice(["Rome", "Oslo"], n)
    price = area + 20 * (city == "Rome") + 5 * rng.normal(size=n)
    X = pd.DataFrame({"area": np.where(np.arange(n) % 9 == 0, np.nan, area), "city": city})
    X.loc[::7, "city"] = None
    return X, price


def test_a_raw_frame_with_holes_and_categories():
    X, y = table()
    model = TableRegressor(**{**TINY, "max_iter": 60}, likelihood="student", random_state=0)
    assert cross_val_score(model, X, y, cv=2).min() > 0.3
    model.fit(X, y)
    mean, std = model.predict(X, return_std=True)
    interval = model.predict_interval(X, 0.8)
    assert (interval[:, 0] < mean).all() and (mean < interval[:, 1]).all() and (std > 0).all()
    quantiles = model.predict_quantiles(X, [0.1, 0.9])
    np.testing.assert_allclose(quantiles, interval, rtol=1e-6)
    assert {"familiarity", "flags"} <= set(model.predict_frame(X))
    pl = pytest.importorskip("polars")
    np.testing.assert_allclose(model.predict(pl.from_pandas(X)), mean)


@pytest.mark.parametrize("estimator", [TableRegressor, TableClassifier])
def test_arrays_of_numbers_and_frames_of_them_give_the_same_bits(estimator):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] if estimator is TableRegressor else X[:, 0] > 0
    array, frame = (estimator(**TINY, random_state=0).fit(rows, y) for rows in (X, pd.DataFrame(X, columns=["a", "b"])))
    new = pd.DataFrame(rng.normal(size=(9, 2)), columns=["a", "b"])
    np.testing.assert_array_equal(array.predict(new.to_numpy()), frame.predict(new))
    assert array.inputs_.plain and frame.inputs_.encoder.column_names == ["a", "b"]


def test_a_model_of_a_table_is_the_estimator_of_its_frame():
    frame, y = table(80)
    estimator = TableRegressor(**TINY, random_state=0).fit(frame, y)
    model = TableModel.fit(frame.assign(y=y), "y", options={**TINY, "random_state": 0})
    assert set(model.estimator.expert_weights_) == set(estimator.expert_weights_)
    np.testing.assert_array_equal(model.predict_frame(frame)["y"], estimator.predict(frame))
    np.testing.assert_array_equal(model.estimator.predict(frame[model.encoder.column_names]), estimator.predict(frame))


@pytest.mark.parametrize("estimator", [TableRegressor, TableClassifier])
@pytest.mark.parametrize("seen", [True, False], ids=["in training too", "never in training"])
def test_a_missing_number_is_drawn_from_training_rows(estimator, seen):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = 5 * X[:, 0] + 0.1 * rng.normal(size=120)
    target = y if estimator is TableRegressor else y > 0
    if seen:
        X[::6, 0] = np.nan
    model = estimator(**{**TINY, "max_iter": 60}, random_state=0).fit(X, target)
    whole, hole = np.array([[1.5, 0.0]]), np.array([[np.nan, 0.0]])
    if estimator is TableRegressor:
        low, high = model.predict_interval(np.concatenate([whole, hole])).T
        assert high[1] - low[1] > 1.5 * (high[0] - low[0]) and low[1] < -3 and high[1] > 3
    else:
        sure, unsure = model.predict_proba(np.concatenate([whole, hole])).max(1)
        assert sure > 0.9 and unsure < 0.8
    flags = model.predict_frame(np.concatenate([whole, hole]))["flags"].tolist()
    assert flags == ["", "missing:x0"]


def test_infinite_numbers_are_refused():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    model = TableRegressor(**TINY, random_state=0)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(np.where(X > 2, np.inf, X) if (X > 2).any() else np.full_like(X, np.inf), y)
    with pytest.raises(ValueError, match="infinity"):
        model.fit(X, y).predict([[np.inf, 0.0]])


def test_a_fit_in_known_units_keeps_no_rows_and_asks_for_complete_ones():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    units = [Standardiser.fit(X), Standardiser.fit(y[:, None])]
    model = TableRegressor(**TINY, random_state=0).fit(X, y, scaling=units)
    assert model.inputs_ is None and model.likelihood_ == "student"
    with pytest.raises(ValueError, match="NaN"):
        model.predict([[np.nan, 0.0]])
    with pytest.raises(ValueError, match="predict_frame needs training rows, which this fit did not keep"):
        model.predict_frame(X)


@pytest.mark.parametrize("rows", ["a frame", "numbers with holes", "numbers"])
def test_every_kind_of_rows_can_be_saved_updated_and_calibrated(rows, tmp_path):
    X, y = table()
    if rows != "a frame":
        X = X[["area"]].assign(other=np.arange(80.0)).to_numpy()
    if rows == "numbers":
        X = np.nan_to_num(X)
    model = TableRegressor(**TINY, likelihood="student", random_state=0).fit(X[:50], y[:50], np.arange(50) % 3)
    before = model.predict(X)
    model.partial_fit(X[50:60], y[50:60]).conformalize(X[60:], y[60:])
    assert not np.array_equal(model.predict(X), before) and len(model.conformal_scores_) == 20
    model.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))
    pd.testing.assert_frame_equal(loaded.predict_frame(X), model.predict_frame(X))
    np.testing.assert_array_equal(model.predict_frame(X)[["lower", "upper"]], model.predict_interval(X))
    assert loaded.sample(X, 3).shape == (3, 80)


def test_several_outputs_and_paired_targets_of_frames():
    X, y = table()
    model = TableRegressor(**TINY, random_state=0).fit(X, np.column_stack([y, -y]))
    assert model.predict(X).shape == (80, 2) and model.predict_interval(X).shape == (80, 2, 2)
    found = model.predict_frame(X)
    np.testing.assert_array_equal(found[["mean_0", "mean_1"]], model.predict(X))
    np.testing.assert_array_equal(found[["lower_1", "upper_1"]], model.predict_interval(X)[:, 1])
    bounds = np.column_stack([np.minimum(y, 150), np.where(y > 150, np.inf, y)])
    censored = TableRegressor(**TINY, likelihood="censored", random_state=0).fit(X, bounds)
    assert np.isfinite(censored.predict_interval(X)).all()
    successes = np.column_stack([(y > 120).astype(float), np.ones(80)])
    shares = TableRegressor(**TINY, likelihood="binomial", random_state=0).fit(X, successes)
    assert ((shares.predict(X) >= 0) & (shares.predict(X) <= 1)).all()


def test_what_is_said_about_columns_is_a_parameter_that_a_search_reaches():
    X, y = table()
    X = X.assign(zip=np.tile([10.0, 20.0, 30.0, 40.0], 20), sold="03/04/2024", price="1,5")
    X.loc[::2, "sold"] = "05/06/2024"
    model = TableRegressor(
        **TINY,
        likelihood="student",
        random_state=0,
        categorical=["zip"],
        ignore=["city"],
        date_formats={"sold": "%d/%m/%Y"},
        decimal=",",
    )
    search = GridSearchCV(model, {"categorical": [["zip"], []], "n_members": [1, 2]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"categorical", "n_members"}
    kinds = {column.name: column.kind for column in model.fit(X, y).inputs_.encoder.columns}
    assert kinds == {"area": "number", "zip": "category", "sold": "date"}
    with pytest.raises(ValueError, match="the table has no column 'nothing'"):
        clone(model).set_params(ignore=["nothing"]).fit(X, y)


@pytest.mark.parametrize("estimator", [TableRegressor, TableClassifier])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_too_few_rows_are_refused_in_one_line(estimator, n):
    X, y = np.random.default_rng(0).normal(size=(n, 2)), np.arange(n)
    with pytest.raises(
        ValueError, match=rf"^(a fit needs at least 5 rows; got n_samples={n}|y must hold at least 2 cl.*)$"
    ):
        estimator(**TINY).fit(X, y)
    with pytest.raises(ValueError, match="a fit needs at least 5 rows; got n_samples=4"):
        estimator(**TINY).fit(np.eye(9), np.arange(9) % 3, np.r_[np.ones(4), np.zeros(5)])


def test_weights_that_sum_to_one_give_a_warning():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0)
    model = TableRegressor(**TINY, likelihood="student", random_state=0)
    with pytest.warns(
        UserWarning, match="sample_weight sums to 1: a weight of 1 is one row, so 40 rows count as hardly one"
    ):
        model.fit(X, y, np.full(40, 1 / 40))


@pytest.mark.parametrize("estimator", [TableRegressor, TableClassifier])
def test_sparse_one_hot_rows_are_those_of_dense_ones(estimator):
    X, y = table()
    target = y if estimator is TableRegressor else (y > 120).astype(int)
    options = {**TINY, "random_state": 0} | ({"likelihood": "student"} if estimator is TableRegressor else {})
    rows = OneHotEncoder(handle_unknown="ignore").fit_transform(X[["city"]].fillna("none"))
    assert sparse.issparse(rows)
    found = estimator(**options).fit(rows, target)
    expected = estimator(**options).fit(rows.toarray(), target)
    np.testing.assert_array_equal(found.predict(rows), expected.predict(rows.toarray()))
    huge = sparse.csr_matrix((50_000, 10_000))
    with pytest.raises(ValueError, match="at most 134,217,728 cells, zeros included, as it is made dense; got 50,000"):
        estimator(**options).fit(huge, np.zeros(50_000))


def test_fitted_models_travel_as_parameters_and_the_bytes_of_a_file():
    X, y = table()
    model = TableRegressor(**TINY, random_state=0).fit(X, y)
    state = model.__getstate__()
    assert set(state) - set(model.get_params()) <= {"fitted", "_sklearn_version"} and isinstance(state["fitted"], bytes)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X, return_std=True), model.predict(X, return_std=True))
    np.testing.assert_array_equal(model.predict(X, point="median"), model.pred_dist(X).median)
    several = model.predict_interval(X, [0.5, 0.9])
    np.testing.assert_array_equal(several[..., 1], model.predict_interval(X, 0.9))
    assert model.sample_y(X, 3).shape == (80, 3)
    assert model.feature_importances_.shape == (X.shape[1],) and np.isclose(model.feature_importances_.sum(), 1)
