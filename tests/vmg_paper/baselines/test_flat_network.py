"""The flat network and its log posterior."""

import math

import pytest
import torch
from random_problem import data, states
from torch.distributions import Gamma, Normal

from vmg.nn import MLP
from vmg_paper.baselines.flat_network import DERIVATIVES, FlatNetwork, NetworkPosterior


@pytest.mark.parametrize("activation", list(DERIVATIVES))
@pytest.mark.parametrize("noise", [{"noise_prior": None, "noise_scale": 0.3}, {"noise_prior": (6.0, 2.0)}])
@pytest.mark.parametrize("weight_prior", [1.3, (6.0, 5.0)])
def test_the_gradient_equals_autograd(activation, noise, weight_prior):
    model = NetworkPosterior(FlatNetwork((2, 5, 4, 1), activation), weight_prior, **noise)
    state = states(model).requires_grad_()
    value, gradient = model.log_density(state, *data())
    torch.testing.assert_close(gradient, torch.autograd.grad(value.sum(), state)[0])


def test_it_is_the_network_of_the_papers_layers():
    network = MLP(2, [5], 1).double()
    flat = FlatNetwork((2, 5, 1))
    weights = torch.cat([layer.mean_weight().flatten() for layer in network.layers])
    x, _ = data()
    torch.testing.assert_close(flat(weights, x), network.forward_mean(x))
    torch.testing.assert_close(flat.trace(weights[None], x).outputs[-1][0], flat(weights, x))


def test_the_log_density_is_that_of_prior_and_likelihood():
    """Differences between states, so that constants fall away."""
    model = NetworkPosterior(FlatNetwork((2, 5, 1)), 1.3, (6.0, 2.0))
    state = states(model)
    x, y = data()
    precision = state[:, -1].exp()
    prior = Normal(0.0, 1.3).log_prob(state[:, :-1]).sum(-1)
    noise = Gamma(6.0, 2.0).log_prob(precision) + state[:, -1]
    f = model.functions(state, x)[..., 0]
    likelihood = Normal(f, model.noise(state)[:, None]).log_prob(y).sum(-1)
    expected = prior + noise + likelihood
    found, _ = model.log_density(state, x, y)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_a_gamma_prior_on_the_precision_is_integrated_out():
    network = FlatNetwork((2, 5, 1))
    model = NetworkPosterior(network, (6.0, 4.0), None, 1e6)  # so noisy that the prior is all that is left
    state = states(model)
    found, _ = model.log_density(state, *data())
    grid = torch.linspace(1e-4, 12, 200_001, dtype=torch.float64)
    density = Gamma(6.0, 4.0).log_prob(grid).exp()
    expected = []
    for weights in state:
        log_prior = 0.5 * network.n_weights * grid.log() - 0.5 * grid * weights.square().sum()
        expected.append(math.log(torch.trapezoid(log_prior.exp() * density, grid)))
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found - found[0], expected - expected[0], rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="activation must be one of"):
        FlatNetwork((1, 2, 1), "cubic")
    with pytest.raises(ValueError, match="exactly one of"):
        NetworkPosterior(FlatNetwork((1, 2, 1)), 1.0, None)
    with pytest.raises(ValueError, match="weight_prior must be positive"):
        NetworkPosterior(FlatNetwork((1, 2, 1)), -1.0)
