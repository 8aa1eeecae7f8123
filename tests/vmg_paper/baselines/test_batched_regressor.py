"""The reference methods as estimators: one interface, all splits in one run, numbers in the target's units."""

import numpy as np
import pytest
from sklearn.base import clone

from quick import linear_table
from vmg_paper.baselines import HMCRegressor, PBPRegressor
from vmg_paper.baselines.batched_regressor import fit_splits
from vmg_paper.baselines.pbp import filter_rows
from vmg_paper.experiments.table1_methods import TABLE_METHODS

QUICK = {
    "pbp": PBPRegressor((5,), n_epochs=10),
    "hmc": HMCRegressor((), n_chains=2, n_warmup=60, n_draws=30),
}
original = np.random.default_rng
methods = pytest.mark.parametrize("model", QUICK.values(), ids=QUICK.keys())


def splits(n=60):
    """Three splits, one a row shorter than the others."""
    rows = np.arange(n)
    return [(rows[10:], rows[:10]), (rows[:50], rows[50:]), (rows[11:], rows[:11])]


@methods
def test_a_linear_table_is_learned(model):
    X, y = linear_table()
    fitted = clone(model).fit(X[:50], 100 * y[:50] + 7)
    prediction = fitted.pred_dist(X[50:])
    target = 100 * y[50:] + 7
    assert np.corrcoef(prediction.mean, target)[0, 1] > 0.9
    assert prediction.mean.shape == prediction.std.shape == (10,)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2, rtol=1e-10)
    assert (prediction.epistemic_std > 0).all()
    mean, std = fitted.predict(X[50:], return_std=True)
    np.testing.assert_array_equal(mean, prediction.mean)
    np.testing.assert_array_equal(std, prediction.std)
    assert fitted.n_steps_ > 0


@methods
def test_units_of_the_target_do_not_matter(model):
    X, y = linear_table()
    plain, scaled = (clone(model).fit(X, unit * y) for unit in (1.0, 1024.0))
    np.testing.assert_allclose(scaled.predict(X), 1024 * plain.predict(X), rtol=1e-6)
    np.testing.assert_allclose(scaled.pred_dist(X).std, 1024 * plain.pred_dist(X).std, rtol=1e-6)


@pytest.mark.parametrize("name", ["pbp", "hmc"])
def test_all_splits_at_once_equal_one_after_another(name):
    X, y = linear_table()
    together = fit_splits(QUICK[name], X, y, splits())
    for one, (train, test) in zip(together, splits(), strict=True):
        alone = clone(QUICK[name]).fit(X[train], y[train])
        np.testing.assert_allclose(one.pred_dist(X[test]).std, alone.pred_dist(X[test]).std, rtol=1e-6)
        np.testing.assert_allclose(one.predict(X[test]), alone.predict(X[test]), rtol=1e-6)


@methods
def test_test_rows_are_not_looked_at(model):
    X, y = linear_table()
    spoiled = y.copy()
    spoiled[:10] = 1e6
    first, other = (fit_splits(model, X, target, splits()[:1])[0] for target in (y, spoiled))
    np.testing.assert_array_equal(first.predict(X), other.predict(X))
    assert not hasattr(model, "posterior_")


@methods
def test_the_seed_decides(model):
    X, y = linear_table()
    one, same, other = (clone(model).set_params(random_state=seed).fit(X, y).predict(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", [PBPRegressor, HMCRegressor])
def test_known_noise_is_taken_as_it_is(kind):
    X, y = linear_table()
    model = clone(QUICK["pbp" if kind is PBPRegressor else "hmc"]).set_params(noise_scale=0.7).fit(X, 10 * y)
    np.testing.assert_allclose(model.pred_dist(X).aleatoric_std, 0.7, rtol=1e-10)


def test_of_several_starts_the_one_with_the_best_evidence_is_kept(monkeypatch):
    X, y = linear_table()
    seen = []

    def spy(*arguments, **options):
        seen.append(filter_rows(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr("vmg_paper.baselines.pbp.filter_rows", spy)
    several = fit_splits(clone(QUICK["pbp"]).set_params(n_starts=3), X, y, splits()[:2])
    evidence = seen[-1].reshape(2, 3)
    for model, own, (train, _) in zip(several, evidence, splits(), strict=False):
        assert model.posterior_.noise_variance > 0
        seen.clear()
        best = int(own.argmax())
        monkeypatch.setattr(np.random, "default_rng", lambda seed, best=best: original([seed[0], best]))
        alone = clone(QUICK["pbp"]).fit(X[train], y[train])
        np.testing.assert_allclose(seen[-1], own.max(), rtol=1e-8)
        np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-6)
        monkeypatch.setattr(np.random, "default_rng", original)


def test_hmc_says_whether_its_chains_agree():
    X, y = linear_table()
    posterior = HMCRegressor((), n_chains=4, n_warmup=200, n_draws=100).fit(X, y).posterior_
    assert 0.99 < posterior.rhat < 1.1
    assert 100 < posterior.ess < 1000
    assert posterior.chains.draws.shape == (100, 4, posterior.model.n_dimensions)


def test_hmc_is_exact_bayesian_linear_regression():
    """No hidden layer, known noise and weights N(0, 1): the posterior mean and variance are closed form."""
    X, y = linear_table(n=20)
    scale = 0.5
    model = HMCRegressor((), weight_prior=1.0, noise_scale=scale, n_chains=8, n_warmup=300, n_draws=500).fit(X, y)
    x, unit = model.input_scaling_.transform(X), model.target_scaling_
    Z = np.hstack([x, np.ones((20, 1))]) / np.sqrt(4)
    s2 = (scale / unit.scale[0]) ** 2
    covariance = np.linalg.inv(np.eye(4) + Z.T @ Z / s2)
    mean = unit.inverse(Z @ covariance @ Z.T @ unit.transform(y[:, None]) / s2)[:, 0]
    spread = np.sqrt(np.einsum("ni,ij,nj->n", Z, covariance, Z)) * unit.scale[0]
    prediction, ess = model.pred_dist(X), model.posterior_.ess
    assert (np.abs(prediction.mean - mean) < 5 * spread / np.sqrt(ess)).all()
    np.testing.assert_allclose(prediction.epistemic_std, spread, rtol=5 / np.sqrt(ess))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda X, y: PBPRegressor().pred_dist(X), "not fitted yet"),
        (lambda X, y: PBPRegressor().fit(X[:, 0], y), "Expected 2D array"),
        (lambda X, y: PBPRegressor().fit(X, np.full(60, np.nan)), "NaN"),
        (lambda X, y: PBPRegressor(n_epochs=0).fit(X, y), "n_epochs must be"),
        (lambda X, y: PBPRegressor(weight_prior=(1.0, 1.0)).fit(X, y), "weight_prior must have"),
        (lambda X, y: fit_splits(PBPRegressor(), X, y, []), "at least one"),
        (lambda X, y: PBPRegressor().set_params(depth=3), "Invalid parameter 'depth'"),
        (lambda X, y: clone(QUICK["pbp"]).fit(X, y).predict(X[:, :2]), "as in fit"),
    ],
)
def test_bad_arguments_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action(*linear_table())


@pytest.mark.parametrize("name", QUICK)
def test_each_is_a_method_of_the_comparison(name):
    method = TABLE_METHODS[name]
    model = method.make("yacht", 3)
    assert method.fit_splits is fit_splits
    assert model.get_params()["random_state"] == 3 and tuple(model.hidden_layer_sizes) == (50,)
