"""``TableRegressor`` with every likelihood: what it promises of counts, amounts, shares, grades and bounds."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

import vmg
from quick import assert_same_bits, ensemble_regressor, everything, linear_table
from vmg.estimators import TableModel
from vmg.prediction import GLMPrediction, StudentPrediction, TransformedPrediction
from vmg.review.holdout import Holdout, compare_table
from vmg.tables import TableError
from vmg.tables.columns import TableChoices

NAMES = (
    "student",
    "normal",
    "lognormal",
    "poisson",
    "negative-binomial",
    "binomial",
    "beta",
    "ordinal",
    "censored",
)
SMALLEST = {"lognormal": 0, "poisson": 0, "negative-binomial": 0, "binomial": 0, "beta": 0, "ordinal": 3}


def table(name, n=120, seed=0):
    """Rows whose targets have the named likelihood."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    f = 1 + np.sin(X[:, 0]) + 0.5 * X[:, 1]
    p, trials = 1 / (1 + np.exp(-f)), rng.integers(1, 9, n)
    seen = np.exp(f + 0.3 * rng.normal(size=n))
    limit = np.exp(1 + rng.normal(size=n))
    y = {
        "lognormal": seen,
        "poisson": rng.poisson(np.exp(f)).astype(float),
        "negative-binomial": rng.poisson(np.exp(f) * rng.gamma(2, size=n) / 2).astype(float),
        "binomial": np.stack([rng.binomial(trials, p), trials], 1).astype(float),
        "beta": rng.beta(8 * p, 8 * (1 - p)).clip(1e-3, 1 - 1e-3),
        "ordinal": 3.0 + np.digitize(f + 0.5 * rng.normal(size=n), [0, 1, 2]),
        "censored": np.stack([np.minimum(seen, limit), np.where(seen <= limit, seen, np.inf)], 1),
    }
    return X, y.get(name, f + 0.3 * rng.normal(size=n))


def numbers(name, y):
    """Targets as predictions give them."""
    if name == "binomial":
        return y[:, 0] / y[:, 1]
    return y[:, 0] if name == "censored" else y


@pytest.fixture(scope="module", params=NAMES)
def fitted(request):
    X, y = table(request.param)
    return request.param, ensemble_regressor(likelihood=request.param, max_iter=40).fit(X, y), X, y


def test_it_learns_and_says_so_in_the_targets_units(fitted):
    name, model, _, _ = fitted
    assert model.likelihood_ == name and model.likelihood_reason_ == "as asked"
    X_new, y_new = table(name, 200, seed=1)
    prediction, y = model.pred_dist(X_new), numbers(name, y_new)
    assert np.corrcoef(prediction.mean, y)[0, 1] > 0.4
    interval = prediction.interval(0.9)
    if name != "censored":  # the seen part of a censored target is not the target
        assert 0.8 <= np.mean((interval[:, 0] <= y) & (y <= interval[:, 1])) <= 1
    assert interval.min() >= SMALLEST.get(name, -np.inf)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2, rtol=1e-6)


def test_every_answer_has_its_shape_and_is_finite(fitted):
    _, model, X, _ = fitted
    assert np.isfinite(everything(model, X)).all()
    assert model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (120, 3)
    assert (np.diff(model.predict_quantiles(X, [0.1, 0.5, 0.9])) >= 0).all()
    _, covariance = model.predict(X, return_cov=True)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), model.pred_dist(X).std, rtol=1e-5)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8 * np.trace(covariance)


def test_ignorance_grows_where_there_are_no_rows(fitted):
    name, model, X, _ = fitted
    if name == "ordinal":
        pytest.skip("far outside the answer is one of few grades")
    near, far = model.pred_dist(X), model.pred_dist(30 * X + 30)
    assert np.isfinite(far.std).all() and np.isfinite(far.mean).all()
    assert np.median(far.epistemic_std) > 1.5 * np.median(near.epistemic_std)


def test_the_same_seed_gives_the_same_bits_and_rows_do_not_depend_on_company(fitted):
    name, model, X, y = fitted
    assert_same_bits(model, ensemble_regressor(likelihood=name, max_iter=40).fit(X, y), X[:15])
    whole, part = model.pred_dist(X), model.pred_dist(X[[5, 9]])
    np.testing.assert_allclose(part.mean, whole.mean[[5, 9]], rtol=1e-6)
    np.testing.assert_allclose(part.std, whole.std[[5, 9]], rtol=1e-6)
    np.testing.assert_allclose(part.epistemic_std, whole.epistemic_std[[5, 9]], rtol=1e-4)
    taken = whole.take(np.array([5, 9]))
    np.testing.assert_allclose(taken.interval(0.8), whole.interval(0.8)[[5, 9]], rtol=1e-9)


