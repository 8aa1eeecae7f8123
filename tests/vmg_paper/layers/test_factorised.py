"""Factorised Gaussian posteriors against closed forms: mean field, Graves's estimator, Bayes by Backprop."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Normal, kl_divergence

from reference import assert_close, many_draws, normal
from vmg.covariance import Diagonal
from vmg.math.preactivations import augment
from vmg.nn import MatrixGaussianLinear
from vmg.priors import FixedPrior, GammaPrior, IsotropicPrior
from vmg_paper.layers import BayesByBackpropLinear, GravesLinear, MeanFieldLinear, ScaleMixture
from vmg_paper.layers.factorised import empirical_kl, sample_local


def test_reaches_the_known_optimum_of_bayesian_linear_regression():
    """Means are the exact posterior's, precisions the diagonal of the exact precision (Bishop 2006, §10.1.2).

    Noise of ±1 gives the expected squared error exactly, so nothing is random.
    """
    noise_scale, x, y = 0.3, normal(30, 3, seed=1), normal(30, 2, seed=2)
    layer = MeanFieldLinear(3, 2).double()
    signs = itertools.cycle([1.0, -1.0])
    layer.draw_noise = lambda *shape: torch.full(shape, next(signs), dtype=torch.float64)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14)

    def negative_bound():
        optimiser.zero_grad()
        log_prob = Normal(torch.stack([layer(x), layer(x)]), noise_scale).log_prob(y).sum((-2, -1)).mean()
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
    mean, above = (sample_local(x, M, S, torch.full((4, 2), noise, dtype=torch.float64)) for noise in (0, 1))
    assert_close(mean, x @ M)
    assert_close((above - mean).square(), ((x.unsqueeze(-1) * S) ** 2).sum(-2))


@pytest.mark.parametrize("draw", ["local", "weights"])
def test_both_ways_to_draw_have_these_moments(perturb, draw):
    layer, x, n = perturb(MeanFieldLinear(3, 2, initial_scale=0.5)), normal(4, 3, seed=1), 20_000
    f = many_draws(layer, x, n) if draw == "local" else layer.sample_function(n)(x)
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
    x, zero = normal(3, 3, seed=4), torch.zeros(3, 2, dtype=torch.float64)
    layer.draw_noise = lambda *shape: zero + 1
    expected = twin.predictive(x)
    assert_close(layer(x) - layer.forward_mean(x), expected.row_covariance.diagonal().sqrt().unsqueeze(-1) * column)


def test_variance_gradient_is_the_mean_square_of_single_rows_gradients(perturb):
    layer, x, y = perturb(GravesLinear(3, 2)), normal(5, 3, seed=1), normal(5, 2, seed=2)
    noise = normal(4, 2, seed=3)
    layer.draw_noise = lambda *shape: noise.expand(shape)

    def log_prob(f, y):
        return -0.5 * (y - f).square().sum(-1)

    (-log_prob(layer(x), y).mean()).backward()
    weight = (layer.loc + layer.log_scale.exp() * noise).detach().requires_grad_()
    squares = torch.zeros_like(weight)
    for row in range(5):
        loss = log_prob(layer.apply_weight(x[row : row + 1], weight), y[row])
        squares += torch.autograd.grad(loss.sum(), weight)[0].square() / 5
    assert_close(layer.log_scale.grad, squares * (2 * layer.log_scale).exp().detach())


def test_gradient_of_the_mean_and_the_input_are_exact(perturb):
    layer, x = perturb(GravesLinear(3, 2, batch_shape=(2,))), normal(5, 3, seed=1).requires_grad_()
    noise = normal(2, 4, 2, seed=3)
    layer.draw_noise = lambda *shape: noise.expand(shape)
    drawn = layer(x)
    loc = layer.loc.detach().clone().requires_grad_()
    other = x.detach().clone().requires_grad_()
    expected = layer.apply_weight(other, loc + layer.log_scale.exp().detach() * noise)
    assert_close(drawn, expected)
    (drawn**3).sum().backward()
    (expected**3).sum().backward()
    assert_close(layer.loc.grad, loc.grad)
    assert_close(x.grad, other.grad)


def test_empirical_kl_is_the_smallest_of_any_gaussian_prior():
    M, log_S = normal(2, 4, 3, seed=1), 0.5 * normal(2, 4, 3, seed=2)
    posterior = Normal(M, log_S.exp())

    def kl(mean, scale):
        return kl_divergence(posterior, Normal(mean, scale)).sum((-2, -1))

    mean = M.mean((-2, -1), keepdim=True)
    scale = (log_S.exp().square() + (M - mean).square()).mean((-2, -1), keepdim=True).sqrt()
    assert_close(empirical_kl(M, log_S), kl(mean, scale))
    for shift, factor in ((0.1, 1), (-0.1, 1), (0, 1.1), (0, 0.9)):
        assert (kl(mean + shift, scale * factor) > empirical_kl(M, log_S)).all()


MIXTURE = ScaleMixture(0.3, 1.5, 0.1)


def test_mixture_density_is_the_sum_of_two():
    w = torch.linspace(-4, 4, 41, dtype=torch.float64)
    direct = 0.3 * stats.norm(0, 1.5).pdf(w) + 0.7 * stats.norm(0, 0.1).pdf(w)
    assert_close(MIXTURE.log_prob(w), torch.log(torch.as_tensor(direct)))


def test_mixture_density_far_out_is_that_of_the_wide_part():
    w = torch.tensor([3.0, 30.0, -1e4])
    assert_close(ScaleMixture().log_prob(w), math.log(0.5) + Normal(0.0, 1.0).log_prob(w), 1e-6)


def test_mixture_density_has_the_slope_of_the_sum_of_two():
    w = torch.tensor([0.0, 1e-3, 0.2, -0.45, 2.0, -30.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(MIXTURE.log_prob(w).sum(), w)
    at = w.detach().numpy()
    wide, narrow = 0.3 * stats.norm(0, 1.5).pdf(at), 0.7 * stats.norm(0, 0.1).pdf(at)
    assert_close(slope, torch.as_tensor(-at * (wide / 1.5**2 + narrow / 0.1**2) / (wide + narrow)))


FIXED = FixedPrior(torch.zeros(4, 2), torch.ones(4), torch.ones(2))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (MeanFieldLinear, {"prior": FIXED}, "prior must be isotropic, or have Gamma precisions; got FixedPrior"),
        (MeanFieldLinear, {"initial_scale": 0}, "initial_scale must be positive; got 0"),
        (BayesByBackpropLinear, {"scale_rate": 1.5}, r"scale_rate must be in \[0, 1\]; got 1.5"),
        (lambda *sizes, **options: ScaleMixture(**options), {"share": 1.0}, r"share must be inside \(0, 1\); got 1.0"),
        (lambda *sizes: ScaleMixture(wide=0.1, narrow=0.2), {}, "0 < narrow < wide; got 0.2 and 0.1"),
    ],
)
def test_values_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(3, 2, **options)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_kl_is_taken_at_the_weights_that_were_drawn(perturb, rate):
    """With a rate, scales move a share of what their parameter moves."""
    options = {"prior": MIXTURE, "initial_scale": 0.2, "scale_rate": rate, "batch_shape": (2,)}
    layer, x = perturb(BayesByBackpropLinear(3, 2, **options)), normal(5, 3, seed=1)
    scale = 0.2 * (layer.log_scale.exp() / 0.2) ** rate
    assert_close(layer.scale(), scale)
    f, posterior = layer(x), Normal(layer.loc, scale)
    weight = layer.loc + scale * layer.last_noise
    assert_close(f, layer.apply_weight(x, weight))
    expected = (posterior.log_prob(weight) - MIXTURE.log_prob(weight)).sum((-2, -1))
    before = layer.kl_divergence()
    assert_close(before, expected, 1e-6)  # priors are kept in single precision at first
    assert torch.equal(layer.kl_divergence(), before), "the same draw"
    layer(x)
    assert not torch.equal(layer.kl_divergence(), before), "another draw"
    assert_close(layer.sample_weight((4_000,)).std(0), scale, 0.1)


def test_slow_scales_start_where_the_others_do():
    plain, slow = (BayesByBackpropLinear(3, 2, initial_scale=0.2, scale_rate=rate) for rate in (1, 0))
    assert_close(slow.scale(), plain.scale(), 1e-6)


def test_estimate_of_the_kl_is_right_on_average():
    layer, n = BayesByBackpropLinear(1, 1, bias=False, prior=MIXTURE, batch_shape=(10_000,)).double(), 20_000
    with torch.no_grad():
        layer.loc.fill_(0.4)
        layer.log_scale.fill_(math.log(0.3))
    q = stats.norm(0.4, 0.3)

    def integrand(w):
        return q.pdf(w) * (q.logpdf(w) - MIXTURE.log_prob(torch.tensor(w, dtype=torch.float64)).item())

    exact, _ = integrate.quad(integrand, 0.4 - 3, 0.4 + 3, points=[0.0, 0.4], limit=200)
    estimates = []
    for _ in range(2):
        layer(torch.ones(1, 1, dtype=torch.float64))
        estimates.append(layer.kl_divergence().mean().item())
    w = q.rvs(n, random_state=0)
    spread = np.std(q.logpdf(w) - MIXTURE.log_prob(torch.as_tensor(w)).numpy())
    assert abs(np.mean(estimates) - exact) < 4.5 * spread / math.sqrt(n)
