"""What VMGRegressor learns: from all kinds of tables, by one network and by several, always the same bits."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score

from quick import LINEAR, assert_same_bits, class_table, classifier, everything, functions, linear_table, regressor

# -- learning ---------------------------------------------------------------------------------------------------------


def test_learns_a_linear_table():
    X, y = linear_table()
    X_new, y_new = linear_table(200, seed=1)
    model = regressor(**LINEAR, max_iter=300).fit(X, y)
    best = LinearRegression().fit(X, y)
    assert model.score(X_new, y_new) > best.score(X_new, y_new) - 0.02
    p = model.pred_dist(X_new)
    assert p.aleatoric_std.mean() == pytest.approx(0.2, rel=0.2)
    assert (p.epistemic_std < p.aleatoric_std).mean() > 0.95
    inside = (model.predict_interval(X_new)[:, 0] < y_new) & (y_new < model.predict_interval(X_new)[:, 1])
    assert 0.82 < inside.mean() < 0.97


def test_ignorance_grows_away_from_the_data():
    X, y = linear_table()
    model = regressor(**LINEAR, max_iter=100).fit(X, y)
    near, far = model.pred_dist(X), model.pred_dist(20 * X)
    assert far.epistemic_std.mean() > 5 * near.epistemic_std.mean()
    np.testing.assert_allclose(far.aleatoric_std, near.aleatoric_std)


def test_the_first_step_does_not_stun_the_optimiser():
    """The noise starts at the target's own scale, not at its prior's mean, a thousandth of it."""
    X, y = linear_table()
    first = regressor(max_iter=1).fit(X, y).history_.last
    assert first.expected_log_likelihood > -5


def test_feature_relevance():
    X, y = linear_table()  # weights 1, 0, 0
    relevance = regressor(**LINEAR, max_iter=100).fit(X, y).feature_relevance_
    assert relevance.shape == (3,)
    assert relevance.max() == relevance[0] == 1
    assert relevance[2] < 0.2


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_layer_sizes": 4},
        {"hidden_layer_sizes": [4, 3], "n_pseudo": [2, 1, 0]},
        {"hidden_layer_sizes": np.array([4]), "n_pseudo": np.int64(3)},
        {"hidden_layer_sizes": ()},
        {"n_pseudo": 0},
        {"n_pseudo": 20},
        {"zero_mean": True},
        {"row_covariance": "rank_one", "column_covariance": "dense"},
        {"row_covariance": "dense", "column_covariance": "rank_one"},
        {"pseudo_noise": "factored", "max_noise": 1.0},
        {"prior": "isotropic"},
        {"noise": "input"},
        {"activation": "tanh"},
        {"activation": torch.sin},
        {"averaging": None},
        {"batch_size": 7},
        {"noise_prior": [2, 0.1]},
        {"noise": "input", "n_members": 3, "early_stopping": True},
    ],
    ids=lambda options: ",".join(options),
)
def test_every_option_fits_and_predicts(options):
    X, y = linear_table(20)
    model = regressor(**{"max_iter": 3, **options}).fit(X, y)
    low, high = model.predict_interval(X).T
    assert (low < high).all()
    assert np.isfinite(everything(model, X)).all()
    assert model.n_iter_ >= 1


def test_an_int_is_one_hidden_layer():
    X, y = linear_table(20)
    assert_same_bits(*(regressor(max_iter=3, hidden_layer_sizes=h).fit(X, y) for h in (4, (4,))), X)


def test_iterations_are_passes_over_the_data():
    X, y = linear_table(60)
    assert regressor(max_iter=4, batch_size=20).fit(X, y).history_.last.step == 12
    model = regressor(max_iter=4, batch_size=25).fit(X, y)
    assert (model.history_.last.step, model.n_iter_) == (8, 4)


def test_verbose(capsys):
    X, y = linear_table(20)
    regressor(max_iter=2).fit(X, y)
    assert capsys.readouterr().out == ""
    regressor(max_iter=2, verbose=True).fit(X, y)
    assert "objective" in capsys.readouterr().out


# -- several outputs --------------------------------------------------------------------------------------------------


def test_each_output_is_learned_in_its_own_units():
    X, y = linear_table(n_outputs=2)
    y = y * [1.0, 1e4] + [0.0, -1e5]
    X_new, y_new = linear_table(200, n_outputs=2, seed=1)
    y_new = y_new * [1.0, 1e4] + [0.0, -1e5]
    model = regressor(**LINEAR, max_iter=300).fit(X, y)
    assert (r2_score(y_new, model.predict(X_new), multioutput="raw_values") > 0.8).all()
    np.testing.assert_allclose(model.pred_dist(X_new).aleatoric_std.mean(0), [0.2, 2e3], rtol=0.3)


# -- ensembles --------------------------------------------------------------------------------------------------------


def test_an_ensemble_is_the_pooled_mixture_of_its_members():
    X, y = linear_table(30)
    model = regressor(n_members=3, max_iter=5).fit(X, y)
    p = model.pred_dist(X)
    assert model.network_.layers[0].batch_shape == (3,)
    assert p.loc.shape == (3 * 50, 30, 1)
    loc = functions(model, X).numpy()  # [S, E, N, C], in standard units
    _, scale = model.likelihood_.student()  # [E, C]
    means = loc.mean((0, 3)) * y.std() + y.mean()  # [E, N]
    assert (means.std(0) > 0).all(), "members differ"
    np.testing.assert_allclose(p.mean, means.mean(0))
    np.testing.assert_allclose(p.aleatoric_std**2, (scale.detach().numpy() ** 2 * 32 / 30).mean() * y.var(), rtol=1e-5)
    between, within = means.var(0), (loc.var(0)[..., 0] * y.var()).mean(0)
    np.testing.assert_allclose(p.epistemic_std**2, between + within)


def test_members_are_as_many_networks():
    """Each learns; together they are no worse than the worst."""
    X, y = linear_table()
    X_new, y_new = linear_table(200, seed=1)
    model = regressor(**LINEAR, max_iter=100, n_members=4).fit(X, y)
    means = functions(model, X_new).mean(0)[..., 0].numpy() * y.std() + y.mean()  # [E, N]
    scores = [r2_score(y_new, f) for f in means]
    assert min(scores) > 0.85
    assert model.score(X_new, y_new) >= min(scores)


@pytest.mark.parametrize(("make", "table", "n_rows"), [(regressor, linear_table, 2), (classifier, class_table, 3)])
def test_as_many_members_as_rows(make, table, n_rows):
    """[N, D] must not be taken for one row of each member's own."""
    X, y = table(n_rows)
    weighted = make(n_members=n_rows, max_iter=2).fit(X, y, np.ones(n_rows))
    model = make(n_members=n_rows, max_iter=2).fit(X, y)
    assert model.predict(X).shape == weighted.predict(X).shape == (n_rows,)


