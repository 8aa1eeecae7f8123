"""The factorised Gaussian against closed forms."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from reference import assert_close, normal
from vmg.covariance import Diagonal
from vmg.math.preactivations import augment
from vmg.nn import MatrixGaussianLinear
from vmg.priors import GammaPrior, IsotropicPrior
from vmg_paper.layers import MeanFieldLinear
from vmg_paper.layers.factorised import sample_local


def test_reaches_the_known_optimum_of_bayesian_linear_regression():
    """Means are the exact posterior's, precisions the diagonal of the exact precision (Bishop 2006, §10.1.2).

    Noise of ±1 gives the expected squared error exactly, so nothing is random.
    """
    noise_scale, x, y = 0.3, normal(30, 3, seed=1), normal(30, 2, seed=2)
    layer = MeanFieldLinear(3, 2).double()
    both_signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    layer.draw_noise = lambda *shape: both_signs.expand(shape)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14)

    def negative_bound():
        optimiser.zero_grad()
        log_prob = Normal(layer(x, (2,)), noise_scale).log_prob(y).sum((-2, -1)).mean()
        loss = layer.kl_divergence() - log_prob
        loss.backward()
        return loss

    optimiser.step(negative_bound)
    x_hat = augment(x)
    precision = torch.eye(4, dtype=torch.float64) + x_hat.mT @ x_hat / noise_scale**2
    mean = torch.linalg.solve(precision, x_hat.mT @ y / noise_scale**2)
    assert_close(layer.loc.detach(), mean, 1e-6)
    assert_close((-2 * layer.log_scale.detach()).exp(), precision.diagonal().unsqueeze(-1).expand(4, 2), 1e-5)


def test_local_draws_have_the_moments_of_weight_draws():
    x, M, S = normal(4, 3, seed=1), normal(3, 2, seed=2), normal(3, 2, seed=3).exp()
    mean = sample_local(x, M, S, torch.zeros(4, 2, dtype=torch.float64))
    scale = sample_local(x, M, S, torch.ones(4, 2, dtype=torch.float64)) - mean
    assert_close(mean, x @ M)
    for b in range(4):
        for c in range(2):
            variance = sum((x[b, r] * S[r, c]) ** 2 for r in range(3))
            assert_close(scale[b, c].square(), variance)


@pytest.mark.parametrize("draw", ["local", "weights"])
def test_both_ways_to_draw_have_these_moments(perturb, draw):
    layer, x, n = perturb(MeanFieldLinear(3, 2, initial_scale=0.5)), normal(4, 3, seed=1), 20_000
    f = layer(x, (n,)) if draw == "local" else layer.sample_function(n)(x)
    mean = layer.forward_mean(x)
    variance = augment(x).square() @ (2 * layer.log_scale).exp()
    assert ((f.mean(0) - mean).abs() < 4.5 * (variance / n).sqrt()).all()
    assert ((f.var(0) / variance - 1).abs() < 4.5 * math.sqrt(2 / n)).all()


def test_a_row_of_zeros_without_bias_has_a_gradient():
    layer = MeanFieldLinear(3, 2, bias=False)
    layer(torch.zeros(1, 3)).sum().backward()
    assert torch.isfinite(layer.log_scale.grad).all()


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_kl_against_torch(perturb, scale):
    layer = perturb(MeanFieldLinear(3, 2, prior=IsotropicPrior(scale), batch_shape=(2,)))
    posterior = Normal(layer.loc, layer.log_scale.exp())
    prior = Normal(torch.zeros_like(layer.loc), scale)
    assert_close(layer.kl_divergence(), kl_divergence(posterior, prior).sum((-2, -1)))


@pytest.mark.parametrize("prior", [IsotropicPrior(0.7), GammaPrior(2.0, 0.3)], ids=["isotropic", "gamma"])
def test_kl_is_the_matrix_gaussian_layers_where_scales_are_products(prior):
    layer = MeanFieldLinear(3, 2, prior=prior).double()
    row, column = (0.3 * normal(4, seed=1)).exp(), (0.3 * normal(2, seed=2)).exp()
    with torch.no_grad():
        layer.loc.copy_(normal(4, 2, seed=3))
        layer.log_scale.copy_((row[:, None] * column).log())
    assert_close(layer.kl_divergence(), prior.kl_divergence(layer.loc, Diagonal(row), Diagonal(column)))
    twin = MatrixGaussianLinear(3, 2, prior=prior).double()
    with torch.no_grad():
        twin.loc.copy_(layer.loc)
        twin.row.log_scale.copy_(row.log())
        twin.column.log_scale.copy_(column.log())
    x, zero = normal(5, 3, seed=4), torch.zeros(5, 2, dtype=torch.float64)
    layer.draw_noise = lambda *shape: zero + 1
    expected = twin.predictive(x)
    assert_close(layer(x) - layer.forward_mean(x), expected.row_covariance.diagonal().sqrt().unsqueeze(-1) * column)


def test_a_prior_without_short_form_is_refused():
    with pytest.raises(ValueError, match=r"prior must be isotropic, or have conjugate precisions; got GammaPrior"):
        MeanFieldLinear(3, 2, prior=GammaPrior(conjugate=False))


def test_initial_scale_must_be_positive():
    with pytest.raises(ValueError, match="initial_scale must be positive; got 0"):
        MeanFieldLinear(3, 2, initial_scale=0)
