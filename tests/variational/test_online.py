import numpy as np
import pytest
import torch

from quick import linear_table, regressor
from reference import assert_close, normal
from vmg.nn import MLP
from vmg.priors import FixedPrior
from vmg.variational.fitter import posterior_as_prior, separate

LINEAR = {"hidden_layer_sizes": (), "n_pseudo": 0, "n_draws": 200}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# -- the new prior ----------------------------------------------------------------------------------------------------


def test_separate_recovers_a_product():
    row, column = normal(2, 4, seed=0).exp(), normal(2, 3, seed=1).exp()
    r, c = separate(row.square().unsqueeze(-1) * column.square().unsqueeze(-2))
    assert_close(r.unsqueeze(-1) * c.unsqueeze(-2), row.unsqueeze(-1) * column.unsqueeze(-2))


def test_separate_is_closest_in_the_logarithm():
    variance = normal(4, 3, seed=0).exp()
    r, c = separate(variance)
    remainder = variance.log() - 2 * r.log().unsqueeze(-1) - 2 * c.log()
    assert_close(remainder.sum(-1), torch.zeros(4, dtype=torch.float64))  # the conditions of least squares
    assert_close(remainder.sum(-2), torch.zeros(3, dtype=torch.float64))


def test_separate_of_no_variance_is_finite():
    r, c = separate(torch.zeros(2, 3))
    assert torch.isfinite(r.log()).all()
    assert torch.isfinite(c.log()).all()


@pytest.mark.parametrize("options", [{}, {"n_pseudo": 2}, {"batch_shape": (2,), "n_pseudo": 2}], ids=str)
def test_the_new_prior_costs_nothing_at_the_start(options):
    network = MLP(3, (4,), 2, **options)
    updated = posterior_as_prior(network, generator())
    for layer in updated.layers:
        assert isinstance(layer.prior, FixedPrior)
        n_weights = layer.prior.loc[..., 0].numel() * layer.prior.loc.shape[-1]
        assert (layer.kl_divergence() >= 0).all()
        assert layer.kl_divergence().sum() < 1e-3 * n_weights
        assert torch.equal(layer.loc, layer.prior.loc)
        assert layer.pseudo_data is None, "what they said is in the prior; new ones could say anything at no cost"


def test_the_new_prior_has_the_moments_of_the_old_posterior(perturb):
    network = perturb(MLP(3, (), 2)).float()
    updated = posterior_as_prior(network, generator())
    old, new = network.layers[0].posterior, updated.layers[0].prior.distribution
    std, new_std = old.variance.sqrt(), new.variance.sqrt()
    assert ((new.mean - old.mean).abs() < 5 * std / 16).all()  # 256 draws
    assert ((new_std / std).log().abs() < 0.2).all()


def test_the_new_prior_knows_what_the_pseudo_data_said(perturb):
    network = perturb(MLP(5, (), 2, n_pseudo=3)).float()
    new = posterior_as_prior(network, generator()).layers[0].prior.distribution
    weights = network.layers[0].sample_weight((4_000,)).detach()
    std = weights.std(0)
    assert ((new.mean - weights.mean(0)).abs() < 6 * std / 16).all()
    total, old_total = new.variance.log().mean(), std.square().log().mean()
    assert abs(total - old_total) < 0.1, "the size of the variances, if not each one"


def test_the_old_network_stays():
    network = MLP(3, (4,), 2, n_pseudo=2)
    before = [p.clone() for p in network.parameters()]
    updated = posterior_as_prior(network, generator())
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before, strict=True))
    assert not isinstance(network.layers[0].prior, FixedPrior)
    again = posterior_as_prior(network, generator())
    assert all(torch.equal(a, b) for a, b in zip(updated.parameters(), again.parameters(), strict=True))


# -- partial_fit ------------------------------------------------------------------------------------------------------


def test_pieces_come_close_to_the_whole():
    X, y = linear_table(90, n_features=6)
    X_new, y_new = linear_table(300, n_features=6, seed=1)
    model = regressor(**LINEAR, max_iter=400)
    scores = []
    for piece in (slice(0, 10), slice(10, 40), slice(40, 90)):
        model.partial_fit(X[piece], y[piece])
        scores.append(model.pred_dist(X_new).log_prob(y_new).mean())
    whole = regressor(**LINEAR, max_iter=400).fit(X, y).pred_dist(X_new).log_prob(y_new).mean()
    assert scores[-1] > scores[0] + 0.1
    assert scores[-1] > whole - 0.1


def test_an_update_remembers_what_it_no_longer_sees():
    """The second piece says nothing of the second feature; a model fitted to it alone knows nothing of that."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    X[30:, 1] = 0
    y = X @ [1.0, -2.0] + 0.1 * rng.normal(size=60)
    probe = np.array([[0.0, 1.0]])
    model = regressor(**LINEAR, max_iter=150).fit(X[:30], y[:30])
    before = model.pred_dist(probe)
    model.partial_fit(X[30:], y[30:])
    after = model.pred_dist(probe)
    assert after.mean[0] == pytest.approx(-2, abs=0.4)
    assert after.epistemic_std[0] < 3 * before.epistemic_std[0] + 0.1


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_the_noise_counts_every_row_once(noise):
    """q(τ) of the first rows is the prior of the next: its concentration grows by half of their number."""
    X, y = linear_table(50)
    model = regressor(max_iter=4, noise=noise)
    for piece, n_seen in ((slice(0, 20), 20), (slice(20, 50), 50)):
        model.partial_fit(X[piece], y[piece])
        np.testing.assert_allclose(model.likelihood_.posterior.concentration.detach(), 1 + n_seen / 2, rtol=1e-5)
    model.partial_fit(X[:10], y[:10], np.full(10, 3.0))
    np.testing.assert_allclose(model.likelihood_.posterior.concentration.detach(), 1 + 80 / 2, rtol=1e-5)


def test_input_dependent_noise_stays_faded_in():
    X, y = linear_table(30)
    model = regressor(max_iter=10, noise="input").fit(X, y)
    spread = np.ptp(model.pred_dist(X).aleatoric_std)
    assert spread > 0
    model.set_params(max_iter=1).partial_fit(X, y)
    start, stop = model.likelihood_.fade.tolist()
    assert start < stop <= 0


@pytest.mark.parametrize("options", [{}, {"n_members": 2}, {"zero_mean": True}, {"row_covariance": "dense"}], ids=str)
def test_updates_are_deterministic(options):
    X, y = linear_table(20)
    first, second = (regressor(max_iter=3, **options).fit(X, y).partial_fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict_interval(X), second.predict_interval(X))
    assert (first.partial_fit(X, y).predict(X) != second.predict(X)).all()


def test_one_new_row():
    X, y = linear_table(21)
    model = regressor(max_iter=3).fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    assert np.isfinite(model.predict_interval(X)).all()
