"""Promises that all four estimators share, besides scikit-learn's checks: seeds, weights, updates, interruptions."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError

from quick import class_table, classifier, ensemble_classifier, ensemble_regressor, linear_table, regressor
from vmg.training import TrainingError

MAKERS = {
    "VMGRegressor": regressor,
    "VMGClassifier": classifier,
    "TableRegressor": ensemble_regressor,
    "TableClassifier": ensemble_classifier,
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
numbers_only = pytest.mark.parametrize("make", [regressor, ensemble_regressor], ids=["VMG", "Table"])
classes_only = pytest.mark.parametrize("make", [classifier, ensemble_classifier], ids=["VMG", "Table"])


def rows_for(make, n=40):
    return class_table(n) if is_classifier(make()) else linear_table(n, n_features=2)


def numbers(model, X):
    """All numbers that a fitted model gives."""
    if is_classifier(model):
        return np.concatenate([model.pred_dist(X).samples.ravel(), model.predict_proba(X).ravel()])
    return np.concatenate([model.predict_interval(X).ravel(), model.predict(X).ravel(), model.sample(X, 2).ravel()])


def interrupt(progress):
    raise KeyboardInterrupt


@every
def test_the_same_seed_gives_the_same_bits(make):
    X, y = rows_for(make)
    model = make(max_iter=5).fit(X, y)
    torch.manual_seed(99)  # the global generators have no say
    np.random.seed(99)  # noqa: NPY002 - the generator that old code shares
    expected = torch.get_rng_state()
    np.testing.assert_array_equal(numbers(make(max_iter=5).fit(X, y), X), numbers(model, X))
    assert torch.equal(torch.get_rng_state(), expected), "and the caller's are left alone"
    np.testing.assert_array_equal(numbers(copy.deepcopy(model).fit(X, y), X), numbers(model, X))
    np.testing.assert_array_equal(numbers(pickle.loads(pickle.dumps(model)), X), numbers(model, X))
    assert not np.array_equal(numbers(make(max_iter=5, random_state=1).fit(X, y), X), numbers(model, X))
    free = [make(max_iter=2, random_state=None).fit(X, y) for _ in range(2)]
    assert not np.array_equal(numbers(free[0], X), numbers(free[1], X))
    given = [make(max_iter=2, random_state=np.random.RandomState(5)).fit(X, y) for _ in range(2)]
    np.testing.assert_array_equal(numbers(given[0], X), numbers(given[1], X))


@every
def test_a_row_of_no_weight_is_no_row(make):
    X, y = rows_for(make)
    weight = np.repeat([2.0, 0.0], [30, 10])
    other = np.where(weight > 0, y, "no" if is_classifier(make()) else 1e6).astype(y.dtype)
    with_them, without = make(max_iter=5).fit(X, other, weight), make(max_iter=5).fit(X[:30], y[:30], weight[:30])
    np.testing.assert_array_equal(numbers(with_them, X), numbers(without, X))
    with_them.partial_fit(X, other, sample_weight=weight)
    without.partial_fit(X[:30], y[:30], sample_weight=weight[:30])
    np.testing.assert_array_equal(numbers(with_them, X), numbers(without, X))


@every
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(20), "positive sum|at least one non-zero|all zero"),
        (-np.ones(20), "[Nn]egative"),
        (np.ones(19), "sample_weight"),
        (np.full(20, np.nan), "NaN"),
    ],
)
def test_mistakes_in_weights(make, weight, message):
    X, y = rows_for(make, 20)
    for model in (make(max_iter=1), make(max_iter=1).fit(X, y)):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y, sample_weight=weight)


@every
def test_updates_start_with_a_fit_and_leave_copies_alone(make):
    X, y = rows_for(make)
    model = make(max_iter=5).partial_fit(X, y)
    expected = numbers(make(max_iter=5).fit(X, y), X)
    np.testing.assert_array_equal(numbers(model, X), expected)
    first, second = (copy.deepcopy(model).partial_fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(numbers(first, X), numbers(second, X))
    assert first.input_scaling_ is not model.input_scaling_
    np.testing.assert_array_equal(first.input_scaling_.mean, model.input_scaling_.mean)
    assert not np.array_equal(numbers(first, X), expected)
    np.testing.assert_array_equal(numbers(model, X), expected)
    model.conformalize(X, y)
    for mistake, message in (((X[:, :1], y), "X has 1 features"), ((np.full_like(X, np.inf), y), "infinity")):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(*mistake)
        assert model.conformal_scores_ is not None
    assert model.partial_fit(X, y).conformal_scores_ is None


@pytest.mark.parametrize(("make", "method"), [*((make, "fit") for make in MAKERS.values()), (regressor, "partial_fit")])
def test_an_interrupted_fit_leaves_the_model_as_it_was(make, method):
    X, y = rows_for(make)
    model = make(max_iter=4)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, method)(X, y, callbacks=[interrupt])
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.fit(X, y).conformalize(X, y)
    expected, attributes = numbers(model, X), dict(vars(model))
    with pytest.raises(KeyboardInterrupt):
        getattr(model, method)(X[:, : 1 if method == "fit" else 2], y[::-1], callbacks=[interrupt])
    np.testing.assert_array_equal(numbers(model, X), expected)
    assert vars(model) == attributes


@every
def test_networks_that_training_left_without_numbers_are_no_fit(make, monkeypatch):
    X, y = rows_for(make, 30)
    truly = make is ensemble_classifier
    model = make(max_iter=5, learning_rate_init=1e6 if truly else 0.01)
    if not truly:
        nowhere = SimpleNamespace(mean=np.array([np.nan]))
        monkeypatch.setattr(model, "_predict_features", lambda rows: nowhere)
    with pytest.raises(TrainingError, match=r"try a smaller learning_rate_init than (1e|0.01)"):
        model.fit(X, y)
    assert not hasattr(model, "seed_")


@every
def test_a_row_is_predicted_alike_in_any_company(make):
    X, y = rows_for(make)
    model = make(max_iter=10).fit(X, y)
    ask = model.predict_proba if is_classifier(model) else model.predict_interval
    for rows in ([3], [3, 7], np.arange(20)[::-1]):
        np.testing.assert_allclose(ask(X[rows]), ask(X)[rows], rtol=1e-4, atol=1e-6)


@numbers_only
def test_one_column_of_targets_stays_a_column(make):
    X, y = linear_table(30)
    column, plain = make(max_iter=3).fit(X, y[:, None]), make(max_iter=3).fit(X, y)
    assert column.predict(X).shape == (30, 1) and column.predict_interval(X).shape == (30, 1, 2)
    np.testing.assert_array_equal(column.predict(X)[:, 0], plain.predict(X))
    with pytest.raises(ValueError, match="must have 1 outputs"):
        plain.partial_fit(X, np.stack([y, y], 1))


@numbers_only
@pytest.mark.parametrize("outputs", [(), (2,)], ids=str)
def test_shapes_of_one_output_and_of_several(make, outputs):
    X, _ = linear_table(7, seed=1)
    model = make(max_iter=3).fit(*linear_table(n_outputs=2 if outputs else None))
    assert model.predict(X).shape == (7, *outputs)
    assert model.predict(X, return_std=True)[1].shape == (7, *outputs)
    assert model.predict(X, return_cov=True)[1].shape == (7, 7, *outputs)
    assert model.predict_interval(X).shape == (7, *outputs, 2)
    assert model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (7, *outputs, 3)
    assert model.sample(X, 4).shape == (4, 7, *outputs)
    assert model.pred_dist(X).log_prob(model.predict(X)).shape == (7,)


@numbers_only
def test_the_ways_to_predict_agree(make):
    X, y = linear_table(30)
    X = pd.DataFrame(X, columns=["a", "b", "c"])
    model = make(max_iter=10).fit(X, y)
    p = model.pred_dist(X)
    np.testing.assert_array_equal(model.predict(X, return_std=True), (p.mean, p.std))
    mean, covariance = model.predict(X, return_cov=True)
    np.testing.assert_array_equal(mean, p.mean)
    np.testing.assert_array_equal(covariance, p.row_covariance())
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), p.std, rtol=1e-6)
    np.testing.assert_array_equal(model.predict_interval(X, 0.6), p.interval(0.6))
    np.testing.assert_array_equal(model.predict_quantiles(X, [0.1, 0.9]), p.quantile([0.1, 0.9]))
    with pytest.raises(ValueError, match="at most one of return_std, return_cov and coverage"):
        model.predict(X, return_std=True, return_cov=True)


@numbers_only
def test_each_output_is_calibrated_on_its_own(make):
    X, y = linear_table(200, n_outputs=2)
    model = make(max_iter=10, n_members=2).fit(X[:50], y[:50])
    y[:, 1] *= 5  # only the second output is now off
    interval = model.conformalize(X[50:], y[50:]).predict_interval(X[50:], 0.8)
    assert model.conformal_scores_.shape == (150, 2) and interval.shape == (150, 2, 2)
    inside = (interval[..., 0] <= y[50:]) & (y[50:] <= interval[..., 1])
    assert (abs(inside.mean(0) - 0.8) < 0.02).all()
    with pytest.raises(ValueError, match="conformalize needs at least 999 rows"):
        model.predict_interval(X, 0.999)


# -- classes ----------------------------------------------------------------------------------------------------------


@classes_only
@pytest.mark.parametrize(
    "classes", [(3, 1, 2), (0.0, 1.0, 2.0), ("b", "a", "c", "d"), (True, False), (-5, 0, 10**12)], ids=str
)
def test_classes_keep_their_type_and_have_no_order(make, classes):
    X, y = class_table(40, classes=classes)
    model = make(max_iter=10).fit(X, y)
    assert list(model.classes_) == sorted(classes) and model.predict(X).dtype == np.asarray(classes).dtype
    coded = make(max_iter=10).fit(X, np.searchsorted(model.classes_, y) * 10)
    np.testing.assert_array_equal(coded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), model.classes_[model.predict_proba(X).argmax(1)])


@classes_only
def test_classes_can_be_announced(make):
    X, y = class_table(30)
    known = y != "yes"
    model = make(max_iter=10).partial_fit(X[known], y[known], classes=["yes", "no", "perhaps"])
    assert list(model.classes_) == ["no", "perhaps", "yes"] and model.predict_proba(X).shape == (30, 3)
    before = model.predict_proba(X[~known])[:, 2].mean()
    model.partial_fit(X, y, classes=model.classes_)
    assert model.predict_proba(X[~known])[:, 2].mean() > before
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X, y, classes=["no", "yes"])
    with pytest.raises(ValueError, match=r"y must be among the classes .*got \['never'\]"):
        model.partial_fit(X, np.full(30, "never"))
    assert list(model.fit(X[known], y[known]).classes_) == ["no", "perhaps"], "announced for one model alone"
    refused = make(max_iter=1)
    with pytest.raises(ValueError, match=r"y must be among the classes .*got \['yes'\]"):
        refused.partial_fit(X, y, classes=["no", "perhaps"])
    assert list(refused.fit(X, y).classes_) == ["no", "perhaps", "yes"]


@classes_only
@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["no"] * 30, "at least 2 classes; got one class"),
        (np.linspace(0, 1, 30), "[Uu]nknown label type"),
        (np.full(30, np.nan), "NaN"),
        (["no"] * 29, "inconsistent numbers of samples"),
        (np.zeros((30, 2)), "y should be a 1d array"),
    ],
)
def test_mistakes_in_the_classes(make, y, message):
    with pytest.raises(ValueError, match=message):
        make(max_iter=1).fit(class_table(30)[0], y)
