import copy
import math
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import vmg
from quick import linear_table, regressor
from vmg import VMGRegressor
from vmg.estimators.selection import CANDIDATES, choose_members, choose_one
from vmg.estimators.stopping import VALIDATION_DRAWS, BestSoFar

LINEAR = {"hidden_layer_sizes": (), "n_pseudo": 0}  # learns a linear table well in a hundred steps


def everything(model, X):
    """Every number that a fitted model gives."""
    p = model.pred_dist(X)
    return np.concatenate(
        [
            model.predict(X).ravel(),
            p.std.ravel(),
            p.epistemic_std.ravel(),
            model.predict_interval(X).ravel(),
            model.predict_quantiles(X, [0.2, 0.5]).ravel(),
            model.sample(X, 2).ravel(),
        ]
    )


def assert_same_bits(a, b, X):
    np.testing.assert_array_equal(everything(a, X), everything(b, X))


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
    assert "bound" in capsys.readouterr().out


# -- predictions ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    X, y = linear_table()
    return regressor().fit(X, y)


@pytest.fixture(scope="module")
def fitted_to_two():
    X, y = linear_table(n_outputs=2)
    return regressor().fit(X, y)


def test_the_ways_to_predict_agree(fitted):
    X, y = linear_table(7, seed=1)
    p = fitted.pred_dist(X)
    np.testing.assert_array_equal(fitted.predict(X), p.mean)
    np.testing.assert_array_equal(fitted.predict(X, return_std=True), (p.mean, p.std))
    mean, covariance = fitted.predict(X, return_cov=True)
    np.testing.assert_array_equal(mean, p.mean)
    np.testing.assert_array_equal(covariance, p.row_covariance())
    np.testing.assert_allclose(np.sqrt(covariance.diagonal()), p.std)
    np.testing.assert_array_equal(fitted.predict_interval(X, 0.6), p.interval(0.6))
    np.testing.assert_array_equal(fitted.predict_quantiles(X, [0.1, 0.9]), p.quantile([0.1, 0.9]).T)
    np.testing.assert_allclose(fitted.predict_quantiles(X, 0.5)[:, 0], p.quantile(0.5))
    assert fitted.score(X, y) == r2_score(y, p.mean)


def test_shapes(fitted, fitted_to_two):
    X, _ = linear_table(7, seed=1)
    for model, trailing in ((fitted, ()), (fitted_to_two, (2,))):
        assert model.predict(X).shape == (7, *trailing)
        assert model.predict(X, return_std=True)[1].shape == (7, *trailing)
        assert model.predict(X, return_cov=True)[1].shape == (7, 7, *trailing)
        assert model.predict_interval(X).shape == (7, *trailing, 2)
        assert model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (7, *trailing, 3)
        assert model.sample(X, 4).shape == (4, 7, *trailing)
        assert model.pred_dist(X).log_prob(model.predict(X)).shape == (7,)


def test_a_column_of_targets_gives_columns():
    X, y = linear_table(20)
    column, plain = regressor(max_iter=3).fit(X, y[:, None]), regressor(max_iter=3).fit(X, y)
    assert column.predict(X).shape == (20, 1)
    assert column.predict_interval(X).shape == (20, 1, 2)
    np.testing.assert_array_equal(column.predict(X)[:, 0], plain.predict(X))


def test_predicting_changes_nothing(fitted):
    X, _ = linear_table(7, seed=1)
    before, numbers = copy.deepcopy(fitted.network_.state_dict()), everything(fitted, X)
    np.testing.assert_array_equal(everything(fitted, X), numbers)
    assert all(torch.equal(value, before[name]) for name, value in fitted.network_.state_dict().items())


def test_a_row_is_predicted_alone_as_in_company(fitted):
    X, _ = linear_table(7, seed=1)
    alone = np.concatenate([fitted.predict_interval(row[None]) for row in X])
    np.testing.assert_allclose(alone, fitted.predict_interval(X), rtol=1e-8)