def test_files_keep_every_bit(fitted, tmp_path):
    _, model, X, y = fitted
    model.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    assert vars(loaded).keys() == vars(model).keys()
    assert loaded.likelihood_scores_ == model.likelihood_scores_
    assert_same_bits(model, loaded, X[:15])
    one, other = copy.deepcopy(model).partial_fit(X[:20], y[:20]), loaded.partial_fit(X[:20], y[:20])
    assert_same_bits(one, other, X[:15])


def test_more_rows_make_it_surer(fitted):
    _, model, X, y = fitted
    updated = copy.deepcopy(model).partial_fit(np.repeat(X, 3, 0), np.repeat(y, 3, 0))
    assert np.median(updated.pred_dist(X).epistemic_std) < np.median(model.pred_dist(X).epistemic_std)
    assert np.isfinite(everything(updated, X[:15])).all()


def test_conformal_intervals_work_for_all(fitted):
    name, model, X, _ = fitted
    if name in ("binomial", "censored"):
        pytest.skip("a pair of numbers has no conformal interval")
    X_new, y_new = table(name, 99, seed=2)
    changed = copy.deepcopy(model).conformalize(X_new, y_new)
    interval = changed.predict_interval(X, 0.9)
    assert interval.shape == (120, 2) and (interval[:, 0] <= interval[:, 1]).all()


# -- auto -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lognormal", "negative-binomial", "ordinal"])
def test_auto_finds_a_likelihood_that_suits(name):
    X, y = table(name, 400)
    model = ensemble_regressor(max_iter=30).fit(X, y)
    assert model.likelihood_ in (name, "student" if name == "ordinal" else name)  # both suit grades of normal noise
    assert model.likelihood_scores_[model.likelihood_] > model.likelihood_scores_["student"] - 0.05
    assert model.likelihood_ in model.likelihood_reason_
    assert model.predict_interval(X, 0.99).min() >= 0


def test_few_values_are_grades_whole_numbers_or_not():
    X, y = table("ordinal", 400)
    likely = [ensemble_regressor(max_iter=30).fit(X, 0.3 * y - unit) for unit in (0.0, 2.1)]
    assert all(
        "one of a few numbers" in model.likelihood_reason_ and "ordinal" in model.likelihood_scores_ for model in likely
    )


def test_any_number_is_as_if_student_were_asked_for():
    X, y = linear_table()
    auto, asked = ensemble_regressor().fit(X, y), ensemble_regressor(likelihood="student").fit(X, y)
    assert auto.likelihood_ == "student" and isinstance(auto.pred_dist(X), StudentPrediction)
    assert_same_bits(auto, asked, X[:15])


def test_amounts_that_suit_a_student_t_have_no_bound_below_zero():
    X, y = linear_table(200)
    amount = np.maximum(y + 2, 0.01)
    model = ensemble_regressor(max_iter=60).fit(X, amount)
    prediction = model.pred_dist(X)
    assert isinstance(prediction, TransformedPrediction | GLMPrediction)
    assert prediction.interval(0.999).min() >= 0 and (prediction.sample(50, 0) < 0).mean() < 0.5 / 201
    asked = ensemble_regressor(likelihood="student", max_iter=60).fit(X, amount)
    if model.likelihood_ == "student":
        assert np.array_equal(prediction.log_prob(amount), asked.pred_dist(X).log_prob(amount))


def test_a_first_negative_target_is_unlikely_and_not_impossible():
    """That no training target is negative does not show that none can be: its log density is low, and finite."""
    X, y = table("student")
    y = y - y.min()
    model = ensemble_regressor(max_iter=20).fit(X, y)
    scores = model.pred_dist(X[:2]).log_prob(np.array([-0.1, -50.0]))
    assert np.isfinite(scores).all() and scores[1] < scores[0] < 0
    assert model.predict_interval(X).min() >= 0


def test_a_column_of_counts_stays_a_column():
    X, y = table("poisson")
    model = ensemble_regressor(likelihood="poisson").fit(X, y[:, None])
    prediction = model.pred_dist(X)
    assert model.predict(X).shape == prediction.std.shape == prediction.cdf(y[:, None]).shape == (120, 1)
    assert model.predict_interval(X).shape == (120, 1, 2) and model.sample(X, 3).shape == (3, 120, 1)
    assert prediction.crps(y).shape == (120, 1) and prediction.log_prob(y).shape == (120,)


