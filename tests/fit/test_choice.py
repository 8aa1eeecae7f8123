"""Targets that mislead a comparison of densities: zeros, limits, heavy tails. Nothing absurd comes of them."""

import numpy as np
import pytest

import vmg
from quick import ensemble_regressor
from vmg.fit.choice import SMALL_MEMBERS, TargetFitter, find_atom, half_width
from vmg.prediction.transformed import LogTransform

SIZES = {"zeros": 600, "durations": 400, "positive": 300, "a limit": 500, "plain": 300}


def table(name, seed=0):
    """Inputs and a target."""
    rng, n = np.random.default_rng(seed), SIZES[name]
    X = rng.normal(size=(n, 4))
    if name == "zeros":  # amounts of which a fifth are zero
        amount = np.exp(0.6 * X[:, 0] + 0.5 * rng.normal(size=n))
        return X, np.where(X[:, 1] + 0.5 * rng.normal(size=n) < -0.9, 0.0, amount)
    if name == "durations":  # long tails, and three per cent of zeros
        y = np.round(30 * np.exp(0.5 * X[:, 0] + rng.standard_t(3, size=n)), 1)
        return X, np.where(rng.random(n) < 0.03, 0.0, np.minimum(y, 3e4))
    noise = 0.3 * rng.normal(size=n)
    if name == "positive":
        return X, np.exp(0.5 * X[:, 0] + noise)
    return X, X[:, 0] + noise if name == "plain" else np.minimum(X[:, 0] + noise, 0.7)


@pytest.fixture(scope="module", params=["zeros", "durations", "positive", "a limit"])
def fitted(request):
    X, y = table(request.param)
    asked = ensemble_regressor(max_iter=60, likelihood="student").fit(X, y)
    return request.param, ensemble_regressor(max_iter=60).fit(X, y), asked


def test_points_are_as_good_as_those_of_a_student_t(fitted):
    name, model, asked = fitted
    X, y = table(name, seed=1)
    error, known = (np.sqrt(np.mean((one.predict(X) - y) ** 2)) for one in (model, asked))
    assert error < 1.05 * known


def test_nothing_is_absurd_far_from_the_data(fitted):
    name, model, _ = fitted
    X, y = table(name)
    far = np.concatenate([X, 30 * X, 1e4 * X])
    prediction = model.pred_dist(far)
    assert (np.abs(prediction.mean) <= 3.5 * np.abs(y).max() + prediction.std).all()
    if y.min() >= 0:
        assert prediction.interval(0.99).min() >= 0
    if isinstance(model.target_transform_, LogTransform):
        assert prediction.mean.max() <= 3.5 * y.max()
    assert (prediction.aleatoric_std > 1e-3 * y.std()).all()
    low, high = prediction.interval(0.9 if model.atom_ is None else 0.99).T
    certain = low == high  # the atom
    assert (certain | (low <= prediction.mean) & (prediction.mean <= high)).all()


def test_every_finite_target_has_a_finite_log_density(fitted):
    name, model, _ = fitted
    X, y = table(name)
    prediction = model.pred_dist(X[:6])
    for value in (0.0, -0.0, y.max(), -1.0, 1e9, -1e9, 1e-300, 0.7):
        scores = prediction.log_prob(np.full(6, value))
        assert np.isfinite(scores).all() and scores.min() > -150


def test_zeros_are_an_atom_and_files_keep_it(tmp_path):
    X, y = table("zeros")
    model = ensemble_regressor(max_iter=60).fit(X, y)
    assert model.atom_ == 0 and "beside 0" in model.likelihood_reason_
    new, target = table("zeros", seed=1)
    prediction = model.pred_dist(new)
    share = np.exp(prediction.log_prob(np.zeros(len(new))))  # the probability of a zero
    np.testing.assert_allclose(share.mean(), (target == 0).mean(), atol=0.04)
    assert share[target == 0].mean() > 2 * share[target > 0].mean()
    model.save(tmp_path / "m.vmg")
    loaded = vmg.load(tmp_path / "m.vmg")
    assert np.array_equal(loaded.predict_quantiles(new, [0.1, 0.5, 0.9]), model.predict_quantiles(new, [0.1, 0.5, 0.9]))
    before = share.mean()
    loaded.partial_fit(new[:200], np.zeros(200))
    assert np.exp(loaded.pred_dist(new).log_prob(np.zeros(len(new)))).mean() > before + 0.05


@pytest.mark.parametrize(("name", "n_small"), [("plain", 0), ("positive", 2), ("zeros", 4)])
def test_only_the_chosen_candidate_is_fitted_in_full(name, n_small, monkeypatch):
    """With an atom, its chance is one of the fits; a target that may be any number is compared with nothing."""
    members, fit = [], TargetFitter.fit

    def counted(self, likelihood, x, *rest):
        members.append(self.size_of(len(x)).n_members)
        return fit(self, likelihood, x, *rest)

    monkeypatch.setattr(TargetFitter, "fit", counted)
    n_members = SMALL_MEMBERS + 2
    ensemble_regressor(max_iter=20, n_members=n_members).fit(*table(name))
    assert members == [SMALL_MEMBERS] * n_small + [n_members]


def test_atoms_are_values_that_stand_out():
    rng = np.random.default_rng(0)
    y = rng.normal(size=400)
    assert find_atom(y) is None
    for value, rows, found in ((0.0, 12, None), (0.3, 40, 0.3), (9.0, 20, 9.0)):
        changed = y.copy()
        changed[:rows] = value
        assert find_atom(changed) == found
    assert find_atom(np.round(3 * y)) is None  # whole numbers, of which none stands out
    assert find_atom(np.repeat([0.0, 1.0, 2.0], 100)) is None  # grades


def test_intervals_around_targets_hold_their_rounding():
    y = np.random.default_rng(0).normal(size=1_000)
    assert half_width(y) == pytest.approx(0.01 * y.std())
    assert half_width(np.round(y, 1)) == pytest.approx(0.05)


@pytest.mark.parametrize(("best", "said"), [("lognormal", True), ("student", False)])
def test_a_choice_against_the_listed_scores_says_why(monkeypatch, best, said):
    scores = {"student": -2.0, "lognormal": -2.5, best: -1.0}
    monkeypatch.setattr("vmg.fit.choice._try", lambda candidates, *rest: (candidates[0], scores))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = vmg.TableRegressor(max_iter=5, n_members=2, hidden_layer_sizes=4).fit(X, np.exp(X[:, 0]))
    assert ("a higher one is not surely better" in model.likelihood_reason_) == said
