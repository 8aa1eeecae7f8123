"""The reference methods as estimators: one interface, all splits in one run, numbers in the target's units."""

import numpy as np
import pytest
from methods import BATCHED, every_batched
from sklearn.base import clone

from quick import linear_table
from vmg_paper.baselines import HMCRegressor, PBPRegressor
from vmg_paper.baselines.pbp import filter_rows
from vmg_paper.baselines.splits import fit_splits

original = np.random.default_rng


def splits(n=60):
    """Three splits, one a row shorter than the others."""
    rows = np.arange(n)
    return [(rows[10:], rows[:10]), (rows[:50], rows[50:]), (rows[11:], rows[:11])]


@every_batched
def test_a_linear_table_is_learned(model):
    X, y = linear_table()
    fitted = clone(model).fit(X[:50], y[:50] + 7)
    prediction = fitted.pred_dist(X[50:])
    target = y[50:] + 7
    assert np.corrcoef(prediction.mean, target)[0, 1] > 0.9
    assert prediction.mean.shape == prediction.std.shape == (10,)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2, rtol=1e-10)
    assert (prediction.epistemic_std > 0).all()
    np.testing.assert_array_equal(fitted.predict(X[50:], return_std=True), (prediction.mean, prediction.std))
    assert fitted.n_steps_ > 0


@every_batched
def test_units_of_the_target_do_not_matter(model):
    X, y = linear_table()
    fits = []
    for unit in (1.0, 1024.0):
        known = {"noise_scale": 0.5 * unit} if isinstance(model, HMCRegressor) else {}
        fits.append(clone(model).set_params(**known).fit(X, unit * y))
    plain, scaled = fits
    np.testing.assert_allclose(scaled.predict(X), 1024 * plain.predict(X), rtol=1e-6)
    np.testing.assert_allclose(scaled.pred_dist(X).std, 1024 * plain.pred_dist(X).std, rtol=1e-6)


@pytest.mark.parametrize("name", ["pbp", "hmc"])  # global inducing points share one stream of random numbers
def test_all_splits_at_once_equal_one_after_another(name):
    X, y = linear_table()
    together = fit_splits(BATCHED[name], X, y, splits())
    for one, (train, test) in zip(together, splits(), strict=True):
        alone = clone(BATCHED[name]).fit(X[train], y[train])
        np.testing.assert_allclose(one.pred_dist(X[test]).std, alone.pred_dist(X[test]).std, rtol=1e-6)
        np.testing.assert_allclose(one.predict(X[test]), alone.predict(X[test]), rtol=1e-6)


@every_batched
def test_the_seed_decides(model):
    X, y = linear_table()
    one, other = (clone(model).set_params(random_state=seed).fit(X, y).predict(X) for seed in (0, 1))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", [PBPRegressor, HMCRegressor])
def test_known_noise_is_taken_as_it_is(kind):
    X, y = linear_table()
    model = clone(BATCHED["pbp" if kind is PBPRegressor else "hmc"]).set_params(noise_scale=0.7).fit(X, 10 * y)
    np.testing.assert_allclose(model.pred_dist(X).aleatoric_std, 0.7, rtol=1e-10)


def test_of_several_starts_the_one_with_the_best_evidence_is_kept(monkeypatch):
    X, y = linear_table()
    seen = []

    def spy(*arguments, **options):
        seen.append(filter_rows(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr("vmg_paper.baselines.pbp.filter_rows", spy)
    several = fit_splits(clone(BATCHED["pbp"]).set_params(n_starts=3), X, y, splits()[:2])
    evidence = seen[-1].reshape(2, 3)
    for model, own, (train, _) in zip(several, evidence, splits(), strict=False):
        assert model.posterior_.noise_variance > 0
        seen.clear()
        best = int(own.argmax())
        monkeypatch.setattr(np.random, "default_rng", lambda seed, best=best: original([seed[0], best]))
        alone = clone(BATCHED["pbp"]).fit(X[train], y[train])
        np.testing.assert_allclose(seen[-1], own.max(), rtol=1e-8)
        np.testing.assert_allclose(model.predict(X), alone.predict(X), rtol=1e-6)
        monkeypatch.setattr(np.random, "default_rng", original)


def test_hmc_says_whether_its_chains_agree():
    X, y = linear_table()
    posterior = HMCRegressor((3,), noise_scale=0.5, n_chains=4, n_warmup=200, n_draws=100).fit(X, y).posterior_
    assert 0.99 < posterior.rhat < 1.1
    assert 100 < posterior.ess < 1000
    assert posterior.chains.draws.shape == (100, 4, posterior.network.n_weights)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda X, y: PBPRegressor().pred_dist(X), "not fitted yet"),
        (lambda X, y: PBPRegressor().fit(X[:, 0], y), "Expected 2D array"),
        (lambda X, y: PBPRegressor().fit(X, np.full(60, np.nan)), "NaN"),
        (lambda X, y: PBPRegressor(n_epochs=0).fit(X, y), "n_epochs must be"),
        (lambda X, y: PBPRegressor(weight_prior=(1.0, 1.0)).fit(X, y), "weight_prior must have"),
        (lambda X, y: PBPRegressor().set_params(depth=3), "Invalid parameter 'depth'"),
        (lambda X, y: clone(BATCHED["pbp"]).fit(X, y).predict(X[:, :2]), "as in fit"),
    ],
)
def test_bad_arguments_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action(*linear_table())
