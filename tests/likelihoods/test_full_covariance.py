"""Full noise covariance with a Wishart posterior on its inverse."""

import math

import pytest
import torch
from likelihood_cases import Bound, C, N, data, updated
from scipy import stats
from torch.distributions import MultivariateNormal, Wishart, kl_divergence
from torch.func import functional_call

from reference import assert_close, normal
from vmg.likelihoods import FullCovarianceLikelihood, GaussianLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")


def wishart(df, rate_matrix):
    """W(df, rate_matrix⁻¹)."""
    return Wishart(df, precision_matrix=rate_matrix)


def full_likelihood(c=C, seed=0):
    likelihood = FullCovarianceLikelihood(c, concentration=2.0, rate=0.5)
    return updated(likelihood, c=c, seed=seed)


def test_the_wishart_prior_and_posterior():
    f, y = data()
    likelihood = FullCovarianceLikelihood(C, concentration=2.0, rate=0.5)
    assert_close(likelihood.df, torch.tensor(2 * 2.0 + C - 1))
    assert_close(likelihood.rate_matrix, 2 * 0.5 * torch.eye(C))
    for _ in range(60):
        likelihood.update_(f, y, N)
        assert_close(likelihood.df, torch.tensor(2 * 2.0 + C - 1 + N))
        outer = sum(torch.outer(r, r) for r in y - f)
        assert_close(likelihood.rate_matrix, torch.eye(C) + outer)


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_kl_is_that_of_torch(c):
    prior, posterior = FullCovarianceLikelihood(c, concentration=2.0, rate=0.5), full_likelihood(c)
    q, p = (wishart(one.df, one.rate_matrix) for one in (posterior, prior))
    assert_close(prior.kl_divergence(), torch.zeros(()))
    assert_close(posterior.kl_divergence(), kl_divergence(q, p))


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_expected_log_prob(c):
    f, y = data(c=c, seed=5)
    likelihood = full_likelihood(c)
    # a score has mean zero: E log|Λ| = log|Λ₀| − 2 ∂/∂ν log W(Λ₀ | ν, Ψ) at any Λ₀
    df, point = likelihood.df.clone().requires_grad_(), torch.eye(c) + 0.1
    (score,) = torch.autograd.grad(wishart(df, likelihood.rate_matrix).log_prob(point), df)
    expected_logdet = torch.logdet(point) - 2 * score
    precision = wishart(likelihood.df, likelihood.rate_matrix).mean
    expected = [0.5 * (expected_logdet - c * math.log(2 * math.pi) - r @ precision @ r) for r in y - f]
    assert_close(likelihood.expected_log_prob(f, y), torch.stack(expected))


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_student_is_the_gaussian_with_its_precision_integrated_out(c):
    f, y = data(c=c, seed=5)
    likelihood = full_likelihood(c)
    df, scale = likelihood.student()
    prior, point = wishart(likelihood.df, likelihood.rate_matrix), torch.eye(c) + 0.1
    for f_n, y_n in zip(f, y, strict=True):
        # p(y) = N(y | Λ) W(Λ) / W(Λ | y), whichever Λ it is computed at
        r = y_n - f_n
        posterior = wishart(likelihood.df + 1, likelihood.rate_matrix + torch.outer(r, r))
        evidence = MultivariateNormal(f_n, precision_matrix=point).log_prob(y_n)
        evidence = evidence + prior.log_prob(point) - posterior.log_prob(point)
        student = stats.multivariate_t(f_n.numpy(), (scale @ scale.mT).numpy(), df.item())
        assert evidence.item() == pytest.approx(float(student.logpdf(y_n.numpy())), rel=1e-10)


def test_full_covariance_of_one_output_is_the_gaussian():
    f, y = data(c=1)
    options = {"concentration": 2.0, "rate": 0.5}
    full, plain = FullCovarianceLikelihood(1, **options), GaussianLikelihood(1, **options)
    for _ in range(3):
        assert_close(full.expected_log_prob(f, y), plain.expected_log_prob(f, y))
        assert_close(full.kl_divergence(), plain.kl_divergence())
        for a, b in zip(full.student(), plain.student(), strict=True):
            assert_close(a.squeeze(), b.squeeze())
        for likelihood in (full, plain):
            likelihood.update_(f[:4], y[:4], N)


def test_the_wishart_posterior_maximises_the_bound():
    f, y = data()
    likelihood = full_likelihood()
    df, rate_matrix = likelihood.df.clone(), likelihood.rate_matrix.clone()

    def moved(df, rate_matrix):
        return functional_call(Bound(likelihood), {"likelihood.df": df, "likelihood.rate_matrix": rate_matrix}, (f, y))

    best = moved(df.requires_grad_(), rate_matrix.requires_grad_())
    for gradient in torch.autograd.grad(best, (df, rate_matrix)):
        assert_close(gradient, torch.zeros_like(gradient), 1e-9)
    for seed in range(10):
        noise = 0.1 * normal(C, C, seed=seed)
        assert moved(df * (1 + noise[0, 0]), rate_matrix + noise @ noise.mT) < best
