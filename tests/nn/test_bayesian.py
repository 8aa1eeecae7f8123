"""Functions that act on all layers of a model."""

import pytest
import torch
from torch import nn

from vmg.nn import MLP, BayesianModule, MatrixGaussianLinear, kl_divergence, use_generator


class Shift(BayesianModule):
    """A user's own layer."""

    def kl_divergence(self):
        return torch.tensor(2.5)


def test_kl_divergence_sums_over_nested_layers():
    network = MLP(3, (4,), 2, n_pseudo=2)
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 3), network), "shift": Shift()})
    expected = sum(layer.kl_divergence() for layer in network.layers) + 2.5
    torch.testing.assert_close(kl_divergence(model), expected)


def test_kl_divergence_counts_a_shared_layer_once():
    layer = MatrixGaussianLinear(3, 3)
    assert torch.equal(kl_divergence(nn.Sequential(layer, nn.ReLU(), layer)), layer.kl_divergence())


def test_kl_divergence_needs_a_bayesian_layer():
    with pytest.raises(ValueError, match="Sequential holds no Bayesian layer"):
        kl_divergence(nn.Sequential(nn.Linear(2, 2)))


def test_use_generator_reaches_nested_layers_and_none_gives_the_default_back():
    model = nn.Sequential(nn.Sequential(MatrixGaussianLinear(3, 4)), MatrixGaussianLinear(4, 1))
    x = torch.randn(5, 3)
    use_generator(model, torch.Generator().manual_seed(1))
    first = model(x)
    use_generator(model, torch.Generator().manual_seed(1))
    assert torch.equal(model(x), first)
    use_generator(model, None)
    torch.manual_seed(7)
    ambient = model(x)
    torch.manual_seed(7)
    assert torch.equal(model(x), ambient)
