"""The output layer of one function: exact for normal noise, else at the optimum that a slow search finds."""

import numpy as np
import pytest
import torch
from scipy import integrate, optimize

from likelihoods.scalar_cases import CASES
from vmg.likelihoods.families import Poisson
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
    """Rows of a small table whose targets the likelihood made, and precisions of the prior."""
    rng = np.random.default_rng(seed)
    likelihood, theta, _ = CASES[name]
    phi = np.concatenate([rng.normal(size=(N, D - 1)), np.ones((N, 1))], 1) / np.sqrt(D)
    f = phi @ rng.normal(size=D)
    drawn = likelihood.values(likelihood.sample(f, theta, rng))
    y = likelihood.targets(drawn.clip(0.01, 0.99) if name == "beta" else drawn)
    if name == "censored":
        y[::3, 1], y[1::4, 0] = np.inf, -np.inf
    weight, precision = rng.uniform(0.5, 2, N), rng.uniform(0.5, 2, D)
    parts = (torch.as_tensor(part) for part in (phi, y, weight))
    return ScalarRows(*parts, LikelihoodAt(likelihood, torch.as_tensor(theta))), torch.as_tensor(precision)


def bound_of(rows, precision, posterior):
    return scalar_bound(rows, precision, posterior, rows.features @ posterior.covariance)


def best_of(rows, precision, n_steps=400, tolerance=1e-12):
    return optimise(None, rows, GaussianPrior.from_precision(precision), n_steps, tolerance)


def seen(rows):
    """Every target is seen, not a bound."""
    return rows._replace(y=torch.stack([rows.y[:, 0].nan_to_num(neginf=1.0)] * 2, 1))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_fixed_point_is_the_optimum_of_a_slow_search(name):
    rows, precision = problem(name)
    found, lower = best_of(rows, precision), np.tril_indices(D)

    def posterior(values):
        root = np.zeros((D, D))
        root[lower] = values[D:]
        np.fill_diagonal(root, np.exp(root.diagonal()))
        return ScalarPosterior(torch.as_tensor(values[:D]), torch.as_tensor(root))

    def loss(values):
        return -bound_of(rows, precision, posterior(values)).item()

    best = optimize.minimize(loss, np.zeros(D + len(lower[0])), method="BFGS", options={"gtol": 1e-6})
    ours = bound_of(rows, precision, found).item()
    assert ours >= -best.fun - 1e-4  # what eleven nodes leave of the mean
    np.testing.assert_allclose(found.mean.numpy(), best.x[:D], atol=2e-3)
    np.testing.assert_allclose(found.covariance.numpy(), posterior(best.x).covariance.numpy(), atol=2e-3)


