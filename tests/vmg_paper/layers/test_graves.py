"""Graves's estimator, by hand."""

import torch
from torch.distributions import Normal, kl_divergence

from reference import assert_close, normal
from vmg_paper.layers import GravesLinear
from vmg_paper.layers.factorised import empirical_kl


def test_gradients_of_one_weight_by_hand():
    """log p = −½(y − xw)²: the mean learns from Σ(y − xw)x/n, the variance from half the mean of ((y − xw)x)²."""
    layer = GravesLinear(1, 1, bias=False).double()
    with torch.no_grad():
        layer.loc.fill_(0.5)
        layer.log_scale.fill_(-1.0)
    layer.draw_noise = lambda *shape: torch.full(shape, 2.0, dtype=torch.float64)
    x, y = torch.tensor([[1.0], [2.0], [-3.0]], dtype=torch.float64), torch.tensor([[1.0], [0.0], [2.0]]).double()
    (0.5 * (y - layer(x)).square()).mean().backward()
    sigma = torch.tensor(-1.0, dtype=torch.float64).exp()
    w = 0.5 + 2 * sigma
    per_row = [(w * a - b) * a for a, b in ((1, 1), (2, 0), (-3, 2))]
    by_mean = sum(per_row) / 3
    by_variance = 0.5 * sum(g**2 for g in per_row) / 3
    assert_close(layer.loc.grad.squeeze(), by_mean)
    assert_close(layer.log_scale.grad.squeeze(), by_variance * 2 * sigma**2)  # dσ²/d log σ = 2σ²


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


def test_samples_are_terms_of_the_mean(perturb):
    """Twice the same draw, averaged, has the gradient of one."""
    layer, x = perturb(GravesLinear(3, 2)), normal(5, 3, seed=1)
    noise = normal(4, 2, seed=3)
    layer.draw_noise = lambda *shape: noise.expand(shape)
    gradients = []
    for sample_shape in ((), (2,)):
        layer.zero_grad()
        layer(x, sample_shape).square().sum(-1).mean().backward()
        gradients.append((layer.loc.grad.clone(), layer.log_scale.grad.clone()))
    for one, two in zip(*gradients, strict=True):
        assert_close(one, two)


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