@pytest.mark.parametrize("name", ["auto", "lognormal", "poisson", "negative-binomial", "beta", "ordinal"])
def test_few_rows(name):
    for n in (5, 8, 9, 10, 11):
        X, y = table(name, n)
        assert np.isfinite(everything(ensemble_regressor(likelihood=name, max_iter=5).fit(X, y), X)).all()


def test_weights_count():
    X, y = table("poisson")
    weight = np.where(X[:, 0] > 0, 5.0, 0.2)
    doubled = np.where(X[:, 0] > 0, 2 * y, y)
    light = ensemble_regressor(likelihood="poisson").fit(X, doubled, sample_weight=1 / weight)
    heavy = ensemble_regressor(likelihood="poisson").fit(X, doubled, sample_weight=weight)
    assert heavy.predict(X).mean() != light.predict(X).mean()


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("lognormal", lambda y: -y, "y must be at least 0, and some above, for the likelihood lognormal"),
        ("poisson", lambda y: y + 0.5, "whole numbers of at least 0"),
        ("beta", lambda y: y + 1, "inside"),
        ("binomial", lambda y: y[:, ::-1], "successes"),
        ("binomial", lambda y: y[:, 0], "array|two columns"),
        ("censored", lambda y: y[:, ::-1], "lower <= upper"),
        ("censored", lambda y: np.full_like(y, np.nan), "lower <= upper"),
    ],
)
def test_targets_that_cannot_be_are_refused(name, change, message):
    X, y = table(name)
    with pytest.raises(ValueError, match=message):
        ensemble_regressor(likelihood=name).fit(X, change(y))


def test_several_outputs_and_pseudo_points_have_few_likelihoods():
    X, Y = linear_table(n_outputs=2)
    with pytest.raises(ValueError, match="the likelihood poisson is of one output; got 2"):
        ensemble_regressor(likelihood="poisson").fit(X, np.round(np.exp(Y)))
    model = ensemble_regressor(likelihood="lognormal").fit(X, np.exp(Y))
    assert model.predict_interval(X).shape == (60, 2, 2) and model.predict_interval(X).min() > 0
    assert ensemble_regressor().fit(X, np.exp(Y)).likelihood_ == "student"


def test_an_update_with_impossible_targets_is_refused():
    X, y = table("ordinal")
    model = ensemble_regressor(likelihood="ordinal").fit(X, y)
    before = everything(model, X)
    with pytest.raises(ValueError, match="among the values of the first call"):
        model.partial_fit(X, y + 10)
    assert np.array_equal(everything(model, X), before)


# -- outliers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "strange"), [("auto", 1e12), ("auto", -1e12), ("lognormal", 1e12)])
def test_one_absurd_target_leaves_the_other_predictions_alone(name, strange):
    X, y = linear_table(500) if name == "auto" else table(name, 500)
    options, rest = {"max_iter": 60, "likelihood": name}, np.arange(500) != 7
    clean = ensemble_regressor(**options).fit(X, y).pred_dist(X[rest])
    other = ensemble_regressor(**options).fit(X, np.where(rest, y, strange)).pred_dist(X[rest])
    if name == "lognormal":
        assert (np.abs(np.log(other.median) - np.log(clean.median)) < 0.3).all()  # the logarithm's standard deviation
    else:
        assert (np.abs(other.mean - clean.mean) < clean.std).all()
        assert np.median(other.std / clean.std) < 2


def test_one_output_may_be_binomial_with_other_trials():
    X, y = table("binomial")
    model = ensemble_regressor(likelihood="binomial").fit(X, y)
    prediction = model.pred_dist(X)
    many = prediction.with_trials(1000)
    np.testing.assert_allclose(many.mean, prediction.mean, rtol=1e-9)
    assert (many.std < prediction.std).all()
    with pytest.raises(ValueError, match="trials must be at least 1"):
        prediction.with_trials(0)


