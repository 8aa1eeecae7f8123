"""The flat network, its log posterior, and the posterior without the output layer."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, MultivariateNormal, Normal

from vmg.nn import MLP
from vmg_paper.baselines import HMCRegressor
from vmg_paper.baselines.hmc import (
    DERIVATIVES,
    CollapsedPosterior,
    FlatNetwork,
    LayerPrecisions,
    NetworkPosterior,
)


def data(n=7, seed=0):
    """x [n, 2] and y [n]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return x, torch.randn(n, dtype=torch.float64, generator=generator)


def states(model, n=3, seed=1):
    """Of n chains."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, model.n_dimensions, dtype=torch.float64, generator=generator)


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


@pytest.mark.parametrize("activation", list(DERIVATIVES))
@pytest.mark.parametrize("prior", [1.3, LayerPrecisions(1.0, 0.5)])
@pytest.mark.parametrize("sizes", [(2, 5, 1), (2, 5, 4, 1)])
def test_the_gradient_without_the_output_layer_equals_autograd(activation, prior, sizes):
    model = CollapsedPosterior(FlatNetwork(sizes, activation), prior, 0.3)
    state = states(model).requires_grad_()
    value, gradient = model.log_density(state, *data())
    torch.testing.assert_close(gradient, torch.autograd.grad(value.sum(), state)[0])


@pytest.mark.parametrize("prior", [1.3, LayerPrecisions(1.5, 0.4)])
def test_bayes_rule_links_it_to_the_whole_posterior(prior):
    """p(hidden, w | y) = p(hidden | y) p(w | hidden, y), whatever w is."""
    network, (x, y) = FlatNetwork((2, 5, 4, 1)), data()
    collapsed = CollapsedPosterior(network, prior, 0.3)
    hidden = states(collapsed)
    output = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    n = collapsed.hidden.n_weights
    weights, scales = hidden[:, :n], torch.full((3,), 1.3, dtype=torch.float64)
    if isinstance(prior, LayerPrecisions):
        logs = hidden[:, n:]
        of_layers = torch.exp(-0.5 * logs.reshape(3, 3, 2).sum(-1))  # of two hidden layers and the output
        weights = weights * of_layers[:, :2].repeat_interleave(torch.tensor([3 * 5, 6 * 4]), -1)
        scales = of_layers[:, 2]
        joint = Normal(0.0, 1.0).log_prob(hidden[:, :n]).sum(-1)  # the state is weights over their scale
        joint = joint + (Gamma(1.5, 0.4).log_prob(logs.exp()) + logs).sum(-1)
    else:
        joint = Normal(0.0, 1.3).log_prob(hidden).sum(-1)
    drawn = output * scales[:, None]
    f = network(torch.cat([weights, drawn], -1), x)[..., 0]
    joint = joint + Normal(0.0, scales[:, None]).log_prob(drawn).sum(-1) + Normal(f, 0.3).log_prob(y).sum(-1)
    z = torch.relu(collapsed.hidden(weights, x))
    inputs = torch.nn.functional.pad(z, (0, 1), value=1.0) / math.sqrt(5)
    conditional = []
    for k in range(3):
        precision = torch.eye(5, dtype=torch.float64) / scales[k] ** 2 + inputs[k].mT @ inputs[k] / 0.09
        mean = torch.linalg.solve(precision, inputs[k].mT @ y / 0.09)
        conditional.append(MultivariateNormal(mean, precision_matrix=precision).log_prob(drawn[k]))
    found, _ = collapsed.log_density(hidden, x, y)
    expected = joint - torch.stack(conditional)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_output_weights_have_their_conditional_mean_and_variance():
    network, (x, y) = FlatNetwork((2, 4, 1)), data()
    model = CollapsedPosterior(network, 1.0, 0.5)
    state = states(model, 1).expand(20_000, -1)
    weights = model.draw_weights(state, x, y, torch.Generator().manual_seed(0))
    inputs = torch.nn.functional.pad(torch.relu(model.hidden(state[0], x)), (0, 1), value=1.0) / math.sqrt(5)
    covariance = torch.linalg.inv(torch.eye(5, dtype=torch.float64) + inputs.mT @ inputs / 0.25)
    mean = covariance @ inputs.mT @ y / 0.25
    torch.testing.assert_close(weights[:, :12], state)
    error = (weights[:, 12:].mean(0) - mean).abs() / covariance.diagonal().sqrt()
    assert (error < 5 / math.sqrt(20_000)).all()
    torch.testing.assert_close(weights[:, 12:].T.cov(), covariance, rtol=0.0, atol=5 * math.sqrt(2 / 20_000))


def test_both_ways_of_sampling_agree():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (8, 1))
    y = X[:, 0] ** 2 + rng.normal(0, 0.3, 8)
    options = {"weight_prior": 1.0, "noise_scale": 0.3, "n_chains": 8, "n_warmup": 200, "n_draws": 200}
    collapsed = HMCRegressor((5,), **options).fit(X, y)
    whole = HMCRegressor((5,), collapse=False, **options).fit(X, y)
    one, other = (model.pred_dist(X) for model in (collapsed, whole))
    ess = min(collapsed.posterior_.ess, whole.posterior_.ess)
    assert ess > 100
    assert (np.abs(one.mean - other.mean) < 7 * one.epistemic_std / np.sqrt(ess)).all()
    np.testing.assert_allclose(one.epistemic_std, other.epistemic_std, rtol=7 / np.sqrt(ess))


def test_layer_precisions_need_known_noise_and_positive_numbers():
    with pytest.raises(ValueError, match="needs known noise"):
        HMCRegressor((3,), weight_prior=LayerPrecisions()).fit(np.zeros((4, 1)), np.arange(4.0))
    with pytest.raises(ValueError, match="must be positive"):
        LayerPrecisions(rate=0.0)
