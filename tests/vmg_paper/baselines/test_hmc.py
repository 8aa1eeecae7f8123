"""The flat network and its posterior without the output layer."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Gamma, MultivariateNormal, Normal

from vmg.nn import MLP
from vmg_paper.baselines import HMCRegressor
from vmg_paper.baselines.hmc import CollapsedPosterior, FlatNetwork, LayerPrecisions


def data(n=7, seed=0):
    """x [n, 2] and y [n]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return x, torch.randn(n, dtype=torch.float64, generator=generator)


def states(model, n=3, seed=1):
    """Of n chains."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, model.n_dimensions, dtype=torch.float64, generator=generator)


def test_it_is_the_network_of_the_papers_layers():
    network = MLP(2, [5], 1).double()
    flat = FlatNetwork((2, 5, 1))
    weights = torch.cat([layer.mean_weight().flatten() for layer in network.layers])
    x, _ = data()
    torch.testing.assert_close(flat(weights, x), network.forward_mean(x))


@pytest.mark.parametrize("prior", [1.3, LayerPrecisions(1.0, 0.5)])
def test_the_gradient_is_that_of_the_log_density(prior):
    model = CollapsedPosterior(FlatNetwork((2, 5, 4, 1), "tanh"), prior, 0.3)
    state, data_ = states(model), data()
    _, gradient = model.log_density(state, *data_)
    step = 1e-6 * torch.randn(model.n_dimensions, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    above, below = (model.log_density(state + sign * step, *data_)[0] for sign in (1, -1))
    torch.testing.assert_close(above - below, 2 * gradient @ step, rtol=1e-6, atol=0.0)


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


def test_the_posterior_is_that_of_draws_from_the_prior_weighed_by_their_likelihood():
    X = np.array([[-1.0], [-0.3], [0.4], [1.1]])
    y = np.array([-0.9, 0.1, 0.2, 1.2])
    model = HMCRegressor((3,), "identity", noise_scale=0.4, n_chains=8, n_warmup=200, n_draws=400).fit(X, y)
    ess = model.posterior_.ess
    assert model.posterior_.rhat < 1.05 and ess > 100
    rng = np.random.default_rng(0)
    x, z = (X[:, 0] - X.mean()) / X.std(), (y - y.mean()) / y.std()
    first, last = rng.normal(size=(400_000, 2, 3)), rng.normal(size=(400_000, 4))
    slope, level = (np.einsum("sk,sk->s", row, last[:, :3]) / np.sqrt(8) for row in first.swapaxes(0, 1))
    f = slope[:, None] * x + level[:, None] + last[:, 3:] / 2
    weight = np.exp(-0.5 * np.square((z - f) * y.std() / 0.4).sum(1))  # importance sampling from the prior
    mean = weight @ f / weight.sum()
    std = np.sqrt(weight @ np.square(f - mean) / weight.sum())
    found = model.pred_dist(X)
    assert (np.abs((found.mean - y.mean()) / y.std() - mean) < 5 * std / np.sqrt(ess)).all()
    np.testing.assert_allclose(found.epistemic_std / y.std(), std, rtol=5 / np.sqrt(ess))


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="activation must be one of"):
        FlatNetwork((1, 2, 1), "cubic")
    with pytest.raises(ValueError, match="must hold at least one layer"):
        HMCRegressor((), noise_scale=1.0).fit(np.zeros((4, 1)), np.arange(4.0))
    with pytest.raises(ValueError, match="must be positive"):
        LayerPrecisions(rate=0.0)
