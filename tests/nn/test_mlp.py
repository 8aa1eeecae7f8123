import re

import pytest
import torch
from torch import nn

from vmg.nn import MLP, MatrixGaussianLinear, fixed_draw, to_plain, use_generator


def rows(n, n_features=3):
    return torch.randn(n, n_features, dtype=torch.float64)


@pytest.fixture
def build(perturb):
    return lambda *args, **options: perturb(MLP(*args, **options))


def test_is_a_chain_of_layers(build):
    network, x = build(3, (4,), 2, activation="tanh", n_pseudo=2), rows(6)
    use_generator(network, torch.Generator().manual_seed(1))
    drawn = network(x)
    use_generator(network, torch.Generator().manual_seed(1))
    first, second = network.layers
    assert torch.equal(drawn, second(torch.tanh(first(x))))
    assert torch.equal(network.forward_mean(x), second.forward_mean(torch.tanh(first.forward_mean(x))))


def test_n_pseudo_per_layer():
    network = MLP(6, (4,), 2, n_pseudo=[3, 0])
    assert [layer.n_pseudo for layer in network.layers] == [3, 0]
    assert [layer.n_pseudo for layer in MLP(6, (4,), 2, n_pseudo=3).layers] == [3, 3]


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", torch.relu),
        ("tanh", torch.tanh),
        ("cos", torch.cos),
        ("logistic", torch.sigmoid),
        ("identity", lambda h: h),
        (torch.nn.functional.softplus, torch.nn.functional.softplus),
    ],
)
def test_activations_and_the_mean_network_as_plain_modules(build, activation, function):
    network, x = build(3, (4, 5), 2, activation=activation, n_pseudo=2), rows(6)
    plain = to_plain(network)
    assert type(plain) is nn.Sequential
    assert not any(isinstance(m, MatrixGaussianLinear) for m in plain.modules())
    assert sum(isinstance(m, nn.Linear) for m in plain.modules()) == 3
    torch.testing.assert_close(plain(x), network.forward_mean(x))
    one, two, three = (m for m in plain.modules() if isinstance(m, nn.Linear))
    torch.testing.assert_close(plain(x), three(function(two(function(one(x))))))


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("n_pseudo", [0, 2])
def test_sampled_functions_are_consistent_across_inputs(build, n_pseudo, prior):
    network, x = build(3, (4,), 2, n_pseudo=n_pseudo), rows(6)
    f = network.sample_functions(5, prior=prior)
    values = f(x)
    assert values.dtype == torch.float64
    assert torch.equal(f(x), values)
    torch.testing.assert_close(f(x[[4, 1]]), values[:, [4, 1]])
    torch.testing.assert_close(f(torch.cat([rows(3), x]))[:, 3:], values)
    assert not torch.allclose(values[0], values[1]), "each function has weights of its own"
    assert not values.requires_grad


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_pseudo": [1, 2, 3]}, "n_pseudo must be one number or one for each of 2 layers; got [1, 2, 3]"),
        ({"n_pseudo": -2}, "n_pseudo must be >= 0; got -2"),
        ({"activation": "swish"}, "activation must be callable or one of"),
        ({"row_covariance": "full"}, "row_covariance must be one of"),
        ({"hidden": (0,)}, "out_features must be at least 1; got 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MLP(**{"in_features": 6, "hidden": (4,), "out_features": 2, **options})


def test_networks_inside_other_models_become_plain(build):
    network, x = build(3, (4,), 2, n_pseudo=2), rows(6)
    model = nn.Sequential(network, nn.Softmax(-1))
    torch.testing.assert_close(to_plain(model)(x), torch.softmax(network.forward_mean(x), -1))
    assert type(model[0]) is MLP
    with fixed_draw(network):
        torch.testing.assert_close(to_plain(network)(x), network(x))
