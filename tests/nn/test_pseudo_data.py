import math

import pytest
import torch

from reference import tensors_of
from vmg.nn import MatrixGaussianLinear, PseudoData

P, R, C = 4, 3, 2

kinds = pytest.mark.parametrize("noise", ["layer", "factored"])


def lowered(noise, max_noise=0.5, batch_shape=()):
    """Pseudo-data whose every parameter, noise included, has moved down by a random amount."""
    pseudo = PseudoData(P, R, C, max_noise=max_noise, noise=noise, batch_shape=batch_shape).double()
    with torch.no_grad():
        for parameter in pseudo.parameters():
            parameter.sub_(torch.rand_like(parameter))
    return pseudo


@kinds
def test_starts_at_the_bound_with_no_divergence(noise):
    pseudo = PseudoData(P, R, C, max_noise=0.3, noise=noise).double()
    torch.testing.assert_close(pseudo.noise_scale, torch.full((P, R + C), 0.3, dtype=torch.float64))
    assert pseudo.kl_divergence().item() == pytest.approx(0, abs=1e-5)  # the bound is stored in single precision


@kinds
@pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)])
def test_draws_are_multiplicative_noise(noise, batch_shape):
    """Mean Ā and standard deviation √α |Ā|, entry by entry, within five standard errors."""
    pseudo = lowered(noise, batch_shape=batch_shape)
    S = 20_000
    draws = torch.cat(pseudo.sample((S,)), -1).detach()
    mean = torch.cat([pseudo.inputs, pseudo.outputs], -1).detach()
    std = mean.abs() * pseudo.noise_scale.detach()
    assert draws.shape == (S, *batch_shape, P, R + C)
    assert ((draws.mean(0) - mean) / (std / math.sqrt(S))).abs().max() < 5
    assert ((draws.std(0) / std - 1) * math.sqrt(2 * S)).abs().max() < 5


def test_layer_noise_has_one_level_for_inputs_and_one_for_outputs():
    scale = lowered("layer").noise_scale
    assert (scale[:, :R] == scale[0, 0]).all()
    assert (scale[:, R:] == scale[0, R]).all()
    assert scale[0, 0] != scale[0, R]


def test_factored_noise_is_a_product_of_bounded_factors():
    """√α_ij = p_i d_j with both factors at most √max_noise: a matrix of rank one, inputs and outputs sharing p."""
    scale = lowered("factored", max_noise=0.5).noise_scale
    torch.testing.assert_close(scale[1:] * scale[0, 0], scale[1:, :1] * scale[:1])
    assert (scale <= 0.5).all()
    assert scale.unique().numel() == scale.numel(), "each entry has a level of its own"


@kinds
@pytest.mark.parametrize("max_noise", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_kl_counts_every_entry(noise, max_noise, batch_shape):
    """The cubic fit of Kingma et al. (2015), entry by entry, in a loop."""

    def negative_kl(alpha):
        return 0.5 * math.log(alpha) + 1.16145124 * alpha - 1.50204118 * alpha**2 + 0.58629921 * alpha**3

    pseudo = lowered(noise, max_noise, batch_shape)
    kl = pseudo.kl_divergence()
    assert kl.shape == batch_shape
    for scale, value in zip(pseudo.noise_scale.reshape(-1, P * (R + C)), kl.reshape(-1), strict=True):
        expected = sum(negative_kl(max_noise**2) - negative_kl(s**2) for s in scale.tolist())
        assert value.item() == pytest.approx(expected, rel=1e-9)
        assert expected > 0


@kinds
@pytest.mark.parametrize("max_noise", [1e-4, 0.05, 0.25, 1.0])
def test_noise_never_exceeds_its_bound(noise, max_noise):
    """A layer whose optimiser wants more noise than it may have: the KL alone, with steps far too large."""
    layer = MatrixGaussianLinear(R, C, n_pseudo=2, max_noise=max_noise, pseudo_noise=noise).double()
    optimiser = torch.optim.SGD(layer.parameters(), lr=10.0)
    x = torch.randn(5, R, dtype=torch.float64)
    for _ in range(3):
        optimiser.zero_grad()
        layer.pseudo_data.kl_divergence().backward()
        optimiser.step()
        layer(x)
        assert layer.pseudo_data.noise_scale.max() <= max_noise * (1 + 1e-12)
        assert layer.pseudo_data.kl_divergence() >= 0


@kinds
def test_noise_stays_positive(noise):
    """Pushed the other way it stops at a floor, where the KL is large but finite."""
    pseudo = PseudoData(P, R, C, noise=noise).double()
    optimiser = torch.optim.SGD(pseudo.parameters(), lr=1e3)
    (-pseudo.kl_divergence()).backward()
    optimiser.step()
    kl = pseudo.kl_divergence()
    assert 0 < pseudo.noise_scale.max() < 0.05
    assert torch.isfinite(kl)
    assert kl > 1


@kinds
def test_noise_comes_down_again_after_touching_its_bound(noise):
    """A clamp inside the graph would have no gradient beyond the bound, and √α would stay there for ever."""
    layer = MatrixGaussianLinear(R, C, n_pseudo=2, max_noise=0.25, pseudo_noise=noise).double()
    pseudo, x = layer.pseudo_data, torch.randn(5, R, dtype=torch.float64)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)

    def push(sign, n_steps):
        for _ in range(n_steps):
            optimiser.zero_grad()
            layer(x)
            (sign * layer.kl_divergence()).backward()
            optimiser.step()
        layer(x)
        return pseudo.noise_scale.detach().clone()

    at_bound = push(+1, 20)
    torch.testing.assert_close(at_bound, torch.full_like(at_bound, 0.25))
    first = push(-1, 1)
    assert (first < at_bound).all(), "the very first step down counts: nothing has piled up beyond the bound"
    assert (push(-1, 10) < first).all()
    torch.testing.assert_close(push(+1, 40), at_bound)


@kinds
def test_each_replica_can_have_its_own_bound(noise):
    """A stack of replicas with different bounds is the replicas one by one: draws' scale, bound and KL."""
    bounds = torch.tensor([0.1, 0.5, 1.0])
    stack = PseudoData(P, R, C, max_noise=bounds, noise=noise, batch_shape=(3,)).double()
    torch.testing.assert_close(stack.noise_scale.amax((-2, -1)), bounds.double(), rtol=1e-6, atol=0)
    with torch.no_grad():
        stack.log_noise.add_(torch.linspace(-1, 1, stack.log_noise.shape[-1]))
    for k, bound in enumerate(bounds.tolist()):
        one = PseudoData(P, R, C, max_noise=bound, noise=noise).double()
        one.load_state_dict({name: value[k] for name, value in tensors_of(stack)})
        torch.testing.assert_close(stack.kl_divergence()[k], one.kl_divergence(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(stack.noise_scale[k], one.noise_scale, rtol=1e-6, atol=0)


def test_bounds_must_be_one_for_each_replica():
    with pytest.raises(ValueError, match=r"max_noise must be one number or one for each of the replicas \(3,\)"):
        PseudoData(P, R, C, max_noise=torch.tensor([0.1, 0.2]), batch_shape=(3,))
