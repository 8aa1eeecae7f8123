"""Gaussian noise whose precision has a Gamma posterior or is known, and classes."""

import itertools
import math

import pytest
import torch
from likelihood_cases import A, B, Bound, C, N, assert_same_gamma, bound, data, gaussian, updated, updated_by
from torch.distributions import Gamma, Normal, kl_divergence
from torch.func import functional_call

from reference import assert_close, gamma_nodes, normal
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")


def test_kl_of_the_noise():
    options = {"concentration": 6.0, "rate": torch.tensor([6.0, 1.0, 0.1])}
    prior = Gamma(torch.full((C,), 6.0), options["rate"])
    likelihood = gaussian(A, B, **options)
    assert_close(likelihood.kl_divergence(), kl_divergence(Gamma(A, B), prior).sum())
    assert_close(likelihood.prior.rate, prior.rate)
    assert_close(likelihood.posterior.mean, A / B)


@pytest.mark.parametrize("conjugate", [False, True])
def test_the_posterior_starts_at_the_prior(conjugate):
    likelihood = GaussianLikelihood(C, concentration=6.0, rate=2.0, conjugate=conjugate)
    assert_close(likelihood.kl_divergence(), torch.zeros(()))
    assert all(p.requires_grad is not conjugate for p in likelihood.parameters())


def test_a_full_batch_reaches_the_exact_posterior_at_once_and_stays():
    f, y = data()
    likelihood = GaussianLikelihood(C, concentration=2.0, rate=0.5)
    for _ in range(60):  # past the point where the step size stops falling
        likelihood.update_(f, y, N)
        assert_close(likelihood.posterior.concentration, torch.full((C,), 2.0 + N / 2))
        assert_close(likelihood.posterior.rate, 0.5 + 0.5 * (y - f).square().sum(0))


def test_the_conjugate_posterior_maximises_the_bound_of_the_gradient_version():
    f, y = data()
    conjugate = updated(GaussianLikelihood(C, concentration=2.0, rate=0.5))
    q = conjugate.posterior
    learned = gaussian(q.concentration, q.rate, concentration=2.0, rate=0.5)
    best = bound(learned, f, y)
    assert_close(bound(conjugate, f, y), best)
    for gradient in torch.autograd.grad(best, list(learned.parameters())):
        assert_close(gradient, torch.zeros(C), 1e-9)

    def moved(parameters):
        a, b = parameters
        names = {"likelihood.log_concentration": a, "likelihood.log_rate": b}
        return functional_call(Bound(learned), names, (f, y))

    point = torch.stack([q.concentration.log(), q.rate.log()]).detach()
    hessian = torch.autograd.functional.hessian(moved, point).reshape(2 * C, 2 * C)
    assert torch.linalg.eigvalsh(hessian).max() < -1e-3
    for seed, size in itertools.product(range(20), (0.01, 0.3, 2.0)):
        assert moved(point + size * normal(2, C, seed=seed)) < best


def test_the_bound_at_the_conjugate_posterior_is_the_exact_evidence():
    # f is given, so the only unknown is τ and the bound is tight: log ∫ Π N(y|f, 1/τ) Gamma(τ) dτ
    f, y = data(c=1)
    likelihood = updated(GaussianLikelihood(1, concentration=2.0, rate=0.5), c=1)
    tau, weight = gamma_nodes(2.0, 0.5)
    joint = Normal(f, tau.rsqrt()).log_prob(y).sum(0).exp()
    assert_close(bound(likelihood, f, y), (joint @ weight).log(), 1e-9)


def test_the_gradient_version_leaves_its_posterior_to_the_optimiser():
    likelihood = gaussian(A, B)
    updated(likelihood)
    assert_close(torch.stack([likelihood.posterior.concentration, likelihood.posterior.rate]), torch.stack([A, B]))


def test_the_prior_in_the_targets_own_units():
    # τ_y ~ Gamma(6, 6) for y = σ z means τ_z = σ² τ_y ~ Gamma(6, 6/σ²); only the units of the density differ
    f, y = data(c=1)
    sigma = 2.5
    raw = updated_by(GaussianLikelihood(1, concentration=6.0, rate=6.0), f, y)
    unit = updated_by(GaussianLikelihood(1, concentration=6.0, rate=6.0 / sigma**2), f / sigma, y / sigma)
    assert_close(unit.kl_divergence(), raw.kl_divergence())
    assert_close(unit.expected_log_prob(f / sigma, y / sigma) - math.log(sigma), raw.expected_log_prob(f, y))
    assert_close(sigma * unit.student()[1], raw.student()[1])


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_posterior_as_prior(batch_shape):
    first = GaussianLikelihood(C, concentration=2.0, rate=0.5, batch_shape=batch_shape)
    first.update_(*data(*batch_shape), torch.full(batch_shape, 10.0).cumsum(0) if batch_shape else 10.0)
    before = first.kl_divergence().clone()
    second, restored = first.posterior_as_prior(), GaussianLikelihood(C, batch_shape=batch_shape)
    restored.load_state_dict(second.state_dict())
    assert_close(second.kl_divergence(), torch.zeros(batch_shape))
    for gamma in (second.prior, second.posterior, restored.prior):
        assert_same_gamma(gamma, first.posterior)
    assert torch.equal(first.kl_divergence(), before)  # the old one is left alone
    assert_same_gamma(gaussian(A, B).posterior_as_prior().prior, gaussian(A, B).posterior)


def test_learning_in_two_parts_is_learning_at_once():
    f, y = data()
    options = {"concentration": 2.0, "rate": 0.5, "step_size": 1.0}
    at_once = updated_by(GaussianLikelihood(C, **options), f, y)
    part = updated_by(GaussianLikelihood(C, **options), f[:4], y[:4])
    assert_same_gamma(updated_by(part.posterior_as_prior(), f[4:], y[4:]).posterior, at_once.posterior)


# Known noise


@pytest.mark.parametrize("scale", [0.3, [0.3, 2.0, 1.0], [[[0.3, 2.0, 1.0]], [[1.0, 0.5, 3.0]]]], ids=str)
def test_known_noise(scale):
    """The same everywhere, for each output, and for each output of two replicas."""
    scale = torch.tensor(scale, dtype=torch.float64)
    f, y = (part.expand(*scale.shape[:-2], *part.shape) for part in data())
    likelihood = KnownNoiseLikelihood(scale)
    assert_close(likelihood.expected_log_prob(f, y), Normal(f, scale).log_prob(y).sum(-1))
    centre, student_scale, df = likelihood.components(f)
    assert torch.isinf(df).all() and torch.equal(centre, f)
    assert_close(student_scale, torch.atleast_1d(scale))
    assert likelihood.kl_divergence() == 0


# Classes


@pytest.mark.parametrize("leading", [(), (2,), (4, 2)])
def test_categorical_is_minus_cross_entropy(leading):
    f = normal(*leading, N, C, seed=1)
    y = torch.randint(C, (*leading, N), generator=torch.Generator().manual_seed(0))
    expected = -torch.nn.functional.cross_entropy(f.reshape(-1, C), y.reshape(-1), reduction="none")
    assert_close(CategoricalLikelihood().expected_log_prob(f, y), expected.reshape(*leading, N))


def test_categorical_survives_large_outputs():
    f = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert_close(CategoricalLikelihood().expected_log_prob(f, torch.tensor([0, 0])), torch.tensor([0.0, -1000.0]))