def test_normal_noise_is_exact_in_one_step():
    rows, precision = problem("censored")
    rows, prior = seen(rows), GaussianPrior.from_precision(precision)
    phi, likelihood, sigma = rows.features, rows.likelihood.likelihood, rows.likelihood.theta.exp()
    targets = (rows.y[:, 0] - likelihood.level) / likelihood.scale
    omega = rows.weight / sigma**2
    A = torch.diag(precision) + phi.mT @ (phi * omega[:, None])
    m = torch.linalg.solve(A, phi.mT @ (omega * targets))
    start = ScalarPosterior(torch.zeros(D, dtype=torch.float64), torch.linalg.cholesky(torch.diag(precision)))
    found, _ = newton_step(start, rows, prior)
    np.testing.assert_allclose(found.mean, m, rtol=1e-9)
    np.testing.assert_allclose(found.root @ found.root.mT, A, rtol=1e-9)
    alike = rows._replace(weight=torch.ones_like(rows.weight))
    exact, _ = newton_step(start, alike, prior)
    covariance = phi / precision @ phi.mT + torch.diag(alike.weight * sigma**2)
    marginal = torch.distributions.MultivariateNormal(torch.zeros_like(targets), covariance)
    evidence = marginal.log_prob(targets) - N * np.log(likelihood.scale)
    np.testing.assert_allclose(bound_of(alike, precision, exact), evidence, rtol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_bound_is_below_the_evidence(name):
    rows, precision = problem(name)
    rows = rows._replace(features=rows.features[:, :1], weight=torch.ones_like(rows.weight))
    found = best_of(rows, precision := precision[:1])
    bound = bound_of(rows, precision, found).item()

    def joint(w):
        prior = 0.5 * np.log(precision.item() / (2 * np.pi)) - 0.5 * precision.item() * w**2
        return np.exp(rows.likelihood.log_prob(rows.features[:, 0] * w, rows.y).sum().item() + prior - bound)

    centre, width = found.mean.item(), found.covariance.item() ** 0.5
    mass, _ = integrate.quad(joint, centre - 12 * width, centre + 12 * width, points=[centre])
    assert -1e-6 <= np.log(mass) < 0.2


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_are_those_of_the_bound_at_a_fixed_posterior(name):
    rows, precision = problem(name)
    found, at = best_of(rows, precision), (rows.features, precision, rows.likelihood.theta)
    leaves = [one.clone().requires_grad_() for one in at]

    def value(features, given, theta):
        moved = rows._replace(features=features, likelihood=LikelihoodAt(rows.likelihood.likelihood, theta))
        return scalar_bound(moved, given, found, features.detach() @ found.covariance)

    value(*leaves).backward()
    rng = np.random.default_rng(1)
    for variable, gradient in zip(at, (leaf.grad for leaf in leaves), strict=True):
        if not variable.numel():
            continue
        direction, step = torch.as_tensor(rng.normal(size=variable.shape)), 1e-5
        ends = []
        for sign in (1, -1):
            moved = [v + sign * step * direction if v is variable else v for v in at]
            ends.append(value(*moved).item())
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum().item(), slope, rtol=2e-3, atol=1e-4)


def test_members_side_by_side_are_members_alone():
    rows, precision = problem("negative-binomial")
    several = rows._replace(
        features=torch.stack([rows.features, rows.features.flip(0)]), weight=rows.weight.expand(2, -1)
    )
    whole = best_of(several, torch.stack([precision, 2 * precision]), 30, 0.0)
    for e in range(2):
        alone = best_of(rows._replace(features=several.features[e]), (1 + e) * precision, 30, 0.0)
        np.testing.assert_allclose(whole.mean[e], alone.mean, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(whole.root[e], alone.root, rtol=1e-6, atol=1e-8)


def test_a_weight_counts_as_so_many_rows():
    rows, precision = problem("poisson")
    counts = torch.as_tensor(np.random.default_rng(0).integers(1, 4, N))
    weighted = best_of(rows._replace(weight=counts.double()), precision)
    features, y = (part.repeat_interleave(counts, 0) for part in rows[:2])
    repeated = best_of(ScalarRows(features, y, torch.ones_like(y), rows.likelihood), precision)
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-9)


def test_the_posterior_of_some_rows_is_the_prior_of_the_rest():
    """Exact where the noise is normal."""
    rows, precision = problem("censored")
    rows = seen(rows)
    parts = [ScalarRows(*(one[part] for one in rows[:3]), rows.likelihood) for part in (slice(10), slice(10, None))]
    first = best_of(parts[0], precision)
    both, whole = optimise(first, parts[1], first.natural(), 3), best_of(rows, precision)
    np.testing.assert_allclose(both.mean, whole.mean, rtol=1e-8)
    np.testing.assert_allclose(both.root, whole.root, rtol=1e-8)


def test_an_absurd_target_does_not_break_the_search():
    rows, precision = problem("poisson")
    rows.y[3] = 1e7
    rows = rows._replace(likelihood=LikelihoodAt(Poisson(3.0, 3e7), torch.zeros(0)))
    prior = GaussianPrior.from_precision(precision)
    bounds, posterior = [], None
    for _ in range(60):
        posterior, _ = newton_step(posterior, rows, prior)
        bounds.append(bound_of(rows, precision, posterior).item())
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
