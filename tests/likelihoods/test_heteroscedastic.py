"""Noise that depends on the input."""

import math

import pytest
import torch
from likelihood_cases import bound, gaussian, heteroscedastic
from torch.distributions import Normal, StudentT

from reference import assert_close, gamma_nodes, normal
from vmg.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")

N, C, LIMIT = 5, 2, 1.7


def likelihood(n_updates, fade=(2, 6), **options):
    """In the middle of its life: a posterior that is not the prior."""
    made = HeteroscedasticLikelihood(C, fade=fade, limit=LIMIT, **options).double()
    with torch.no_grad():
        made.n_updates.fill_(n_updates)
        made.log_concentration.copy_(normal(*made.log_concentration.shape, seed=10) + 2)
        made.log_rate.copy_(normal(*made.log_rate.shape, seed=11))
    return made


def outputs():
    return normal(N, 2 * C, seed=0), normal(N, C, seed=1)


@pytest.mark.parametrize(("n_updates", "strength"), [(None, 0.0), (0, 0.0), (2, 0.0), (3, 0.25), (6, 1.0), (60, 1.0)])
def test_densities_against_quadrature_over_the_precision(n_updates, strength):
    """∫ q(τ) log N(y; f, e^{2sg}/τ) dτ at every strength s of the fade, and log ∫ q(τ) N(...) dτ of ``components``.

    The limited g is nothing for a Gaussian likelihood, here without a number of updates.
    """
    f, y = outputs()
    made = likelihood(6 if n_updates is None else n_updates)
    g = strength * LIMIT * torch.tanh(f[:, C:] / LIMIT)
    if n_updates is None:
        made, f = gaussian(made.posterior.concentration, made.posterior.rate), f[:, :C]
    centre, scale, df = (part.expand(N, C) for part in made.components(f))
    expected = torch.zeros(N, dtype=torch.float64)
    for c in range(C):
        tau, weight = gamma_nodes(made.posterior.concentration[c].item(), made.posterior.rate[c].item())
        given_tau = Normal(f[:, c, None], g[:, c, None].exp() * tau.rsqrt()).log_prob(y[:, c, None])
        expected += given_tau @ weight
        assert_close(
            StudentT(df[:, c], centre[:, c], scale[:, c]).log_prob(y[:, c]), (given_tau.exp() @ weight).log(), 1e-9
        )
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


@pytest.mark.parametrize("limit", [0.5, 3.0])
def test_the_log_scale_is_bounded(limit):
    f = torch.cat([torch.zeros(2, C), torch.tensor([[-1e6], [1e6]]).expand(2, C)], -1)
    likelihood = heteroscedastic(C, limit=limit)
    _, scale, _ = likelihood.components(f)
    assert_close(scale[1] / scale[0], torch.full((C,), math.exp(2 * limit)))


def noise_scale(f, limit=3.0):
    """e^g of the second half of the outputs."""
    return (limit * torch.tanh(f[..., C:] / limit)).exp()


def test_the_posterior_maximises_the_bound():
    f, y = normal(N, 2 * C, seed=1), normal(N, C, seed=2)
    likelihood = HeteroscedasticLikelihood(C, concentration=2.0, rate=0.5, step_size=1.0, fade=(-1, 0))
    likelihood.update_(f, y, N)
    whitened = (y - f[:, :C]) / noise_scale(f)
    assert_close(likelihood.posterior.rate, 0.5 + 0.5 * whitened.square().sum(0))
    likelihood.requires_grad_()
    for gradient in torch.autograd.grad(bound(likelihood, f, y), list(likelihood.parameters())):
        assert_close(gradient, torch.zeros(C), 1e-9)


def test_the_log_scale_fades_in():
    f, y = normal(N, 2 * C, seed=1), normal(N, C, seed=2)
    likelihood = HeteroscedasticLikelihood(C, fade=(2, 6))
    for n_updates in range(9):
        centre, scale, _ = likelihood.components(f)
        strength = min(max((n_updates - 2) / 4, 0), 1)
        assert_close(scale / likelihood.student()[1], noise_scale(f) ** strength)
        assert torch.equal(centre, f[:, :C])
        likelihood.update_(f, y, N)


def log_prob_and_gradient(likelihood, f, y):
    leaf = f.clone().requires_grad_()
    log_prob = likelihood.expected_log_prob(leaf, y)
    return log_prob.detach(), torch.autograd.grad(log_prob.sum(), leaf)[0]


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balance_reweighs_the_means_gradient_and_nothing_else(balance):
    """β = 1 gives the mean the gradient of constant noise of the same average variance."""
    torch.manual_seed(0)
    f, y = torch.randn(6, 2, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    plain = HeteroscedasticLikelihood(1).double()
    weighted = HeteroscedasticLikelihood(1, balance=balance).double()
    for likelihood in (plain, weighted):
        likelihood.n_updates.fill_(1)
    value, gradient = log_prob_and_gradient(plain, f, y)
    found, reweighed = log_prob_and_gradient(weighted, f, y)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(reweighed[:, 1], gradient[:, 1])
    variance = torch.exp(2 * 3.0 * torch.tanh(f[:, 1:] / 3.0))
    expected = gradient[:, :1] * (variance / variance.mean()) ** balance
    torch.testing.assert_close(reweighed[:, :1], expected)
    if balance == 1:
        tau = (plain.log_concentration - plain.log_rate).exp()
        torch.testing.assert_close(reweighed[:, :1], tau * (y - f[:, :1]) / variance.mean())


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_only_without_balance_do_steps_follow_a_gradient(balance):
    """A gradient's derivatives are symmetric; with balance those between mean and log scale are not."""
    likelihood, y = HeteroscedasticLikelihood(1, balance=balance).double(), torch.randn(3, 1).double()
    likelihood.get_buffer("n_updates").fill_(10.0)
    field = torch.zeros(6, 6, dtype=torch.float64)
    f, step = torch.randn(3, 2).double(), 1e-5
    for k in range(6):
        unit = torch.zeros(6, dtype=torch.float64)
        unit[k] = step
        up, down = (log_prob_and_gradient(likelihood, f + sign * unit.view(3, 2), y)[1].flatten() for sign in (1, -1))
        field[k] = (up - down) / (2 * step)
    asymmetry = (field - field.mT).abs().max() / field.abs().max()
    assert asymmetry < 1e-6 if balance == 0 else asymmetry > 0.01


def test_balance_out_of_range():
    with pytest.raises(ValueError, match=r"balance must be in \[0, 1\]; got 1.5"):
        HeteroscedasticLikelihood(1, balance=1.5)
