"""``TableRegressor``: what it promises besides scikit-learn's checks."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from quick import ensemble_regressor, everything, linear_table
from vmg.fit.gaussian import squash
from vmg.math.evidence import row_statistics
from vmg.prediction.student import StudentPrediction


@pytest.fixture(scope="module")
def fitted():
    X, y = linear_table()
    return ensemble_regressor(max_iter=60).fit(X, y), X, y


def statistics(model):
    """What output layers know of the rows, member by member."""
    return [part.numpy().copy() for part in model.ensemble_.members.head.statistics]


def test_it_learns_a_linear_table(fitted):
    model, X, y = fitted
    assert model.score(X, y) > 0.9
    X_new, y_new = linear_table(seed=1)
    assert model.score(X_new, y_new) > 0.85
    covered = model.predict_interval(X_new, 0.9)
    assert 0.75 <= np.mean((covered[:, 0] <= y_new) & (y_new <= covered[:, 1])) <= 1
    assert model.feature_relevance_.shape == (3,) and model.feature_relevance_.max() == 1


def test_predictions_are_student_t_in_the_targets_units(fitted):
    model, X, y = fitted
    prediction = model.pred_dist(X)
    assert isinstance(prediction, StudentPrediction)
    mean, std = model.predict(X, return_std=True)
    assert np.array_equal(mean, prediction.mean) and np.array_equal(std, prediction.std)
    mean, covariance = model.predict(X, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    larger = ensemble_regressor(max_iter=60).fit(X, 1000 * y + 5)
    np.testing.assert_allclose(larger.predict(X), 1000 * model.predict(X) + 5, rtol=1e-3, atol=1)


def test_ignorance_grows_away_from_the_rows(fitted):
    model, X, _ = fitted
    near, far = model.pred_dist(X), model.pred_dist(20 + X)
    assert far.epistemic_std.min() > 2 * near.epistemic_std.max()


def test_functions_at_some_rows_are_those_at_all_rows(fitted):
    model, X, _ = fitted
    whole = model.pred_dist(X).sample_functions(5, 0)
    some = model.pred_dist(X[10:20]).sample_functions(5, 0)
    np.testing.assert_allclose(some, whole[:, 10:20], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"noise": "constant"}, {"n_members": 1}, {"hidden_layer_sizes": (5, 4)}])
def test_several_outputs(options):
    X, Y = linear_table(n_outputs=2)
    model = ensemble_regressor(**{"max_iter": 60, **options}).fit(X, Y)
    prediction = model.pred_dist(X)
    np.testing.assert_allclose(
        prediction.covariance()[:, [0, 1], [0, 1]], prediction.std**2, rtol=1e-4 if "n_members" not in options else 1e-3
    )
    for c in range(2):
        assert np.corrcoef(model.predict(X)[:, c], Y[:, c])[0, 1] > 0.9


def test_constant_targets_and_inputs():
    X, _ = linear_table(20)
    X[:, 0] = 4.0
    model = ensemble_regressor(max_iter=10).fit(X, np.full(20, 3.0))
    np.testing.assert_allclose(model.predict(X), 3.0, atol=1e-6)
    assert np.isfinite(model.predict(X, return_std=True)[1]).all()


# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_weight_counts_as_so_many_rows_in_the_output_layer(fitted):
    model, X, y = fitted
    weight = np.random.default_rng(0).integers(1, 4, len(X))
    weighted, repeated = copy.deepcopy(model), copy.deepcopy(model)
    weighted.partial_fit(X, y, sample_weight=weight)
    repeated.partial_fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    for a, b in zip(statistics(weighted), statistics(repeated), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-5, atol=1e-6)


# -- updates ----------------------------------------------------------------------------------------------------------


def test_rows_in_two_parts_are_all_rows_for_the_output_layer():
    X, y = linear_table()
    model = ensemble_regressor().fit(X[:30], y[:30])
    whole = copy.deepcopy(model)
    model.partial_fit(X[30:45], y[30:45]).partial_fit(X[45:], y[45:])
    inputs, targets = squash(whole.input_scaling_.transform(X)), whole.target_scaling_.transform(y[:, None])
    with torch.no_grad():
        phi = whole.ensemble_.members.features(torch.as_tensor(inputs))
    expected = row_statistics(phi, torch.as_tensor(targets).expand(len(phi), -1, -1))
    for a, b in zip(statistics(model), expected, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-8, atol=1e-8)
    whole.ensemble_.members.head.forget()
    whole.ensemble_.members.update(inputs, targets, None)
    whole.ensemble_ = dataclasses.replace(whole.ensemble_)  # without what it has remembered
    np.testing.assert_allclose(model.predict(X), whole.predict(X), rtol=1e-8, atol=1e-8)


def test_an_update_teaches_and_leaves_the_old_model_alone(fitted):
    model, X, y = fitted
    before = statistics(model)
    updated = copy.deepcopy(model).partial_fit(X, y + 1.0)
    assert np.mean(updated.predict(X) - model.predict(X)) > 0.2
    for a, b in zip(before, statistics(model), strict=True):
        assert np.array_equal(a, b)


# -- interruptions ----------------------------------------------------------------------------------------------------


def test_a_callback_can_end_training():
    X, y = linear_table(40)
    model = ensemble_regressor(max_iter=200)
    model.fit(X, y, callbacks=[lambda progress: progress.step >= 20])
    assert model.n_steps_ <= 30
    assert model.history_.stopped.startswith("stopped by a callback at step ")
    assert np.isfinite(everything(model, X)).all()


def test_a_short_training_has_a_record():
    X, y = linear_table(40)
    model = ensemble_regressor(max_iter=1).fit(X, y)
    assert model.n_steps_ == len(model.history_.records[-1:]) + 1 == 2


# -- intervals --------------------------------------------------------------------------------------------------------


def test_conformal_intervals_change_the_interval_alone(fitted):
    model, X, y = fitted
    plain = copy.deepcopy(model)
    model = copy.deepcopy(model).conformalize(*linear_table(99, seed=2))
    assert np.array_equal(model.predict(X), plain.predict(X))
    assert not np.array_equal(model.predict_interval(X), plain.predict_interval(X))
    with pytest.raises(ValueError, match="conformalize needs at least 999 rows"):
        model.predict_interval(X, 0.999)
    model.partial_fit(X, y)
    assert model.conformal_scores_ is None


def test_intervals_come_through_a_pipeline(fitted):
    model, X, _ = fitted
    pipeline = make_pipeline(FunctionTransformer(), model)
    point, interval = pipeline.predict(X, coverage=0.8)
    np.testing.assert_array_equal(point, model.predict(X))
    np.testing.assert_array_equal(interval, model.predict_interval(X, 0.8))
    assert pipeline.predict(X, coverage=[0.5, 0.9])[1].shape == (len(X), 2, 2)
    with pytest.raises(ValueError, match="at most one of return_std, return_cov and coverage"):
        model.predict(X, coverage=0.8, return_std=True)