def test_samples(fitted):
    X, _ = linear_table(3, seed=1)
    draws, p = fitted.sample(X, 4_000), fitted.pred_dist(X)
    assert (abs(draws.mean(0) - p.mean) < 5 * p.std / math.sqrt(4_000)).all()
    np.testing.assert_array_equal(fitted.sample(X, 5, random_state=1), fitted.sample(X, 5, random_state=1))
    assert (fitted.sample(X, 5, random_state=1) != fitted.sample(X, 5, random_state=2)).all()


def test_both_std_and_cov(fitted):
    with pytest.raises(ValueError, match="at most one of return_std and return_cov"):
        fitted.predict(np.zeros((2, 3)), return_std=True, return_cov=True)


@pytest.mark.parametrize("method", ["predict", "predict_interval", "pred_dist", "sample"])
def test_before_fitting(method):
    with pytest.raises(NotFittedError):
        getattr(VMGRegressor(), method)(np.zeros((2, 3)))


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
    loc, scale, _ = model._components(model._draw_functions(X))  # [S, E, N, C], in standard units
    means = loc.mean((0, 3)) * y.std() + y.mean()  # [E, N]
    assert (means.std(0) > 0).all(), "members differ"
    np.testing.assert_allclose(p.mean, means.mean(0))
    np.testing.assert_allclose(p.aleatoric_std**2, (scale**2 * 32 / 30).mean() * y.var(), rtol=1e-5)
    between, within = means.var(0), (loc.var(0)[..., 0] * y.var()).mean(0)
    np.testing.assert_allclose(p.epistemic_std**2, between + within)


def test_members_are_as_many_networks():
    """Each learns; together they are no worse than the worst."""
    X, y = linear_table()
    X_new, y_new = linear_table(200, seed=1)
    model = regressor(**LINEAR, max_iter=100, n_members=4).fit(X, y)
    functions = model._draw_functions(X_new).mean(0)[..., 0].numpy() * y.std() + y.mean()  # [E, N]
    scores = [r2_score(y_new, f) for f in functions]
    assert min(scores) > 0.85
    assert model.score(X_new, y_new) >= min(scores)


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_as_many_members_as_rows(n_rows):
    """[N, D] must not be taken for one row of each member's own."""
    X, y = linear_table(n_rows)
    weighted = regressor(n_members=n_rows, max_iter=2).fit(X, y, np.ones(n_rows))
    model = regressor(n_members=n_rows, max_iter=2).fit(X, y)
    assert model.predict(X).shape == weighted.predict(X).shape == (n_rows,)


# -- randomness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"n_members": 2, "batch_size": 16, "early_stopping": True, "max_iter": 5}], ids=str
)
def test_same_seed_same_bits(options):
    X, y = linear_table()
    first = regressor(**options).fit(X, y)
    torch.manual_seed(99)  # the global generators play no part
    np.random.seed(99)  # noqa: NPY002
    assert_same_bits(first, regressor(**options).fit(X, y), X)
    assert_same_bits(first, first.__class__(**first.get_params()).fit(X, y), X)
    other = regressor(**options, random_state=1).fit(X, y)
    assert (other.predict(X) != first.predict(X)).all()


def test_random_state_may_be_a_generator_or_nothing():
    X, y = linear_table(20)
    seeded = [regressor(max_iter=3, random_state=np.random.RandomState(5)).fit(X, y) for _ in range(2)]
    assert_same_bits(*seeded, X)
    free = [regressor(max_iter=3, random_state=None).fit(X, y) for _ in range(2)]
    assert (free[0].predict(X) != free[1].predict(X)).all()


def test_other_processes_get_the_same_bits():
    X, y = linear_table(30)
    model = regressor(max_iter=5)
    here, there = (cross_val_predict(model, X, y, cv=KFold(2), n_jobs=jobs) for jobs in (None, 2))
    np.testing.assert_array_equal(here, there)
    scores = [cross_val_score(model, X, y, cv=KFold(2), n_jobs=jobs) for jobs in (None, 2)]
    np.testing.assert_array_equal(*scores)


