"""The output layer of one function: exact for normal noise, else at the optimum that a slow search finds."""

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

from likelihoods.scalar_cases import CASES
from vmg.likelihoods.families import Censored, Poisson
from vmg.likelihoods.scalar import LikelihoodAt
from vmg.math.scalar_evidence import (
    GaussianPrior,
    ScalarPosterior,
    ScalarRows,
    mean_log_prob,
    newton_step,
    optimise,
    scalar_bound,
)

N, D = 24, 3
LIKELIHOODS = list(CASES)


def problem(name, seed=0):
    """Features, targets, weights and precisions of a small table whose targets the likelihood made."""
    rng = np.random.default_rng(seed)
    likelihood, theta, _ = CASES[name]
    phi = np.concatenate([rng.normal(size=(N, D - 1)), np.ones((N, 1))], 1) / np.sqrt(D)
    f = phi @ rng.normal(size=D)
    drawn = likelihood.values(likelihood.sample(f, theta, rng))
    y = likelihood.targets(drawn.clip(0.01, 0.99) if name == "beta" else drawn)
    if name == "censored":
        y[::3, 1], y[1::4, 0] = np.inf, -np.inf
    weight, precision = rng.uniform(0.5, 2, N), rng.uniform(0.5, 2, D)
    scatter = LikelihoodAt(likelihood, torch.as_tensor(theta))
    return torch.as_tensor(phi), torch.as_tensor(y), torch.as_tensor(weight), torch.as_tensor(precision), scatter


def bound_of(phi, y, weight, precision, scatter, posterior):
    return scalar_bound(ScalarRows(phi, y, weight, scatter), precision, posterior, phi @ posterior.covariance)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_fixed_point_is_the_optimum_of_a_slow_search(name):
    phi, y, weight, precision, scatter = problem(name)
    found = optimise(None, ScalarRows(phi, y, weight, scatter), GaussianPrior.from_precision(precision), 400, 1e-12)
    rows, columns = np.tril_indices(D)

    def posterior(values):
        root = np.zeros((D, D))
        root[rows, columns] = values[D:]
        np.fill_diagonal(root, np.exp(root.diagonal()))
        return ScalarPosterior(torch.as_tensor(values[:D]), torch.as_tensor(root))

    def loss(values):
        return -bound_of(phi, y, weight, precision, scatter, posterior(values)).item()

    best = optimize.minimize(loss, np.zeros(D + len(rows)), method="BFGS", options={"gtol": 1e-6})
    ours = bound_of(phi, y, weight, precision, scatter, found).item()
    assert ours >= -best.fun - 1e-4  # what eleven nodes leave of the mean
    np.testing.assert_allclose(found.mean.numpy(), best.x[:D], atol=2e-3)
    np.testing.assert_allclose(found.covariance.numpy(), posterior(best.x).covariance.numpy(), atol=2e-3)


def test_normal_noise_is_exact_in_one_step():
    phi, y, weight, precision, scatter = problem("censored")
    y = torch.stack([y[:, 0].nan_to_num(neginf=1.0), y[:, 0].nan_to_num(neginf=1.0)], 1)  # every target is seen
    likelihood, sigma = scatter.likelihood, scatter.theta.exp()
    targets = (y[:, 0] - likelihood.level) / likelihood.scale
    omega = weight / sigma**2
    A = torch.diag(precision) + phi.mT @ (phi * omega[:, None])
    m = torch.linalg.solve(A, phi.mT @ (omega * targets))
    start = ScalarPosterior(torch.zeros(D, dtype=torch.float64), torch.linalg.cholesky(torch.diag(precision)))
    found, _ = newton_step(start, ScalarRows(phi, y, weight, scatter), GaussianPrior.from_precision(precision))
    np.testing.assert_allclose(found.mean, m, rtol=1e-9)
    np.testing.assert_allclose(found.root @ found.root.mT, A, rtol=1e-9)
    ones = torch.ones_like(weight)
    exact, _ = newton_step(start, ScalarRows(phi, y, ones, scatter), GaussianPrior.from_precision(precision))
    covariance = phi / precision @ phi.mT + torch.diag(ones * sigma**2)
    marginal = torch.distributions.MultivariateNormal(torch.zeros_like(targets), covariance)
    evidence = marginal.log_prob(targets) - N * np.log(likelihood.scale)
    np.testing.assert_allclose(bound_of(phi, y, ones, precision, scatter, exact), evidence, rtol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_bound_is_below_the_evidence(name):
    phi, y, weight, precision, scatter = problem(name)
    phi, precision, ones = phi[:, :1], precision[:1], torch.ones_like(weight)
    found = optimise(None, ScalarRows(phi, y, ones, scatter), GaussianPrior.from_precision(precision), 200, 1e-10)
    bound = bound_of(phi, y, ones, precision, scatter, found).item()

    def joint(w):
        prior = 0.5 * np.log(precision.item() / (2 * np.pi)) - 0.5 * precision.item() * w**2
        return np.exp(scatter.log_prob(phi[:, 0] * w, y).sum().item() + prior - bound)

    centre, width = found.mean.item(), found.covariance.item() ** 0.5
    mass, _ = integrate.quad(joint, centre - 12 * width, centre + 12 * width, points=[centre])
    assert -1e-6 <= np.log(mass) < 0.2


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_are_those_of_the_bound_at_a_fixed_posterior(name):
    phi, y, weight, precision, scatter = problem(name)
    found = optimise(None, ScalarRows(phi, y, weight, scatter), GaussianPrior.from_precision(precision), 100, 1e-10)
    theta = scatter.theta.clone().requires_grad_()
    leaf, a = phi.clone().requires_grad_(), precision.clone().requires_grad_()

    def value(features, given, parameters):
        spread = features.detach() @ found.covariance
        return scalar_bound(
            ScalarRows(features, y, weight, LikelihoodAt(scatter.likelihood, parameters)), given, found, spread
        )

    value(leaf, a, theta).backward()
    rng = np.random.default_rng(1)
    for variable, gradient in ((phi, leaf.grad), (precision, a.grad), (scatter.theta, theta.grad)):
        if not variable.numel():
            continue
        direction, step = torch.as_tensor(rng.normal(size=variable.shape)), 1e-5
        ends = []
        for sign in (1, -1):
            moved = [v + sign * step * direction if v is variable else v for v in (phi, precision, scatter.theta)]
            ends.append(value(*moved).item())
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum().item(), slope, rtol=2e-3, atol=1e-4)


