"""Dropout, plain and variational, and DropConnect: moments over all masks, enumerated."""

import itertools
import math

import pytest
import torch

from reference import assert_close, log_uniform_negative_kl, many_draws, normal
from vmg.math.preactivations import augment
from vmg_paper.layers import DeterministicLinear, DropConnectLinear, DropoutLinear, VariationalDropoutLinear

RATE, DRAWS = 0.3, 20_000


def enumerated_moments(layer, x):
    """Mean and variance of the outputs over all masks of the inputs, or of the weights of each output."""
    every = 4 if isinstance(layer, DropConnectLinear) else 3  # the bias is dropped too, or stays as it is
    moments = torch.zeros(2, len(x), 2).double()
    for kept in itertools.product((0, 1), repeat=every):
        probability = math.prod(1 - RATE if k else RATE for k in kept)
        mask = torch.tensor([*kept, *[1 - RATE] * (4 - every)], dtype=torch.float64) / (1 - RATE)
        f = augment(x) @ (mask.unsqueeze(-1) * layer.loc.detach())
        moments += probability * torch.stack([f, f.square()])
    return moments[0], moments[1] - moments[0].square()


def assert_moments(f, mean, variance):
    """Draws [S, ...] against exact moments, in standard errors; the fourth moment is the draws' own."""
    n = len(f)
    assert ((f.mean(0) - mean).abs() < 4.5 * (variance / n).sqrt()).all()
    fourth = ((f - f.mean(0)) ** 4).mean(0)
    assert ((f.var(0) - variance).abs() < 4.5 * ((fourth - variance**2) / n).sqrt()).all()


@pytest.fixture
def dropout(perturb):
    return perturb(DropoutLinear(3, 2, rate=RATE))


@pytest.mark.parametrize("draw", ["rows", "functions"])
def test_dropout_has_the_moments_of_all_masks(dropout, draw):
    x = normal(4, 3, seed=1)
    f = many_draws(dropout, x, DRAWS) if draw == "rows" else dropout.sample_function(DRAWS)(x)
    mean, variance = enumerated_moments(dropout, x)
    assert_close(mean, dropout.forward_mean(x), 1e-7)  # the rate is kept in single precision at first
    assert_moments(f.detach(), mean, variance)


def test_rows_have_masks_of_their_own_and_functions_do_not(dropout):
    x = normal(1, 3, seed=1).expand(50, 3)
    assert len(torch.unique(dropout(x)[:, 0])) > 1
    one_function = dropout.sample_function(5)(x)
    assert_close(one_function, one_function[:, :1].expand_as(one_function))


def test_rate_zero_is_the_plain_layer(perturb):
    layer = perturb(DropoutLinear(3, 2, rate=0.0))
    plain = DeterministicLinear(3, 2).double()
    plain.load_state_dict({"loc": layer.loc})
    x = normal(4, 3, seed=1)
    assert_close(layer(x), plain(x))
    assert_close(layer.sample_weight((2,)), plain.sample_weight((2,)))


def test_replicas_have_rates_of_their_own(perturb):
    layer = perturb(DropoutLinear(200, 1, rate=torch.tensor([0.1, 0.6]), batch_shape=(2,)))
    share = (layer.sample_weight((50,))[..., :200, :] == 0).double().mean((0, 2, 3))
    error = (torch.tensor([0.09, 0.24]) / 10_000).sqrt()
    assert ((share - layer.rate).abs() < 4.5 * error).all()


def test_decay_is_that_of_gal_and_ghahramani(perturb):
    """½ l² ((1 − rate)‖M‖² + ‖m‖²) of the weights and biases that nn.Linear would have."""
    layer = perturb(DropoutLinear(3, 2, rate=RATE, precision=0.25))
    linear = layer.to_linear()
    expected = 0.5 * 0.25 * ((1 - layer.rate) * linear.weight.square().sum() + linear.bias.square().sum())
    assert_close(layer.kl_divergence(), expected)
    plain = DeterministicLinear(3, 2, precision=0.25).double()
    plain.load_state_dict({"loc": layer.loc})
    total = linear.weight.square().sum() + linear.bias.square().sum()
    assert_close(plain.kl_divergence(), 0.5 * 0.25 * total)
    assert DropoutLinear(3, 2, batch_shape=(2,)).kl_divergence().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        *(
            (kind, {"rate": rate}, r"rate must be in \[0, 1\); got")
            for rate in (1.0, -0.1, math.nan)
            for kind in (DropoutLinear, DropConnectLinear)
        ),
        (DeterministicLinear, {"precision": -1}, "precision must be >= 0; got -1"),
        (VariationalDropoutLinear, {"initial_noise": 1.5}, r"initial_noise must be in \(0, 1\]; got 1.5"),
    ],
)
def test_values_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(3, 2, **options)