def test_pickling_keeps_the_bits(fitted):
    X, _ = linear_table(7, seed=1)
    assert_same_bits(pickle.loads(pickle.dumps(fitted)), fitted, X)


# -- scikit-learn's tools ---------------------------------------------------------------------------------------------


def test_clone_and_set_params():
    model = VMGRegressor(hidden_layer_sizes=(7,), noise_prior=(2.0, 0.5)).set_params(n_draws=3, tol=0.1)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert twin.get_params()["n_draws"] == 3
    assert not hasattr(twin, "network_")
    with pytest.raises(ValueError, match="Invalid parameter 'depth'"):
        model.set_params(depth=3)


def test_pipeline_and_grid_search():
    X, y = linear_table(30)
    pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), regressor(max_iter=5))
    grid = {"vmgregressor__hidden_layer_sizes": [(2,), (4, 2)], "vmgregressor__noise": ["constant", "input"]}
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


def test_mistakes_in_the_data(fitted):
    X, y = linear_table(10)
    for X_bad, y_bad, message in (
        (X[:5], y, "inconsistent numbers of samples"),
        (X[0], y, "Expected 2D array"),
        (np.where(X > 0, np.nan, X), y, "X contains NaN"),
        (X, np.where(y > 0, np.inf, y), "y contains infinity"),
        (X[:0], y[:0], "minimum of 1 is required"),
        (X[:, :0], y, "0 feature"),
        (X, np.array(["a"] * 10), "could not convert|dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            regressor(max_iter=1).fit(X_bad, y_bad)
    with pytest.raises(ValueError, match="X has 2 features, but VMGRegressor is expecting 3"):
        fitted.predict(X[:, :2])


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


# -- the bound on the noise of pseudo-data ----------------------------------------------------------------------------


def test_a_given_noise_bound_is_used():
    X, y = linear_table(30)
    model = regressor(max_iter=2, max_noise=0.4).fit(X, y)
    assert model.max_noise_ == 0.4
    assert all(layer.pseudo_data.max_noise == 0.4 for layer in model.network_.layers)


def test_a_noise_bound_is_chosen_by_held_out_rows(monkeypatch):
    """The candidate whose trials score best; each trial fits to rows that it is not scored on."""
    X, y = linear_table(30)
    trials = []

    def score(self, held_out, n_draws):
        bounds = self.network_.layers[0].pseudo_data.max_noise[:: self.n_members].tolist()
        trials.append((bounds, {len(rows.x) for rows in held_out}, self.n_members))
        return [np.full(len(rows.x), -abs(b - 0.3)) for b, rows in zip(bounds, held_out, strict=True)]

    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", score)
    model = regressor(max_noise="auto", max_iter=3, n_members=2).fit(X, y)
    [(bounds, sizes, members)] = trials
    np.testing.assert_allclose(sorted(set(bounds)), CANDIDATES, rtol=1e-6)
    assert sizes == {6}
    assert members == 1
    assert model.max_noise_.tolist() == [min(CANDIDATES, key=lambda bound: abs(bound - 0.3))] * 2
    assert model.network_.layers[0].pseudo_data.max_noise == model.max_noise_[0]
    assert (model.max_noise, model.n_members) == ("auto", 2), "parameters stay as they were given"


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize(
    ("liked", "tried", "chosen"),
    [
        (0.002, [CANDIDATES, (0.001, 0.003, 0.01)], 0.003),
        (1e-9, [CANDIDATES, (0.001, 0.003, 0.01), (0.0001, 0.0003, 0.001)], 0.0001),
    ],
)
def test_sharper_bounds_are_tried_below_a_sharpest_that_wins(liked, tried, chosen, n_members, monkeypatch):
    X, y = linear_table(30)
    trials = []

    def score(self, held_out, n_draws):
        bounds = self.network_.layers[0].pseudo_data.max_noise.tolist()
        trials.append(sorted(set(bounds)))
        return [np.full(len(rows.x), -abs(np.log(b / liked))) for b, rows in zip(bounds, held_out, strict=True)]

    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", score)
    monkeypatch.setattr("vmg.estimators.selection.ENOUGH", 30)
    model = regressor(max_noise="auto", max_iter=3, n_members=n_members).fit(X, y)
    for found, expected in zip(trials, tried, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(model.max_noise_, chosen)
    few = regressor(max_noise="auto", max_iter=3, n_members=n_members).fit(X[:29], y[:29])
    np.testing.assert_allclose(few.max_noise_, CANDIDATES[0])


def test_members_of_an_ensemble_have_the_bounds_whose_mixture_is_best(monkeypatch, tmp_path):
    """Half of the rows like the smallest bound, the others the largest: each gets a member."""
    X, y = linear_table(30)

    def score(self, held_out, n_draws):
        bounds = self.network_.layers[0].pseudo_data.max_noise.tolist()
        likes_small = [np.arange(len(rows.x)) % 2 == 0 for rows in held_out]
        return [np.where(small == (b < 0.1), 0.0, -9.0) - abs(np.log(b / 0.1)) * 1e-3
                for b, small in zip(bounds, likes_small, strict=True)]  # fmt: skip

    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", score)
    model = regressor(max_noise="auto", max_iter=3, n_members=2).fit(X, y)
    low, high = model.max_noise_
    assert low < 0.1 < high
    np.testing.assert_allclose(model.network_.layers[0].pseudo_data.max_noise, [low, high], rtol=1e-6)
    model.save(tmp_path / "model.vmg")
    assert_same_bits(model, vmg.load(tmp_path / "model.vmg"), X)


@pytest.mark.parametrize(("n_members", "n_rows", "steps"), [(1, 100, 5_000), (2, 100, 2_000), (1, 2_500, 2_000)])
def test_a_single_network_on_a_small_table_is_tried_for_longer(monkeypatch, n_members, n_rows, steps):
    asked = []

    def train(self, sets, max_noise=None, *, effort=None, at_most=None):
        asked.append(at_most)

    def score(self, held_out, n_draws):
        return [np.zeros(len(rows.x)) for rows in held_out]

    monkeypatch.setattr(VMGRegressor, "_train", train)
    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", score)
    X = np.random.default_rng(0).normal(size=(n_rows, 2))
    VMGRegressor(n_members=n_members, random_state=0).fit(X, X[:, 0])
    assert asked == [steps, None]  # the trials, then all rows


def test_members_are_chosen_one_by_one_for_their_mixture():
    """Every ensemble of two out of three candidates, by hand: greedy starts with the best and adds its complement."""
    log_probs = np.log([[0.5, 0.5, 0.1, 0.1], [0.4, 0.4, 0.2, 0.2], [0.01, 0.01, 0.6, 0.6]])
    assert log_probs.mean(1).argmax() == 1
    mixtures = [np.log((np.exp(log_probs[1]) + np.exp(other)) / 2).mean() for other in log_probs]
    assert choose_members(log_probs, 2).tolist() == sorted([1, int(np.argmax(mixtures))])
    assert choose_members(log_probs, 1).tolist() == [1]
    assert choose_members(log_probs, 1, np.array([0.0, 0.0, 1.0, 1.0])).tolist() == [2]


def test_one_network_takes_the_most_cautious_bound_that_is_not_clearly_worse():
    rng = np.random.default_rng(0)
    base = rng.normal(size=400)
    noise = rng.normal(size=(3, 400))
    # the middle one is best; the last is worse by a tenth of a standard error, the first by many
    noise -= noise.mean(1, keepdims=True)
    deficit = np.array([[0.5], [0.0], [0.1 / 20]])
    log_probs = base + np.array([[1.0], [0.0], [1.0]]) * noise - deficit
    assert choose_one(log_probs) == 2
    log_probs[2] -= 2 * log_probs[2].std() / 20 * 2  # now by more than one
    assert choose_one(log_probs) == 1
    only_first = np.zeros(400)
    only_first[:5] = 1
    log_probs[0, :5] = log_probs.max() + 5.0
    assert choose_one(log_probs, only_first) == 0


def test_trials_count_weights_and_report_no_progress(monkeypatch):
    """A row that fits no bound but one decides when it weighs enough."""
    X, y = linear_table(30)
    seen = []

    def score(self, held_out, n_draws):
        bounds = self.network_.layers[0].pseudo_data.max_noise.tolist()
        heavy = [rows.weight.numpy() > 1 for rows in held_out]
        return [np.where(h, b, -b) for b, h in zip(bounds, heavy, strict=True)]

    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", score)
    for light, best in ((1e-3, CANDIDATES[-1]), (1.0, CANDIDATES[0])):
        model = regressor(max_noise="auto", max_iter=3)
        model._callbacks = (seen.append,)
        model.fit(X, y, np.where(np.arange(30) % 3 == 0, 1.01, light))
        assert model.max_noise_ == best
    assert {p.n_steps for p in seen} == {model.history_.last.n_steps}


@pytest.mark.parametrize(("n_rows", "n_pseudo"), [(5, 2), (30, 0), (30, (0, 0))])
def test_no_trials_where_they_are_of_no_use(n_rows, n_pseudo, monkeypatch):
    X, y = linear_table(n_rows)
    monkeypatch.setattr(VMGRegressor, "_held_out_log_probs", lambda *_: pytest.fail("a trial"))
    model = regressor(max_noise="auto", max_iter=2, n_pseudo=n_pseudo).fit(X, y)
    assert model.max_noise_ in CANDIDATES


def test_a_chosen_bound_has_the_same_bits_again():
    X, y = linear_table(30)
    assert_same_bits(*(regressor(max_noise="auto", max_iter=5).fit(X, y) for _ in range(2)), X)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_rows_of_weight_zero_are_never_seen():
    X, y = linear_table(30)
    weight = np.arange(30.0) % 3
    garbage = np.where(weight == 0, 1e6, y)
    kept = weight > 0
    alone = regressor(max_iter=5).fit(X[kept], y[kept], weight[kept])
    assert_same_bits(regressor(max_iter=5).fit(X, garbage, weight), alone, X)
    more = clone(alone).fit(X[kept], y[kept], weight[kept]).partial_fit(X, garbage, weight)
    assert_same_bits(more, alone.partial_fit(X[kept], y[kept], weight[kept]), X)


def test_a_weight_counts_rows():
    """Weights against repeated rows, both trained well: the same units, noise and, within its spread, the same mean."""
    X, y = linear_table(40)
    y[:20] += 1.5  # a half that disagrees with the other, so that weights matter
    counts = np.where(np.arange(40) < 20, 3, 1)
    options = {**LINEAR, "max_iter": 150, "n_draws": 400}
    weighted = regressor(**options).fit(X, y, counts)
    repeated = regressor(**options).fit(X.repeat(counts, 0), y.repeat(counts))
    ignored = regressor(**options).fit(X, y)
    np.testing.assert_allclose(weighted.target_scaling_.scale, repeated.target_scaling_.scale)
    np.testing.assert_allclose(weighted.target_scaling_.mean, repeated.target_scaling_.mean)
    concentration = [m.likelihood_.posterior.concentration.item() for m in (weighted, repeated)]
    np.testing.assert_allclose(concentration, 1 + 80 / 2, rtol=1e-4)
    p, q, r = (m.pred_dist(X) for m in (weighted, repeated, ignored))
    assert abs(p.mean - q.mean).max() < 0.15
    assert abs(r.mean - q.mean).mean() > 0.25
    np.testing.assert_allclose(p.aleatoric_std, q.aleatoric_std, rtol=0.1)
    np.testing.assert_allclose(p.epistemic_std, q.epistemic_std, rtol=0.35)


def test_equal_weights_of_one_change_nothing():
    X, y = linear_table(20)
    plain, weighted = regressor(max_iter=10).fit(X, y), regressor(max_iter=10).fit(X, y, np.ones(20))
    np.testing.assert_allclose(everything(weighted, X), everything(plain, X), rtol=1e-4)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(10), "positive sum|at least one non-zero|all zero"),
        (-np.ones(10), "[Nn]egative"),
        (np.ones(9), "sample_weight"),
        (np.full(10, np.nan), "NaN"),
    ],
)
def test_mistakes_in_weights(weight, message):
    X, y = linear_table(10)
    for model in (regressor(max_iter=1), regressor(max_iter=1).fit(X, y)):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y, weight)


