"""Likelihoods of one function: densities that sum to one, derivatives, quantiles, moments and draws that agree."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from likelihoods.scalar_cases import CASES
from vmg.likelihoods.families import Censored, Poisson

F = np.array([-1.2, -0.3, 0.4, 1.1])


@pytest.fixture(params=CASES, ids=list(CASES))
def case(request):
    return CASES[request.param]


def log_prob(likelihood, f, y, theta):
    return likelihood.log_prob(*(torch.as_tensor(np.asarray(part)) for part in (f, y, theta))).numpy()


def test_derivatives_are_those_of_the_log_density(case):
    likelihood, theta, y = case
    f = torch.tensor(F, requires_grad=True)
    targets, parameters = torch.as_tensor(y), torch.as_tensor(theta)
    (first,) = torch.autograd.grad(likelihood.log_prob(f, targets, parameters).sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    found = likelihood.derivatives(f.detach(), targets, parameters)
    np.testing.assert_allclose(found[0].numpy(), first.detach().numpy(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found[1].numpy(), second.numpy(), rtol=1e-6, atol=1e-8)


def test_parameters_have_a_gradient(case):
    likelihood, theta, y = case
    f, targets = torch.tensor(F), torch.as_tensor(y)
    if len(theta):
        leaf = torch.tensor(theta, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: likelihood.log_prob(f, targets, t), (leaf,))


def test_a_member_is_as_if_it_were_alone(case):
    likelihood, theta, y = case
    both = torch.as_tensor(np.stack([theta, theta + 0.1]))
    f = torch.as_tensor(np.stack([F, F[::-1].copy()]))
    whole = likelihood.log_prob(f, torch.as_tensor(y), both)
    for e in range(2):
        np.testing.assert_allclose(whole[e], likelihood.log_prob(f[e], torch.as_tensor(y), both[e]), rtol=1e-12)


def test_single_precision_stays_finite_far_out(case):
    likelihood, theta, y = case
    f = torch.linspace(-60, 60, 41)[:, None]
    targets, parameters = torch.as_tensor(y).float(), torch.as_tensor(theta).float()
    for part in (likelihood.log_prob(f, targets, parameters), *likelihood.derivatives(f, targets, parameters)):
        assert torch.isfinite(part).all() or likelihood.name in ("beta", "censored")


def test_it_sums_to_one_with_the_stated_moments(case):
    likelihood, theta, _ = case
    for f in F:
        one = np.array([f])
        if likelihood.discrete:
            index = np.arange({"binomial": 7, "ordinal": 4}.get(likelihood.name, 600.0))
            values = likelihood.values(index)
            p = np.exp(log_prob(likelihood, one, likelihood.targets(values), theta))
            total, mean, square = p.sum(), p @ values, p @ values**2
        else:

            def density(y, power, f=f):
                target = likelihood.targets(np.array([y]))
                return y**power * np.exp(log_prob(likelihood, np.array([f]), target, theta)[0])

            low, high = (-np.inf, np.inf) if likelihood.name == "censored" else likelihood.support
            total, mean, square = (integrate.quad(density, low, high, (power,), limit=200)[0] for power in range(3))
        np.testing.assert_allclose(total, 1, rtol=1e-6)
        np.testing.assert_allclose(mean, likelihood.mean(one, theta)[0], rtol=1e-6)
        np.testing.assert_allclose(square - mean**2, likelihood.variance(one, theta)[0], rtol=1e-5)


def test_the_cdf_is_the_sum_of_probabilities(case):
    likelihood, theta, _ = case
    if likelihood.discrete:
        index = np.arange({"binomial": 7, "ordinal": 4}.get(likelihood.name, 40.0))
        p = np.exp(log_prob(likelihood, F[1:2], likelihood.targets(likelihood.values(index)), theta))
        np.testing.assert_allclose(likelihood.cdf(index, F[1], theta), np.cumsum(p), rtol=1e-8)
        assert likelihood.cdf(np.array(-1.0), F[1], theta) == 0
    else:
        y = 0.9 * likelihood.mean(F[1:2], theta)
        step = 1e-5 * abs(y)
        slope = (likelihood.cdf(y + step, F[1:2], theta) - likelihood.cdf(y - step, F[1:2], theta)) / (2 * step)
        np.testing.assert_allclose(
            np.log(slope), log_prob(likelihood, F[1:2], likelihood.targets(y), theta), rtol=1e-5, atol=1e-6
        )


def test_draws_have_the_moments(case):
    likelihood, theta, _ = case
    f = np.full(40_000, 0.4)
    drawn = likelihood.values(likelihood.sample(f, theta, np.random.default_rng(0)))
    mean, variance = likelihood.mean(f[:1], theta)[0], likelihood.variance(f[:1], theta)[0]
    assert abs(drawn.mean() - mean) < 4 * np.sqrt(variance / len(f))
    np.testing.assert_allclose(drawn.var(), variance, rtol=0.1)


def test_impossible_targets_are_told():
    for name, bad in (("poisson", [-1.0, 0.5, np.inf]), ("beta", [0.0, 1.0]), ("ordinal", [5.0])):
        assert np.isnan(CASES[name][0].targets(np.array(bad))).all()


def test_known_families():
    likelihood, theta, _ = CASES["negative-binomial"]
    r, rate = np.exp(theta[0]), 3 * np.exp(F)
    y = np.array([0.0, 2.0, 5.0, 9.0])
    np.testing.assert_allclose(log_prob(likelihood, F, y, theta), stats.nbinom.logpmf(y, r, r / (r + rate)), rtol=1e-9)
    many = log_prob(likelihood, F, y, np.array([18.0]))  # of size e¹⁸: a Poisson
    np.testing.assert_allclose(many, log_prob(Poisson(3.0, 60.0), F, y, np.zeros(0)), rtol=1e-6)
    seen = log_prob(Censored(2.0, 3.0), F, np.stack([y, y], 1), np.array([-0.4]))
    np.testing.assert_allclose(seen, stats.norm.logpdf(y, 2 + 3 * F, 3 * np.exp(-0.4)), rtol=1e-9)


def test_a_rate_is_at_most_its_ceiling_and_its_logarithm_goes_on():
    counts, bend = Poisson(3.0, 60.0), np.log(20.0)
    means = counts.mean(np.array([bend - 1, bend, bend + 2]), np.zeros(0))
    np.testing.assert_allclose(means, [60 / np.e, 60, 60], rtol=1e-12)
    np.testing.assert_allclose(counts.log_rate(torch.tensor([bend + 2.0])), np.log(180), rtol=1e-6)
