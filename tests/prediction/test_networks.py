"""Draws of a network: outputs and whole functions."""

import pytest
import torch
from torch import nn

import vmg.prediction.networks
from reference import assert_moments
from vmg.nn import MLP, bayesianize
from vmg.prediction import draw_functions, sample_outputs


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_sample_outputs_of_an_mlp(batch_shape):
    network = MLP(3, (4,), 2, n_pseudo=2, batch_shape=batch_shape)
    outputs = sample_outputs(network, torch.randn(5, 3), 6, batch_shape=batch_shape)
    assert outputs.shape == (6, *batch_shape, 5, 2)
    assert not outputs.requires_grad
    assert outputs.std(0).min() > 0


def test_sample_outputs_of_any_module():
    network = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    outputs = sample_outputs(network, torch.randn(5, 3), 6)
    assert outputs.shape == (6, 5, 2)
    assert outputs.std(0).min() > 0


def test_long_inputs_are_cut_into_chunks(monkeypatch):
    monkeypatch.setattr(vmg.prediction.networks, "NUMBERS_AT_ONCE", 2)
    network, x, sizes = bayesianize(nn.Sequential(nn.Linear(3, 1))), torch.randn(5, 3), []
    network.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    assert sample_outputs(network, x, 6).shape == (6, 5, 1)
    assert sizes == [2, 2, 1] * 6


def test_many_samples_are_drawn_in_groups(monkeypatch):
    network, x, groups = MLP(3, (4,), 2, n_pseudo=2), torch.randn(5, 3), []
    original = MLP.sample_functions
    monkeypatch.setattr(MLP, "sample_functions", lambda self, n: groups.append(n) or original(self, n))
    monkeypatch.setattr(vmg.prediction.networks, "WEIGHTS_AT_ONCE", 3 * (4 * 4 + 5 * 2))
    assert sample_outputs(network, x, 7).shape == (7, 5, 2)
    assert draw_functions(network, x, 7, seed=0).shape == (7, 5, 2)
    assert groups == [3, 3, 1] * 2


def test_a_sample_of_an_mlp_is_one_set_of_weights():
    """Without hidden layers it is affine, across chunks of rows too."""
    network, (a, b) = MLP(3, (), 2, n_pseudo=2).double(), torch.randn(2, 3, dtype=torch.float64)
    values = sample_outputs(network, torch.stack([a, b, 0.25 * a + 0.75 * b]), 5)
    torch.testing.assert_close(values[:, 2], 0.25 * values[:, 0] + 0.75 * values[:, 1])


@pytest.mark.parametrize("n_samples", [0, -1])
def test_too_few_samples(n_samples):
    with pytest.raises(ValueError, match=f"n_samples must be at least 1; got {n_samples}"):
        sample_outputs(MLP(3, (), 1), torch.ones(2, 3), n_samples)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_row_gets_the_same_functions_in_any_company(batch_shape, monkeypatch):
    network, x = MLP(3, (4,), 2, n_pseudo=2, batch_shape=batch_shape), torch.randn(7, 3)
    together = draw_functions(network, x, 5, seed=3)
    assert together.shape == (5, *batch_shape, 7, 2)
    assert together.dtype == torch.float64
    order = torch.tensor([4, 0, 6])
    torch.testing.assert_close(draw_functions(network, x[order], 5, seed=3), together[..., order, :])
    for limit in (1, 20):
        monkeypatch.setattr(vmg.prediction.networks, "NUMBERS_AT_ONCE", limit)
        torch.testing.assert_close(draw_functions(network, x, 5, seed=3), together)
    assert (draw_functions(network, x, 5, seed=4) != together).all()


def test_memory_of_functions_does_not_grow_with_replicas(monkeypatch):
    sizes = []
    network = MLP(3, (1,), 1, batch_shape=(4,), activation=lambda h: sizes.append(h.shape[-2]) or h)
    monkeypatch.setattr(vmg.prediction.networks, "NUMBERS_AT_ONCE", 40)
    draw_functions(network, torch.randn(5, 3), 5, seed=0)
    assert sizes == [2, 2, 1]


def test_drawing_functions_leaves_the_network_as_it_is():
    network = MLP(3, (4,), 2, n_pseudo=2)
    generator = torch.Generator().manual_seed(1)
    network.layers[0].generator = generator
    before, state = [p.clone() for p in network.parameters()], generator.get_state()
    draw_functions(network, torch.randn(5, 3), 3, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before, strict=True))
    assert all(p.dtype == torch.float32 for p in network.parameters())
    assert network.layers[0].generator is generator
    assert torch.equal(generator.get_state(), state)


def test_a_drawn_function_is_one_function():
    """Without hidden layers each draw is affine: the value between two points lies between their values."""
    network, (a, b) = MLP(3, (), 2, n_pseudo=2), torch.randn(2, 3, dtype=torch.float64)
    values = draw_functions(network, torch.stack([a, b, 0.25 * a + 0.75 * b]), 5, seed=0)
    torch.testing.assert_close(values[:, 2], 0.25 * values[:, 0] + 0.75 * values[:, 1])


def test_functions_have_the_joint_distribution_of_the_layer(perturb):
    """One layer without pseudo-data: f(x) of all rows is N(x̂M, (x̂Ux̂ᵀ) V)."""
    network, x = perturb(MLP(2, (), 1)), torch.randn(3, 2, dtype=torch.float64)
    with torch.no_grad():
        exact = network.layers[0].predictive(x)
        mean, covariance = exact.mean[:, 0], (exact.row_covariance.to_dense() * exact.column_covariance.to_dense())
    assert_moments(draw_functions(network, x, 20_000, seed=0)[..., 0], mean, covariance)