# -- going on and stopping early --------------------------------------------------------------------------------------


def test_warm_start_goes_on():
    """From where the last fit ended: a fit that hardly moves gives the last predictions back."""
    X, y = linear_table()
    still = {"learning_rate_init": 1e-9, "max_iter": 1}
    model = regressor(warm_start=True).fit(X, y)
    network, before = model.network_, model.predict(X)
    model.set_params(**still).fit(X, y)
    assert model.network_ is network
    np.testing.assert_allclose(model.predict(X), before, atol=1e-4)
    cold = regressor().fit(X, y).set_params(**still).fit(X, y)
    assert abs(cold.predict(X) - before).max() > 0.1


def test_without_warm_start_every_fit_is_a_new_one():
    X, y = linear_table(20)
    model = regressor(max_iter=3).fit(X, y)
    numbers = everything(model, X)
    np.testing.assert_array_equal(everything(model.fit(X, y), X), numbers)


@pytest.mark.parametrize(
    "change",
    [
        {"n_members": 2},
        {"hidden_layer_sizes": (5,)},
        {"noise": "input"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_what_goes_on_must_fit(method, change):
    X, y = linear_table(20)
    model = regressor(warm_start=True, max_iter=1).fit(X, y).set_params(**change)
    with pytest.raises(ValueError, match=r"go on with the layers of the last fit.*now ask for"):
        getattr(model, method)(X, y)


@pytest.mark.parametrize("change", [{"n_pseudo": 7}, {"row_covariance": "dense"}, {"zero_mean": True}], ids=str)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_what_goes_on_must_be_the_same_network(method, change):
    X, y = linear_table(20)
    model = regressor(warm_start=True, max_iter=1).fit(X, y).fit(X, y)
    with pytest.raises(ValueError, match=r"n_pseudo, .* must be those of that fit"):
        getattr(model.set_params(**change), method)(X, y)


def test_a_fit_that_is_refused_changes_nothing():
    X, y = linear_table(20)
    model = regressor(warm_start=True, max_iter=1).fit(X, y)
    before = everything(model, X)
    for other, weight, message in (
        ((X[:, :2], y), None, "go on with the layers of the last fit"),
        ((X, np.c_[y, y]), None, "go on with the layers of the last fit"),
        ((X, np.c_[y, y]), np.zeros(20), "at least one non-zero number"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(*other, weight)
        np.testing.assert_array_equal(everything(model, X), before)


def test_many_rows_are_predicted_in_pieces_that_do_not_show(monkeypatch):
    X, y = linear_table(20)
    model = regressor(max_iter=1, n_members=2).fit(X, y)

    def predicted():
        mean, std = model.predict(X, return_std=True)
        return mean, model.predict(X), std, model.predict_interval(X, 0.8), model.predict_quantiles(X, [0.1, 0.6, 0.7])

    whole = predicted()
    monkeypatch.setattr("vmg.prediction.ROWS_AT_ONCE", 7)
    asked, draw = [], model._draw_functions
    monkeypatch.setattr(model, "_draw_functions", lambda rows: asked.append(len(rows)) or draw(rows))
    for one, other in zip(predicted(), whole, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert set(asked) == {7, 6}


class Scripted(VMGRegressor):
    """Hears prescribed scores of its held-out rows, and keeps its parameters at every check."""

    SCORES = (-3.0, -2.0, -2.5, -1.0, -1.0, -0.95, -4.0, -4.0)

    def _held_out_log_probs(self, held_out, n_draws):
        true = super()._held_out_log_probs(held_out, n_draws)
        seen = self.__dict__.setdefault("seen_", [])
        seen.append((copy.deepcopy(self.network_.state_dict()), len(true[0])))
        return [np.full_like(true[0], self.SCORES[len(seen) - 1])]


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize(("tol", "best", "n_checks"), [(0.0, 5, 8), (0.1, 3, 6)])
def test_early_stopping_stops_and_restores_the_best(n_members, tol, best, n_checks):
    """Two checks in a row without an improvement by ``tol`` end it; what a later check would say is never heard."""
    X, y = linear_table(30)
    options = {"early_stopping": True, "n_iter_no_change": 2, "tol": tol, "validation_fraction": 0.3}
    model = Scripted(**regressor(**options, n_members=n_members).get_params())
    model.fit(X, y)
    assert len(model.seen_) == n_checks
    assert model.history_.stopped == f"stopped by a callback at step {n_checks}"
    assert model.n_iter_ == n_checks
    state = model.network_.state_dict()
    assert all(torch.equal(value, model.seen_[best][0][name]) for name, value in state.items())
    assert not all(torch.equal(value, model.seen_[-1][0][name]) for name, value in state.items())
    assert model.seen_[0][1] == 9, "0.3 of 30 rows are held out"


def test_early_stopping_keeps_the_best_of_a_whole_run():
    X, y = linear_table(30)
    model = Scripted(**regressor(early_stopping=True, max_iter=8).get_params()).fit(X, y)
    assert model.history_.stopped == "all steps done"
    assert all(torch.equal(value, model.seen_[5][0][name]) for name, value in model.network_.state_dict().items())


def test_early_stopping_judges_and_keeps_the_average():
    X, y = linear_table(30)
    last, averaged = (
        Scripted(**regressor(early_stopping=True, max_iter=8, averaging=decay).get_params()).fit(X, y)
        for decay in (None, 0.9)
    )
    name = "layers.0.loc"
    raw = [state[name] for state, _ in last.seen_]
    mean, total = torch.zeros_like(raw[0]), 0.0
    for (state, _), value in zip(averaged.seen_, raw, strict=True):
        mean, total = 0.9 * mean + 0.1 * value, 0.9 * total + 0.1
        torch.testing.assert_close(state[name], mean / total)
    torch.testing.assert_close(averaged.network_.state_dict()[name], averaged.seen_[5][0][name], rtol=0, atol=0)


def test_early_stopping_spares_steps():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 5)), rng.normal(size=40)  # nothing to learn
    model = regressor(early_stopping=True, max_iter=300, n_iter_no_change=3).fit(X, y)
    assert model.history_.stopped.startswith("stopped by a callback")
    assert model.n_iter_ < 200


def test_early_stopping_weighs_the_rows_held_out():
    X, y = linear_table(20)
    weight = np.arange(20.0) + 1
    model = regressor(max_iter=5, n_draws=VALIDATION_DRAWS).fit(X, y)
    log_prob = model.pred_dist(X).log_prob(y) + math.log(y.std())  # in standard units
    for w in (None, weight):
        check = BestSoFar(model, [model._encode_rows(X, y, w)])
        assert not check(model.history_.last)
        assert check.scores[0] == pytest.approx(np.average(log_prob, weights=w), rel=1e-5)


def test_early_stopping_needs_two_rows():
    X, y = linear_table(2)
    assert np.isfinite(regressor(early_stopping=True, max_iter=2).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="early_stopping needs at least 2 rows to hold one out; got 1"):
        regressor(early_stopping=True).fit(X[:1], y[:1])


# -- odd tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 2])
@pytest.mark.parametrize("noise", ["constant", "input"])
def test_very_few_rows(n_rows, noise):
    X, y = linear_table(n_rows)
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
