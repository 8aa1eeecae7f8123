"""Moments against integrals on a grid, dense algebra and autograd."""

import math

import pytest
import torch
from torch.nn import functional as F

from vmg.math.moments import (
    activation_moments,
    fold_layer,
    layer_moments,
    normal_points,
    pull_back,
    quadrature_moments,
    relu_moments,
)
from vmg.math.preactivations import augment
from vmg.nn import MatrixGaussianLinear

P, R, C, B = 3, 5, 4, 6


def on_grid(activation, mean, variance, n=200_001, width=12.0):
    """Mean and variance by the rectangle rule, far finer than needed."""
    z = torch.linspace(-width, width, n, dtype=torch.float64)
    density = torch.exp(-0.5 * z**2)
    density /= density.sum()
    values = activation(mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * z)
    first = values @ density
    return first, (values - first.unsqueeze(-1)).square() @ density


MEANS = torch.tensor([-8.0, -2.0, -0.3, 0.0, 0.4, 1.0, 5.0], dtype=torch.float64)
VARIANCES = torch.tensor([1e-4, 0.3, 1.0, 9.0], dtype=torch.float64)


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, torch.cos, torch.sigmoid], ids=lambda a: a.__name__)
def test_moments_of_an_activation_are_its_integrals(activation):
    mean, variance = (t.flatten() for t in torch.meshgrid(MEANS, VARIANCES[:3], indexing="ij"))
    expected = on_grid(activation, mean, variance)
    found = activation_moments(activation, mean, variance)
    # quadrature of tanh is the least accurate of these
    torch.testing.assert_close(found.mean, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [torch.relu, torch.cos], ids=lambda a: a.__name__)
