"""``TableClassifier``: what it promises besides scikit-learn's checks."""

import copy
import dataclasses

import numpy as np
import pytest

import vmg
from quick import class_table, ensemble_classifier


@pytest.fixture(scope="module")
def fitted():
    X, y = class_table(90)
    return ensemble_classifier(max_iter=60).fit(X, y), X, y


def numbers(model, X):
    prediction = model.pred_dist(X)
    return np.concatenate([prediction.samples.ravel(), model.predict_proba(X).ravel()])


def test_it_learns_three_blobs(fitted):
    model, X, y = fitted
    X_new, y_new = class_table(90, seed=1)
    assert model.score(X, y) > 0.95 and model.score(X_new, y_new) > 0.9
    probabilities = model.predict_proba(X_new)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    chosen = probabilities[np.arange(90), np.searchsorted(model.classes_, y_new)]
    assert np.log(chosen).mean() > -0.3
    assert model.feature_relevance_.max() == 1


def test_doubt_is_largest_between_classes_and_far_away(fitted):
    model, X, _ = fitted
    prediction = model.pred_dist(np.vstack([X, [[0.0, 0.0]]]))
    assert prediction.predictive_entropy[-1] > 2 * np.median(prediction.predictive_entropy[:-1])
    assert (prediction.mutual_information <= prediction.predictive_entropy + 1e-12).all()


def test_draws_of_probabilities_are_those_of_the_posterior(fitted):
    model, X, _ = fitted
    draws = model.sample_proba(X, 4000, random_state=1)
    assert draws.shape == (90, 4000, 3)
    np.testing.assert_allclose(draws.sum(-1), 1, rtol=1e-5)
    error = draws.std(1) / np.sqrt(4000)
    assert (np.abs(draws.mean(1) - model.predict_proba(X)) < 5 * error + 1e-6).all()
    assert np.array_equal(draws[:, :5], model.sample_proba(X, 5, random_state=1))


@pytest.mark.parametrize("n_draws", [1, 2, 7])
def test_draws_of_each_member(fitted, n_draws):
    model, X, _ = fitted
    model = copy.deepcopy(model).set_params(n_draws=n_draws)
    assert model.pred_dist(X).samples.shape == (4 * n_draws, 90, 3)


def test_a_weight_counts_as_so_many_rows_in_the_output_layer(fitted):
    model, X, y = fitted
    weight = np.random.default_rng(0).integers(1, 4, len(X))
    weighted = copy.deepcopy(model).partial_fit(X, y, sample_weight=weight)
    repeated = copy.deepcopy(model).partial_fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-4, atol=1e-6)


def test_an_update_teaches_and_leaves_the_old_model_alone(fitted):
    model, X, _ = fitted
    before = numbers(model, X)
    corner, label = np.full((20, 2), 1.5), np.full(20, "perhaps")
    updated = copy.deepcopy(model).partial_fit(corner, label)
    at = [list(model.classes_).index("perhaps")]
    assert updated.predict_proba(corner[:1])[0, at] > model.predict_proba(corner[:1])[0, at]
    assert np.array_equal(numbers(model, X), before)


@pytest.mark.parametrize("n", [5, 9, 10, 12])
def test_few_rows(n):
    X, y = class_table(n, classes=("a", "b"))
    assert np.isfinite(numbers(ensemble_classifier(max_iter=10).fit(X, y), X)).all()


# -- weights of classes -----------------------------------------------------------------------------------------------


def rare_class(n=300, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.1).astype(int)
    return rng.normal(size=(n, 2)) + y[:, None], y


def test_balanced_classes_count_alike():
    X, y = rare_class()
    plain = ensemble_classifier().fit(X, y)
    balanced = ensemble_classifier(class_weight="balanced").fit(X, y)
    assert balanced.predict_proba(X)[:, 1].mean() > 2 * plain.predict_proba(X)[:, 1].mean()
    asked = ensemble_classifier(class_weight={0: balanced.class_weights_[0], 1: balanced.class_weights_[1]}).fit(X, y)
    np.testing.assert_array_equal(asked.predict_proba(X), balanced.predict_proba(X))
    np.testing.assert_allclose(balanced.class_weights_ * np.bincount(y), len(y) / 2)


def test_class_weights_are_those_of_rows(tmp_path):
    X, y = rare_class(150)
    weighted = ensemble_classifier(class_weight={0: 1.0, 1: 4.0}).fit(X, y)
    rows = ensemble_classifier().fit(X, y, sample_weight=np.where(y == 1, 4.0, 1.0))
    np.testing.assert_array_equal(weighted.predict_proba(X), rows.predict_proba(X))
    weighted.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    assert loaded.class_weight == {0: 1.0, 1: 4.0}
    np.testing.assert_array_equal(
        loaded.partial_fit(X, y).predict_proba(X), weighted.partial_fit(X, y).predict_proba(X)
    )
    with pytest.raises(ValueError, match="class_weight must have positive numbers"):
        ensemble_classifier(class_weight={0: 1.0, 1: -4.0}).fit(X, y)


# -- boosted trees ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thresholds():
    """Classes that two thresholds decide, a tenth of them at random, beside columns that say nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6))
    y = np.where(rng.random(600) < 0.1, rng.integers(3, size=600), (X[:, 0] > 0.3).astype(int) + (X[:, 1] > 0.5))
    weight = rng.uniform(0.5, 1.5, 400)
    return ensemble_classifier(class_weight="balanced").fit(X[:400], y[:400], sample_weight=weight), X[400:], y[400:]


def test_trees_help_where_thresholds_decide(thresholds, tmp_path):
    model, X, y = thresholds
    assert model.expert_weights_["boosted_trees"] > 0
    alone = ensemble_classifier(experts="networks").fit(*class_table(90))
    assert "boosted_trees" not in alone.expert_weights_
    networks = copy.deepcopy(model)
    alone = dataclasses.replace(model.ensemble_.calibration, sharpness=1.0)
    networks.ensemble_ = dataclasses.replace(model.ensemble_, trees=None, calibration=alone)

    def log_loss(one):
        return -np.log(one.predict_proba(X)[np.arange(len(y)), y]).mean()

    assert log_loss(model) < 0.9 * log_loss(networks)
    model.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    np.testing.assert_array_equal(numbers(loaded, X), numbers(model, X))


def test_networks_learn_from_later_rows_beside_trees(thresholds):
    model, X, y = thresholds
    updated = copy.deepcopy(model).partial_fit(X, y)
    assert updated.expert_weights_ == model.expert_weights_
    chosen = np.arange(len(y)), y
    assert np.log(updated.predict_proba(X)[chosen]).mean() > np.log(model.predict_proba(X)[chosen]).mean()
    sets = updated.conformalize(X[:100], y[:100]).predict_set(X[100:], coverage=0.9)
    assert 0.8 < sets[np.arange(100), y[100:]].mean() <= 1
    near, far = model.pred_dist(X), model.pred_dist(100 * X)
    assert far.probabilities.max(-1).mean() < near.probabilities.max(-1).mean()  # trees alone are as sure far away
    assert far.mutual_information.mean() > near.mutual_information.mean()


def test_trees_that_do_not_help_are_left_out():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    model = ensemble_classifier().fit(X, (X.sum(1) + 0.5 * rng.normal(size=200) > 0).astype(int))
    assert model.expert_weights_ == {"networks": model.ensemble_.calibration.sharpness}