# -- randomness -------------------------------------------------------------------------------------------------------


def test_an_ensemble_that_stops_early_has_the_same_bits_again():
    X, y = linear_table()
    options = {"n_members": 2, "batch_size": 16, "early_stopping": True, "max_iter": 5}
    assert_same_bits(*(regressor(**options).fit(X, y) for _ in range(2)), X)


def test_other_processes_get_the_same_bits():
    X, y = linear_table(30)
    model = regressor(max_iter=5)
    here, there = (cross_val_predict(model, X, y, cv=KFold(2), n_jobs=jobs) for jobs in (None, 2))
    np.testing.assert_array_equal(here, there)
    scores = [cross_val_score(model, X, y, cv=KFold(2), n_jobs=jobs) for jobs in (None, 2)]
    np.testing.assert_array_equal(*scores)


# -- odd tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_two_rows(noise):
    X, y = linear_table(2)
    model = regressor(noise=noise).fit(X, y)
    numbers = everything(model, X)
    assert np.isfinite(numbers).all()
    low, high = model.predict_interval(X, 0.99).T
    assert ((low < y) & (y < high)).all()


@pytest.mark.parametrize("value", [0.0, 42.0, -1e6])
def test_constant_target(value):
    X, _ = linear_table(30)
    model = regressor(**LINEAR, max_iter=100).fit(X, np.full(30, value))
    np.testing.assert_allclose(model.predict(X), value, atol=0.5)
    assert (model.predict(X, return_std=True)[1] < 1.5).all()


def test_constant_and_wide_tables():
    X, y = linear_table(30)
    constant = np.concatenate([X, np.full((30, 2), 7.0)], 1)
    model = regressor(**LINEAR, max_iter=100).fit(constant, y)
    assert model.score(constant, y) > 0.85
    moved = constant.copy()
    moved[:, 3:] += 1e-3
    assert np.isfinite(model.predict(moved)).all()
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(15, 60))
    model = regressor(**LINEAR, max_iter=100).fit(wide, wide[:, 0])
    assert np.isfinite(everything(model, rng.normal(size=(5, 60)))).all()


def test_repeated_rows_that_disagree():
    X = np.zeros((20, 2))
    y = np.where(np.arange(20) % 2, 1.0, -1.0)
    model = regressor(max_iter=80).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 0, atol=0.5)
    assert (abs(std - 1) < 0.5).all()


# -- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize(("unit", "shift"), [(2.0**20, 0), (1e6, 0), (1e-6, 0), (1.0, 1e4), (1e-6, 3e-4)])
def test_units_of_the_target(unit, shift, noise):
    """A change of units changes every number as it should, and nothing else."""
    X, y = linear_table(40)
    plain, moved = (regressor(noise=noise, max_iter=15).fit(X, t) for t in (y, unit * y + shift))
    p, q = plain.pred_dist(X), moved.pred_dist(X)
    exact = (unit, shift) == (2.0**20, 0)  # no number is rounded otherwise
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose((q.mean - shift) / unit, p.mean, **tolerance)
    for name in ("std", "aleatoric_std", "epistemic_std"):
        np.testing.assert_allclose(getattr(q, name) / unit, getattr(p, name), **tolerance)
    np.testing.assert_allclose(
        (moved.predict_interval(X) - shift) / unit, plain.predict_interval(X), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose((moved.sample(X, 3) - shift) / unit, plain.sample(X, 3), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(q.log_prob(unit * y + shift) + math.log(unit), p.log_prob(y), atol=1e-2)
    assert moved.score(X, unit * y + shift) == pytest.approx(plain.score(X, y), abs=1e-3)


@pytest.mark.parametrize(("unit", "shift"), [(2.0**20, 0), (1e6, 0), (1e-6, 0), (1.0, 1e4)])
def test_units_of_the_inputs(unit, shift):
    X, y = linear_table(40)
    plain, moved = (regressor(max_iter=15).fit(Z, y) for Z in (X, unit * X + shift))
    np.testing.assert_allclose(moved.predict_interval(unit * X + shift), plain.predict_interval(X), atol=2e-3)