def test_closed_forms_are_exact_for_wide_pre_activations_too(activation):
    variances = torch.cat([VARIANCES, torch.tensor([100.0]).double()])
    mean, variance = (t.flatten() for t in torch.meshgrid(MEANS, variances, indexing="ij"))
    found, expected = activation_moments(activation, mean, variance), on_grid(activation, mean, variance)
    torch.testing.assert_close(found.mean, expected[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, expected[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("activation", [torch.tanh, torch.sigmoid, F.silu, F.gelu], ids=lambda a: a.__name__)
def test_quadrature_holds_at_any_width(activation):
    """20 points of Gauss and Hermite are off by 0.1 at a standard deviation of ten."""
    scale = torch.tensor([0.01, 0.5, 1.0, 1.9, 2.1, 5.0, 10.0, 100.0], dtype=torch.float64)
    mean, scale = (t.flatten() for t in torch.meshgrid(MEANS, scale, indexing="ij"))
    found, expected = activation_moments(activation, mean, scale**2), on_grid(activation, mean, scale**2)
    size = torch.maximum(expected[1].sqrt(), torch.tensor(1.0))
    assert ((found.mean - expected[0]).abs() < 0.005 * size).all()
    assert ((found.variance.sqrt() - expected[1].sqrt()).abs() < 0.005 * size).all()
    leaf = mean.clone().requires_grad_()
    (slope,) = torch.autograd.grad(on_grid(activation, leaf, scale**2)[0].sum(), leaf)
    assert ((found.slope - slope).abs() < 0.01).all()


def test_quadrature_refuses_what_is_too_wide():
    with pytest.raises(ValueError, match="pre-activations must have a standard deviation of at most 1000; got 2000"):
        quadrature_moments(torch.tanh, torch.zeros(2), torch.tensor([1.0, 4e6]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_far_from_its_kink_is_linear_or_zero(dtype):
    mean = torch.tensor([1e4, 1e4, -1e4, 3.0, -3.0, 0.0], dtype=dtype)
    variance = torch.tensor([1e-4, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=dtype)
    found = relu_moments(mean, variance)
    torch.testing.assert_close(found.mean, mean.clamp_min(0))
    expected = torch.tensor([1e-4, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=dtype)
    torch.testing.assert_close(found.variance, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.slope[:5], torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0], dtype=dtype))


@pytest.mark.parametrize("activation", [torch.relu, torch.tanh, torch.cos], ids=lambda a: a.__name__)
def test_the_slope_is_the_derivative_of_the_mean(activation):
    mean = MEANS.clone().requires_grad_()
    if activation is torch.relu:
        total = (
            mean * torch.special.ndtr(mean / 0.7) + 0.7 * torch.exp(-0.5 * (mean / 0.7) ** 2) / math.sqrt(2 * math.pi)
        ).sum()
    else:
        total = on_grid(activation, mean, torch.full_like(mean, 0.49))[0].sum()
    (expected,) = torch.autograd.grad(total, mean)
    found = activation_moments(activation, MEANS, torch.full_like(MEANS, 0.49))
    torch.testing.assert_close(found.slope, expected, rtol=1e-5, atol=1e-5)


def test_quadrature_of_a_certain_pre_activation_is_the_activation_itself():
    found = quadrature_moments(torch.tanh, MEANS, torch.zeros_like(MEANS))
    torch.testing.assert_close(found.mean, torch.tanh(MEANS), rtol=1e-14, atol=0)
    assert not found.variance.any()
    torch.testing.assert_close(found.slope, 1 - torch.tanh(MEANS) ** 2, rtol=1e-4, atol=1e-4)


# -- one layer --------------------------------------------------------------------------------------------------------


def quantities(batch_shape=()):
    """M, u, σ_c², Ã, B̃ and the variances of their entries, of no particular size."""
    draw = lambda *shape: torch.randn(*batch_shape, *shape, dtype=torch.float64)  # noqa: E731
    return draw(R, C), draw(R).exp(), draw(C).exp(), draw(P, R), draw(P, C), draw(P, R).square(), draw(P, C).square()


def folded(M, A, rest, *, noisy=True, damping=0.1):
    u, v, B_, input_noise, output_noise = rest
    noise = {"input_noise": input_noise, "output_noise": output_noise} if noisy else {}
    return fold_layer(M, u, v, A, B_, **noise, damping=damping)


@pytest.mark.parametrize(
    "options",
    [{"n_pseudo": 2}, {"n_pseudo": 0}, {"n_pseudo": 2, "zero_mean": True}, {"n_pseudo": 2, "bias": False}],
    ids=["plain", "no pseudo-data", "zero mean", "no bias"],
)
def test_for_certain_inputs_the_moments_are_those_of_the_layers_predictive(options, perturb):
    layer = perturb(MatrixGaussianLinear(5, C, **options))
    x = torch.randn(B, 5, dtype=torch.float64)
    predictive = layer.predictive(x)
    data = layer.pseudo_data
    points = (None, None) if data is None else (data.inputs / math.sqrt(layer.n_rows), data.outputs)
    u, v = torch.exp(2 * layer.row.log_scale), torch.exp(2 * layer.column.log_scale)
    found = layer_moments(fold_layer(layer.loc, u, v, *points, damping=layer.damping), augment(x, layer.bias))
    rows = predictive.row_covariance.to_dense().diagonal()
    torch.testing.assert_close(found.mean, predictive.loc, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance, rows.unsqueeze(-1) * v, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("zero_mean", [False, True])
def test_for_uncertain_inputs_the_moments_are_those_of_dense_algebra(zero_mean):
    M, u, v, A, B_, _, output_noise = quantities()
    M = None if zero_mean else M
    layer = fold_layer(M, u, v, A, B_, output_noise=output_noise, damping=0.1)
    x = torch.randn(B, R, dtype=torch.float64)
    variance = torch.rand(B, R - 1, dtype=torch.float64)  # the last input is certain
    found = layer_moments(layer, x, variance)

    U = torch.diag(u)
    K = torch.linalg.solve(A @ U @ A.mT + 0.1 * torch.eye(P, dtype=torch.float64), A @ U)
    start = torch.zeros(R, C, dtype=torch.float64) if M is None else M
    W = start + K.mT @ (B_ - A @ start)
    second = x.unsqueeze(-1) * x.unsqueeze(-2) + torch.diag_embed(torch.nn.functional.pad(variance, (0, 1)))
    for c in range(C):
        covariance = v[c] * (U - U @ A.mT @ K) + K.mT @ torch.diag(output_noise[:, c]) @ K
        raw = covariance + torch.outer(W[:, c], W[:, c])
        mean = x @ W[:, c]
        torch.testing.assert_close(found.mean[:, c], mean)
        torch.testing.assert_close(found.variance[:, c], (second * raw).sum((-2, -1)) - mean**2)


def test_the_noise_of_pseudo_inputs_moves_the_mean_by_its_second_order():
    M, u, v, A, B_, input_noise, output_noise = quantities()
    rest = u, v, B_, input_noise, output_noise

    def weight(A):
        return folded(M, A, rest, noisy=False).weight.flatten()

    hessian = torch.func.jacrev(torch.func.jacrev(weight))(A).reshape(R * C, P * R, P * R)
    expected = 0.5 * (hessian.diagonal(dim1=-2, dim2=-1) @ input_noise.flatten())
    found = folded(M, A, rest)
    torch.testing.assert_close((found.mean_weight - found.weight).flatten(), expected)


@pytest.mark.parametrize("shared", [False, True])
def test_what_it_adds_to_the_variance_is_the_first_order(shared):
    M, u, v, A, B_, input_noise, output_noise = quantities()
    rest = u, v, B_, input_noise, output_noise
    x = torch.randn(B, R, dtype=torch.float64)
    g = torch.randn(1 if shared else B, C, dtype=torch.float64)
    layer = folded(M, A, rest)
    found, slope = pull_back(layer, layer_moments(layer, x), g)

    jacobian = torch.func.jacrev(lambda A: ((x @ folded(M, A, rest, noisy=False).weight) * g).sum(-1))(A)
    torch.testing.assert_close(found, (jacobian.square() * input_noise).sum((-2, -1)))
    torch.testing.assert_close(slope, g @ layer.weight.mT)


def test_without_noise_nothing_is_added():
    M, u, v, A, B_, *_ = quantities()
    layer = fold_layer(M, u, v, A, B_, damping=0.1)
    assert layer.mean_weight is layer.weight
    assert (
        pull_back(layer, layer_moments(layer, torch.randn(B, R, dtype=torch.float64)), torch.ones(1, C).double())[0]
        is None
    )


def test_replicas_are_a_loop():
    M, u, v, A, B_, input_noise, output_noise = quantities((2,))
    x, variance = torch.randn(2, B, R).double(), torch.rand(2, B, R).double()
    g = torch.randn(2, B, C).double()

    def run(k):
        parts = (t[k] for t in (M, A, u, v, B_, input_noise, output_noise))
        M_k, A_k, *rest = parts
        layer = folded(M_k, A_k, rest)
        at = layer_moments(layer, x[k], variance[k])
        return [layer.mean_weight, at.mean, at.variance, *pull_back(layer, at, g[k])]

    together = run(slice(None))
    for k in range(2):
        for whole, part in zip(together, run(k), strict=True):
            torch.testing.assert_close(whole[k], part)


def test_a_layer_needs_something_that_carries_the_mean():
    with pytest.raises(ValueError, match="nothing would carry the mean"):
        fold_layer(None, torch.ones(2), torch.ones(1), None, None, damping=1e-6)


# -- points -----------------------------------------------------------------------------------------------------------


def test_points_have_the_moments_of_a_standard_normal():
    points = normal_points(64, 6)
    torch.testing.assert_close(points.mean(0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    covariance = points.mT @ points / 64
    torch.testing.assert_close(covariance.diagonal(), torch.ones(6, dtype=torch.float64))
    assert (covariance - torch.eye(6)).abs().max() < 0.2
    assert covariance[0, 1].abs() < 0.05
    torch.testing.assert_close(
        points.square().square().mean(0), torch.full((6,), 3.0, dtype=torch.float64), rtol=0.15, atol=0
    )


@pytest.mark.parametrize("n_points", [0, 1, 12])
def test_points_come_in_powers_of_two(n_points):
    with pytest.raises(ValueError, match="power of two"):
        normal_points(n_points, 1)