def test_members_side_by_side_are_members_alone():
    phi, y, weight, precision, scatter = problem("negative-binomial")
    several = torch.stack([phi, phi.flip(0)])
    weights, priors = weight.expand(2, -1), GaussianPrior.from_precision(torch.stack([precision, 2 * precision]))
    whole = optimise(None, ScalarRows(several, y, weights, scatter), priors, 30)
    for e in range(2):
        alone = optimise(
            None, ScalarRows(several[e], y, weight, scatter), GaussianPrior.from_precision((1 + e) * precision), 30
        )
        np.testing.assert_allclose(whole.mean[e], alone.mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(whole.root[e], alone.root, rtol=1e-6, atol=1e-8)


def test_a_weight_counts_as_so_many_rows():
    phi, y, _, precision, scatter = problem("poisson")
    weight = torch.as_tensor(np.random.default_rng(0).integers(1, 4, N))
    prior = GaussianPrior.from_precision(precision)
    weighted = optimise(None, ScalarRows(phi, y, weight.double(), scatter), prior, 50)
    repeated = optimise(
        None,
        ScalarRows(
            phi.repeat_interleave(weight, 0),
            y.repeat_interleave(weight),
            torch.ones(int(weight.sum()), dtype=torch.float64),
            scatter,
        ),
        prior,
        50,
    )
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-9)


def test_the_posterior_of_some_rows_is_the_prior_of_the_rest():
    """Exact where the noise is normal."""
    phi, y, weight, precision, scatter = problem("censored")
    y = torch.stack([y[:, 0].nan_to_num(neginf=1.0)] * 2, 1)
    prior = GaussianPrior.from_precision(precision)
    whole = optimise(None, ScalarRows(phi, y, weight, scatter), prior, 3)
    first = optimise(None, ScalarRows(phi[:10], y[:10], weight[:10], scatter), prior, 3)
    both = optimise(first, ScalarRows(phi[10:], y[10:], weight[10:], scatter), first.natural(), 3)
    np.testing.assert_allclose(both.mean, whole.mean, rtol=1e-8)
    np.testing.assert_allclose(both.root, whole.root, rtol=1e-8)


def test_an_absurd_target_does_not_break_the_search():
    phi, y, weight, precision, _ = problem("poisson")
    y = y.clone()
    y[3] = 1e7
    scatter = LikelihoodAt(Poisson(3.0, 3e7), torch.zeros(0))
    prior = GaussianPrior.from_precision(precision)
    bounds, posterior = [], None
    for _ in range(60):
        posterior, _ = newton_step(posterior, ScalarRows(phi, y, weight, scatter), prior)
        bounds.append(bound_of(phi, y, weight, precision, scatter, posterior).item())
    assert np.isfinite(bounds).all() and torch.isfinite(posterior.mean).all()
    assert bounds[-1] == max(bounds) or np.isclose(bounds[-1], max(bounds), rtol=1e-3)


def test_the_mean_log_probability_is_an_integral():
    likelihood, theta, _ = CASES["negative-binomial"]
    y, centre, variance = torch.tensor([2.0]), torch.tensor([0.3]), torch.tensor([0.5])
    scatter = LikelihoodAt(likelihood, torch.as_tensor(theta))
    parts = (part.double() for part in (y, centre, variance))
    found = mean_log_prob(scatter, *parts, 25).item()

    def joint(f):
        return np.exp(scatter.log_prob(torch.tensor([f]), y.double()).item() - 0.5 * (f - 0.3) ** 2 / 0.5)

    exact, _ = integrate.quad(joint, -6, 6)
    np.testing.assert_allclose(found, np.log(exact / np.sqrt(2 * np.pi * 0.5)), rtol=1e-6)


def test_censoring_alone_tells_something():
    likelihood = Censored(0.0, 1.0)
    phi, precision = torch.ones(50, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    y = torch.tensor([[2.0, np.inf]], dtype=torch.float64).expand(50, 2)
    scatter = LikelihoodAt(likelihood, torch.tensor([0.0]).double())
    found = optimise(
        None, ScalarRows(phi, y, torch.ones(50).double(), scatter), GaussianPrior.from_precision(precision), 60
    )
    assert found.mean.item() > 2