def test_limits_of_a_target_are_bounds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = np.clip(2 * X[:, 0] + 0.3 * rng.normal(size=80), -1, 1.5)
    limited = ensemble_regressor(lower_limit=-1, upper_limit=1.5).fit(X, y)
    pairs = np.stack([np.where(y <= -1, -np.inf, y), np.where(y >= 1.5, np.inf, y)], 1)
    paired = ensemble_regressor(likelihood="censored").fit(X, pairs)
    np.testing.assert_array_equal(limited.predict(X), paired.predict(X))
    np.testing.assert_array_equal(limited.partial_fit(X, y).predict(X), paired.partial_fit(X, pairs).predict(X))
    above = ensemble_regressor(upper_limit=1.5).fit(X, y)
    assert above.likelihood_ == "censored" and (above.predict(X) != limited.predict(X)).any()
    with pytest.raises(ValueError, match="needs targets that are seen"):
        limited.conformalize(X, y)
    with pytest.raises(ValueError, match="limits of the target need likelihood 'auto' or 'censored'; got 'beta'"):
        ensemble_regressor(likelihood="beta", lower_limit=0.0).fit(X, y)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"lower_limit": np.nan}, "lower_limit"),
        ({"upper_limit": np.inf}, "upper_limit"),
        ({"lower_limit": 1.0, "upper_limit": 1.0}, "lower_limit must be below upper_limit"),
    ],
)
def test_limits_that_say_nothing_are_refused(limits, words):
    X, y = table("student")
    with pytest.raises(ValueError, match=words):
        ensemble_regressor(**limits).fit(X, y)


def test_a_table_with_limits_is_refused_where_it_cannot_be_learned_from():
    frame = pd.DataFrame({"a": np.arange(100.0), "y": np.arange(100.0)})
    for limits in ({"lower_limit": 99}, {"upper_limit": 0}, {"lower_limit": 5.1, "upper_limit": 5.2}):
        with pytest.raises(TableError, match="between the limits"):
            TableModel.fit(frame, "y", options=limits)
    with pytest.raises(TableError, match="conformal needs targets that are seen"):
        TableModel.fit(frame, "y", options={"lower_limit": 20}, conformal=0.3)


def test_targets_beyond_a_limit_are_read_as_at_it():
    """Whatever was written down for what a sensor could not measure, scores are the same, the base rate's too."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80)})
    frame["y"] = 2 * frame["a"] + 0.3 * rng.normal(size=80)
    options = {"n_members": 2, "max_iter": 3, "hidden_layer_sizes": 4, "lower_limit": -1, "random_state": 0}
    beyond, at = frame, frame.assign(y=frame["y"].clip(-1))
    models = [TableModel.fit(one, "y", options=options) for one in (beyond, at)]
    assert models[0].evaluate(beyond) == models[1].evaluate(at)
    assert models[0].evaluate_base_rate(beyond) == models[1].evaluate_base_rate(at)
    assert models[0].training_share(at) == 1
    how = {"holdout": Holdout(), "task": None, "choices": TableChoices(), "options": options, "rivals": ["linear"]}
    assert compare_table(beyond, "y", **how).scores == compare_table(at, "y", **how).scores


def test_scores_of_limited_targets_are_of_what_is_measured():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300)})
    frame["y"] = np.clip(2 * frame["a"] + 0.3 * rng.normal(size=300), -1, None)
    options = {"n_members": 4, "max_iter": 60, "lower_limit": -1, "random_state": 0}
    model = TableModel.fit(frame[:200], "y", options=options)
    found, p = model.evaluate(frame[200:]), model.pred_dist(frame[200:])
    y, here = frame["y"][200:].to_numpy(), np.full(100, -1.0)
    assert 0.8 < found["coverage"] <= 1 and found["rmse"] < 0.4 < np.abs(p.mean - y).max()
    expected = np.where(y <= -1, np.log(p.cdf(here)), p.log_prob(y)).mean()
    assert found["log_likelihood"] == pytest.approx(expected)
    # the score of quantiles of what is measured, twice their mean pinball loss
    levels = (np.arange(2_000) + 0.5) / 2_000
    above = y[:, None] - np.maximum(p.quantile(levels), -1)
    assert found["crps"] == pytest.approx(2 * np.maximum(levels * above, (levels - 1) * above).mean(), rel=5e-3)
    assert found["crps"] < p.crps(y).mean()
    regressor = ensemble_regressor(lower_limit=-1).fit(frame[["a"]][:200], frame["y"][:200])
    measured, mean = frame["y"][200:], np.maximum(regressor.predict(frame[["a"]][200:]), -1)
    assert regressor.score(frame[["a"]][200:], frame["y"][200:] - (y <= -1)) == pytest.approx(r2_score(measured, mean))