# -- DropConnect ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dropconnect(perturb):
    return lambda **options: perturb(DropConnectLinear(3, 2, rate=RATE, **options))


@pytest.mark.parametrize("draw", ["rows", "weights", "functions"])
def test_dropconnect_draws_have_these_moments(dropconnect, draw):
    layer, x = dropconnect(), normal(4, 3, seed=1)
    for found, expected in zip(layer.moments(x), enumerated_moments(layer, x), strict=True):
        assert_close(found.detach(), expected, 1e-6)
    if draw == "weights":
        f = layer.apply_weight(x, layer.sample_weight((DRAWS,)))
    else:
        f = layer.sample_function(DRAWS)(x) if draw == "functions" else many_draws(layer, x, DRAWS)
    assert_moments(f.detach(), *enumerated_moments(layer, x))


def test_matched_gaussians_of_rows_are_independent_and_have_gradients_at_zero(dropconnect):
    layer = dropconnect()
    with torch.no_grad():
        layer.loc[-1] = 0  # the bias: rows of zeros then have no variance
    x = torch.zeros(2, 3).double()
    x[1] = 1
    f = layer(x.expand(DRAWS, 2, 3).reshape(-1, 3)).reshape(DRAWS, 2, 2)
    f.sum().backward()
    assert torch.isfinite(layer.loc.grad).all()
    assert (f[:, 0].abs() < 1e-100).all(), "nothing to drop"
    assert_moments(f[:, 1].detach(), *(moment[1].detach() for moment in layer.moments(x)))


# -- variational dropout ----------------------------------------------------------------------------------------------


def variational(alpha, **options):
    layer = VariationalDropoutLinear(3, 2, **options).double()
    with torch.no_grad():
        layer.log_noise.fill_(0.5 * math.log(alpha))
    return layer


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 0.9])
def test_variational_kl_counts_each_input_once(alpha):
    """Against quadrature: three inputs, neither outputs nor the bias counted; zero at α = 1."""
    exact = 3 * (log_uniform_negative_kl(1.0) - log_uniform_negative_kl(alpha))
    assert variational(alpha).kl_divergence().item() == pytest.approx(exact, abs=3 * 0.04)  # the cubic fit's own error
    assert variational(1.0).kl_divergence().item() == pytest.approx(0, abs=1e-12)


def test_alpha_is_moved_back_and_keeps_its_gradient():
    layer = variational(4.0)
    x = normal(4, 3, seed=1)
    (layer(x).square().sum() + layer.kl_divergence()).backward()
    assert layer.log_noise.item() == 0, "α = 1"
    assert layer.log_noise.grad.abs() > 0, "so it can come down again"
    with torch.no_grad():
        layer.log_noise.fill_(-50.0)
    layer.kl_divergence()
    assert layer.log_noise.item() == -6


@pytest.mark.parametrize("draw", ["rows", "functions"])
def test_variational_noise_is_shared_by_outputs(draw):
    """Covariance between outputs c and d of a row: α Σ_r x̂_r² θ_rc θ_rd, the bias without noise."""
    layer, x = variational(0.4), normal(4, 3, seed=1)
    f = (many_draws(layer, x, DRAWS) if draw == "rows" else layer.sample_function(DRAWS)(x)).detach()
    theta, x_hat = layer.loc.detach()[:3], augment(x)[:, :3]
    covariance = 0.4 * torch.einsum("br,rc,rd->bcd", x_hat.square(), theta, theta)
    mean = layer.forward_mean(x).detach()
    assert_moments(f, mean, covariance.diagonal(dim1=-2, dim2=-1))
    products = (f - mean)[..., 0] * (f - mean)[..., 1]
    assert ((products.mean(0) - covariance[:, 0, 1]).abs() < 4.5 * products.std(0) / math.sqrt(DRAWS)).all()
