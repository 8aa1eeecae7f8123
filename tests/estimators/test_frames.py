"""Raw data frames inside scikit-learn's own tools, and sparse rows in the plain estimators."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from vmg import FrameClassifier, FrameRegressor, TableClassifier, TableRegressor

TINY = {"hidden_layer_sizes": (4,), "n_members": 2, "max_iter": 5}
ELSEWHERE = "SCIPY_ARRAY_API is not set"  # a check that needs a process of its own
CHECKED = [  # those about frames, names, holes and shapes; the others are not run, for time
    *("check_dataframe_column_names_consistency", "check_n_features_in", "check_fit2d_1sample", "check_fit1d"),
    *("check_estimators_pickle", "check_dont_overwrite_attributes", "check_requires_y_none", "check_fit2d_1feature"),
    *("check_estimators_dtypes", "check_dict_unchanged", "check_no_attributes_set_in_init"),
    *("check_fit_score_takes_y", "check_estimators_unfitted", "check_methods_subset_invariance"),
]


@parametrize_with_checks(
    [
        FrameRegressor(options={**TINY, "likelihood": "student"}, random_state=0),
        FrameClassifier(options=TINY, random_state=0),
    ]
)
def test_scikit_learn_check(estimator, check):
    name = getattr(check, "func", check).__name__
    if name not in CHECKED:
        pytest.skip("not among the checks that are run on table estimators")
    check(estimator)


def table(n=80, seed=0):
    rng = np.random.default_rng(seed)
    area, city = rng.uniform(40, 200, n), rng.choice(["Rome", "Oslo"], n)
    price = area + 20 * (city == "Rome") + 5 * rng.normal(size=n)
    X = pd.DataFrame({"area": np.where(np.arange(n) % 9 == 0, np.nan, area), "city": city})
    X.loc[::7, "city"] = None
    return X, price


def test_a_raw_frame_with_holes_and_categories():
    X, y = table()
    model = FrameRegressor(options={**TINY, "max_iter": 60, "likelihood": "student"}, random_state=0)
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


def test_classes_of_any_kind_keep_their_names():
    X, y = table()
    for names in (["cheap", "dear"], [False, True], [10, 20]):
        labels = np.array(names)[(y > 120).astype(int)]
        model = FrameClassifier(options=TINY, random_state=0, ignore=["city"]).fit(X, labels)
        assert model.classes_.tolist() == names and set(model.predict(X)) <= set(names)
        np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
        assert model.model_.choices.ignored == ["city"]


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


def test_a_transformed_target_with_return_std_is_refused_with_the_reason():
    X, y = np.random.default_rng(0).normal(size=(40, 2)), np.arange(1.0, 41.0)
    inner = TableRegressor(**TINY, random_state=0, likelihood="student")
    model = TransformedTargetRegressor(inner, func=np.log, inverse_func=np.exp).fit(X, y)
    assert model.predict(X).shape == (40,)
    with pytest.raises(TypeError, match=r"return_std=True gives a mean and a standard deviation, which Transformed"):
        model.predict(X, return_std=True)
    mean, std = inner.fit(X, y).predict(X, return_std=True)
    assert mean.shape == std.shape == (40,)
