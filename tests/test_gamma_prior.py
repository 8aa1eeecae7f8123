"""Gamma priors of the precisions, against quadrature, Monte Carlo and their conjugate posterior."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Gamma, kl_divergence

from prior_cases import (
    C,
    PriorKL,
    R,
    at_conjugate_posterior,
    gradient_prior,
    isotropic,
    over_batches,
    over_means,
    random_posterior,
)
from reference import (
    assert_close,
    family_parameters,
    gamma_nodes,
    members,
    normal,
)
from vmg.covariance import Diagonal
from vmg.priors import GammaPrior, gamma_kl

pytestmark = pytest.mark.usefixtures("double_precision")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(*[st.floats(0.05, 50)] * 4)
def test_gamma_kl(a, b, prior_a, prior_b):
    a, b, prior_a, prior_b = (
        torch.tensor([a, 2 * a]),
        torch.tensor([b, b]),
        torch.tensor(prior_a),
        torch.tensor(prior_b),
    )
    expected = kl_divergence(Gamma(a, b), Gamma(prior_a, prior_b))
    actual = gamma_kl(a, b, prior_a, prior_b)
    assert_close(actual, expected, 1e-9)
    assert (actual > -1e-9).all()


@over_means
@pytest.mark.parametrize(("row", "column"), [("diagonal", "diagonal"), ("rank_one", "dense"), ("dense", "rank_one")])
def test_gamma_prior_against_quadrature_over_both_precisions(row, column, zero_mean):
    M, U, V, q = random_posterior(row, column, zero_mean=zero_mean)
    a, b = torch.tensor([2.5, 4.0]), torch.tensor([1.3, 0.7])
    tau_row, weight_row = gamma_nodes(2.5, 1.3, n=120)
    tau_column, weight_column = gamma_nodes(4.0, 0.7, n=120)
    assert_close(weight_row.sum(), torch.tensor(1.0))
    grid_row, grid_column = torch.meshgrid(tau_row, tau_column, indexing="ij")
    kl_given_tau = kl_divergence(q, isotropic(grid_row.rsqrt(), grid_column.rsqrt()))
    expected = weight_row @ kl_given_tau @ weight_column
    expected = expected + kl_divergence(Gamma(a, b), Gamma(torch.tensor(1.0), torch.tensor(0.5))).sum()
    assert_close(gradient_prior(a, b).kl_divergence(M, U, V), expected, 1e-9)


@over_batches
@over_means
def test_conjugate_posterior_solves_both_updates_at_once(batch_shape, zero_mean):
    *_, q = random_posterior(batch_shape=batch_shape, zero_mean=zero_mean)
    prior = GammaPrior(1.5, 0.7)
    energy = (q.variance + q.mean.square()).sum((-2, -1))  # E‖W‖²
    a, b = prior.posterior(energy, R * C)
    assert_close(a, torch.full((*batch_shape, 2), 1.5 + R * C / 2))
    assert_close(b, 0.7 + 0.5 * (a / b).flip(-1) * energy.unsqueeze(-1))


@pytest.mark.parametrize(("concentration", "rate"), [(1.0, 0.5), (3.0, 2.0), (0.2, 1e-3)])
@over_means
@over_batches
def test_conjugate_is_the_fixed_point_of_the_gradient_version(concentration, rate, zero_mean, batch_shape):
    M, U, V, _ = random_posterior(batch_shape=batch_shape, zero_mean=zero_mean)
    conjugate = GammaPrior(concentration, rate)
    learned = at_conjugate_posterior(conjugate, M, U, V)
    kl = learned.kl_divergence(M, U, V)
    assert kl.shape == batch_shape
    assert_close(conjugate.kl_divergence(M, U, V), kl)
    for gradient in torch.autograd.grad(kl.sum(), (learned.log_concentration, learned.log_rate)):
        assert_close(gradient, torch.zeros_like(gradient), 1e-9)


def test_conjugate_is_a_minimum_of_the_gradient_version():
    M, U, V, _ = random_posterior()
    learned = at_conjugate_posterior(GammaPrior(), M, U, V)
    names = ("log_concentration", "log_rate")
    point = torch.cat([getattr(learned, name).detach() for name in names])

    def kl(parameters):
        a, b = parameters.split(2)
        moved = {"log_concentration": a, "log_rate": b}
        return torch.func.functional_call(PriorKL(learned), {f"prior.{k}": v for k, v in moved.items()}, (M, U, V))

    assert torch.linalg.eigvalsh(torch.autograd.functional.hessian(kl, point)).min() > 1e-3
    best = kl(point)
    for seed, size in itertools.product(range(20), (0.01, 0.3, 2.0)):
        assert kl(point + size * normal(4, seed=seed)) > best


def test_conjugate_gradients_are_those_of_the_gradient_version():
    M = normal(R, C, seed=1).requires_grad_()
    scales = [family_parameters("diagonal", n, seed=n)[0].requires_grad_() for n in (R, C)]
    U, V = (Diagonal(scale) for scale in scales)
    conjugate = GammaPrior()
    learned = at_conjugate_posterior(conjugate, M, U, V)
    actual, expected = (torch.autograd.grad(p.kl_divergence(M, U, V), (M, *scales)) for p in (conjugate, learned))
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e)


def test_gamma_prior_of_a_batch_is_a_loop():
    M, U, V, _ = random_posterior("diagonal", "diagonal", (2, 3))
    a, b = 1 + normal(2, 3, 2, seed=5).abs(), 1 + normal(2, 3, 2, seed=6).abs()
    conjugate, learned = GammaPrior(), gradient_prior(a, b)
    kls = conjugate.kl_divergence(M, U, V), learned.kl_divergence(M, U, V)
    for i in members((2, 3)):
        one = M[i], Diagonal(U.scale[i]), Diagonal(V.scale[i])
        assert_close(kls[0][i], conjugate.kl_divergence(*one))
        assert_close(kls[1][i], gradient_prior(a[i], b[i]).kl_divergence(*one))


def test_a_certain_gamma_posterior_is_a_fixed_prior():
    M, U, V, q = random_posterior()
    mean = torch.tensor([3.0, 0.2])
    sharp = gradient_prior(1e9 * mean, torch.full((2,), 1e9))
    own = kl_divergence(Gamma(1e9 * mean, torch.tensor(1e9)), Gamma(torch.tensor(1.0), torch.tensor(0.5))).sum()
    expected = kl_divergence(q, isotropic(*mean.rsqrt()))
    assert_close(sharp.kl_divergence(M, U, V) - own, expected, 1e-6)
