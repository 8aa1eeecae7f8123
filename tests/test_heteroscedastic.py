"""Noise that depends on the input; its closed forms are also tested among the others, in test_likelihoods.py."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.func import functional_call

from quick import regressor
from reference import assert_close, gamma_nodes, normal
from vmg.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood

N, C, LIMIT = 5, 2, 1.7


def likelihood(n_updates, fade=(2, 6), **options):
    """In the middle of its life: a posterior that is not the prior."""
    made = HeteroscedasticLikelihood(C, fade=fade, limit=LIMIT, **options).double()
    with torch.no_grad():
        made.n_updates.fill_(n_updates)
        made.log_concentration.copy_(normal(*made.log_concentration.shape, seed=10) + 2)
        made.log_rate.copy_(normal(*made.log_rate.shape, seed=11))
    return made


def outputs(*leading, seed=0):
    return normal(*leading, N, 2 * C, seed=seed), normal(*leading, N, C, seed=seed + 1)


@pytest.mark.parametrize(("n_updates", "strength"), [(0, 0.0), (2, 0.0), (3, 0.25), (6, 1.0), (60, 1.0)])
def test_expected_log_prob_against_quadrature(n_updates, strength):
    """∫ q(τ) log N(y; f, e^{2sg}/τ) dτ at every strength s of the fade, g being limited."""
    made, (f, y) = likelihood(n_updates), outputs()
    expected = torch.zeros(N, dtype=torch.float64)
    for c in range(C):
        tau, weight = gamma_nodes(made.posterior.concentration[c].item(), made.posterior.rate[c].item())
        for i in range(N):
            g = strength * LIMIT * math.tanh(f[i, C + c].item() / LIMIT)
            expected[i] += Normal(f[i, c], math.exp(g) * tau.rsqrt()).log_prob(y[i, c]) @ weight
    assert_close(made.expected_log_prob(f, y), expected, 1e-9)


def test_without_log_scales_it_is_the_gaussian():
    f, y = outputs()
    f[:, C:] = 0
    made, plain = likelihood(9), GaussianLikelihood(C).double()
    plain.load_state_dict({name: value for name, value in made.state_dict().items() if name != "fade"})
    for _ in range(3):
        assert_close(made.expected_log_prob(f, y), plain.expected_log_prob(f[:, :C], y))
        assert_close(made.kl_divergence(), plain.kl_divergence())
        for a, b in zip(made.components(f), plain.components(f[:, :C]), strict=True):
            assert_close(a.expand(N, C), b.expand(N, C))
        made.update_(f, y, 3 * N)
        plain.update_(f[:, :C], y, 3 * N)


def test_before_the_fade_log_scales_have_no_gradient():
    f, y = outputs()
    for n_updates, moved in ((0, False), (2, False), (3, True), (6, True)):
        leaf = f.clone().requires_grad_()
        likelihood(n_updates).expected_log_prob(leaf, y).sum().backward()
        assert leaf.grad[:, :C].all()
        assert leaf.grad[:, C:].all() if moved else not leaf.grad[:, C:].any()


@pytest.mark.parametrize("n_updates", [4, 9])
def test_gradcheck(n_updates):
    made, (f, y) = likelihood(n_updates), outputs()
    made.requires_grad_()
    parameters = dict(made.named_parameters())

    class Expected(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made

        def forward(self, f, y):
            return self.inner.expected_log_prob(f, y)

    module = Expected()

    def function(f, y, *values):
        named = {f"inner.{name}": value for name, value in zip(parameters, values, strict=True)}
        return functional_call(module, named, (f, y))

    leaves = [t.clone().requires_grad_() for t in (f, y, *(p.detach() for p in parameters.values()))]
    assert torch.autograd.gradcheck(function, leaves)


def test_a_batch_is_a_loop():
    f, y = outputs(3)
    made = likelihood(4, batch_shape=(3,))
    weight = normal(3, N, seed=5).exp()
    together, together_components = made.expected_log_prob(f, y), made.components(f)
    singles = []
    for k in range(3):
        single = likelihood(4)
        with torch.no_grad():
            single.log_concentration.copy_(made.log_concentration[k])
            single.log_rate.copy_(made.log_rate[k])
        assert_close(together[k], single.expected_log_prob(f[k], y[k]))
        for whole, part in zip(together_components, single.components(f[k]), strict=True):
            assert_close(whole[k], part)
        singles.append(single)
    made.update_(f, y, 20.0, weight)
    for k, single in enumerate(singles):
        single.update_(f[k], y[k], 20.0, weight[k])
        assert_close(made.log_rate[k], single.log_rate)
        assert_close(made.log_concentration[k], single.log_concentration)


def test_components_give_the_predictive_density():
    """p(y | f) with τ integrated out is the Student-t that ``components`` describes."""
    made, (f, y) = likelihood(9), outputs()
    centre, scale, df = (part.expand(N, C) for part in made.components(f))
    for c in range(C):
        tau, weight = gamma_nodes(made.posterior.concentration[c].item(), made.posterior.rate[c].item())
        g = LIMIT * torch.tanh(f[:, C + c] / LIMIT)
        given_tau = Normal(f[:, c, None], g.exp()[:, None] * tau.rsqrt()).log_prob(y[:, c, None])
        student = torch.distributions.StudentT(df[:, c], centre[:, c], scale[:, c])
        assert_close(student.log_prob(y[:, c]), (given_tau.exp() @ weight).log(), 1e-9)


def test_wrong_shapes():
    f, y = outputs()
    with pytest.raises(ValueError, match="y must have the shape of the network's output"):
        likelihood(9).expected_log_prob(f, y[:, :1])


# -- as an option of the regressor ------------------------------------------------------------------------------------


def noisy_table(n, seed):
    """y = x + noise, ten times as wide on the right as on the left."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=n)
    scale = 0.1 * 10 ** ((x + 1) / 2)
    return x[:, None], x + scale * rng.normal(size=n), scale


@pytest.fixture(scope="module")
def fits():
    X, y, _ = noisy_table(300, 0)
    options = {"hidden_layer_sizes": (16,), "n_pseudo": 0, "max_iter": 400, "learning_rate_init": 0.05}
    return {noise: regressor(noise=noise, **options).fit(X, y) for noise in ("constant", "input")}


def test_noise_that_depends_on_the_input_is_found(fits):
    X, y, scale = noisy_table(500, 1)
    density = {noise: model.pred_dist(X).log_prob(y).mean() for noise, model in fits.items()}
    truth = Normal(torch.tensor(X[:, 0]), torch.tensor(scale)).log_prob(torch.tensor(y)).mean().item()
    assert density["input"] > density["constant"] + 0.2
    assert density["input"] > truth - 0.1
    assert density["input"] < truth + 0.05
    found = fits["input"].pred_dist(X).aleatoric_std
    assert np.corrcoef(np.log(found), np.log(scale))[0, 1] > 0.9
    assert np.ptp(fits["constant"].pred_dist(X).aleatoric_std) < 1e-6


def test_intervals_follow_the_noise(fits):
    X, y, scale = noisy_table(2_000, 2)
    quiet, loud = scale < 0.2, scale > 0.5
    covered = {}
    for noise, model in fits.items():
        low, high = model.predict_interval(X, 0.8).T
        inside = (low < y) & (y < high)
        covered[noise] = inside[quiet].mean(), inside[loud].mean()
    assert abs(np.array(covered["input"]) - 0.8).max() < 0.1
    assert covered["constant"][0] > 0.95, "one width for all is too wide here"
    assert covered["constant"][1] < 0.7, "and too narrow there"


def test_constant_noise_is_not_mistaken():
    """Where noise is the same everywhere, the option costs little."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(250, 1))
    y = X[:, 0] + 0.3 * rng.normal(size=250)
    options = {"hidden_layer_sizes": (16,), "max_iter": 300, "learning_rate_init": 0.05}
    density = []
    for noise in ("constant", "input"):
        model = regressor(**options, noise=noise).fit(X[:150], y[:150])
        density.append(model.pred_dist(X[150:]).log_prob(y[150:]).mean())
    assert density[1] > density[0] - 0.1


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balance_reweighs_the_means_gradient_and_nothing_else(balance):
    """β = 1 gives the mean the gradient of constant noise of the same average variance."""
    torch.manual_seed(0)
    f, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    plain = HeteroscedasticLikelihood(1).double()
    weighted = HeteroscedasticLikelihood(1, balance=balance).double()
    for likelihood in (plain, weighted):
        likelihood.n_updates.fill_(1)
    value, gradient = plain.score(f, y)
    found, reweighed = weighted.score(f, y)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(reweighed[:, 1], gradient[:, 1])
    variance = torch.exp(2 * 3.0 * torch.tanh(f[:, 1:] / 3.0))
    expected = gradient[:, :1] * (variance / variance.mean()) ** balance
    torch.testing.assert_close(reweighed[:, :1], expected)
    if balance == 1:
        tau = (plain.log_concentration - plain.log_rate).exp()
        torch.testing.assert_close(reweighed[:, :1], tau * (y - f[:, :1]) / variance.mean())
    leaf = f.clone().requires_grad_()
    (through_autograd,) = torch.autograd.grad(weighted.expected_log_prob(leaf, y).sum(), leaf)
    torch.testing.assert_close(through_autograd, reweighed)


def test_balance_out_of_range():
    with pytest.raises(ValueError, match=r"balance must be in \[0, 1\]; got 1.5"):
        HeteroscedasticLikelihood(1, balance=1.5)
