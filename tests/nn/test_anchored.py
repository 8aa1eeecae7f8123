"""Features of anchored members, their gradients and priors, and the fast form of their functions."""

import math

import numpy as np
import pytest
import torch

from vmg.nn.anchored import BLOCK_ROWS, AnchoredFeatures, AnchoredFunctions
from vmg.nn.mlp import ACTIVATIONS


def make(hidden=(6, 4), n_members=3, activation="relu"):
    module = AnchoredFeatures(2, hidden, activation=activation, n_members=n_members).double()
    module.reset_parameters(torch.Generator().manual_seed(0))
    return module


def moved(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return module


@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
def test_features_are_units_inputs_and_a_one(hidden):
    module, x = make(hidden), torch.randn(5, 2).double()
    phi = module(x)
    assert phi.shape == (3, 5, module.n_features) and sum(module.group_sizes) == module.n_features
    torch.testing.assert_close(phi[..., -1], torch.ones(3, 5).double())
    torch.testing.assert_close(phi[..., -3:-1] * math.sqrt(2), x.expand(3, -1, -1))


def test_members_are_a_loop():
    module, x = moved(make(activation=("relu", "tanh"), n_members=4)), torch.randn(5, 2).double()
    phi = module(x)
    for e in range(4):
        h = x
        for position, (weight, scale) in enumerate(zip(module.weights, module.log_scales, strict=True)):
            W = weight[e] * scale[e].exp() / math.sqrt(1 if position == 0 else weight.shape[1])
            h = h @ W[:-1] + W[-1]
            h = torch.relu(h) if e < 2 else torch.tanh(h)
        torch.testing.assert_close(phi[e, :, :4], h / 2)


def test_members_may_have_rows_of_their_own():
    module, x = make(), torch.randn(3, 5, 2).double()
    torch.testing.assert_close(module(x)[1], module(x[1])[1])


def test_the_price_of_leaving_is_half_the_squared_distance():
    module = make()
    torch.testing.assert_close(module.log_prior(), torch.zeros(3).double())
    anchors = [anchor.clone() for anchor in module.anchors]
    moved(module)
    left = sum((w - a).square().sum((-2, -1)) for w, a in zip(module.weights, anchors, strict=True))
    centre = [-0.5 * math.log(2), 0.0]
    scaled = sum((s - c).square().sum((-2, -1)) for s, c in zip(module.log_scales, centre, strict=True))
    torch.testing.assert_close(module.log_prior(), -0.5 * (left + scaled))
    for kept, anchor in zip(module.anchors, anchors, strict=True):
        assert torch.equal(kept, anchor)


def test_anchors_are_standard_normal_draws_of_their_own():
    module = AnchoredFeatures(30, (40,), n_members=3)
    module.reset_parameters(torch.Generator().manual_seed(0))
    [anchor] = module.anchors
    assert not torch.equal(anchor[0], anchor[1])
    assert anchor.mean().abs() < 0.1 and abs(anchor.std() - 1) < 0.05
    assert torch.equal(anchor, module.weights[0])
    again = AnchoredFeatures(30, (40,), n_members=3)
    again.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(again.anchors[0], anchor)
    assert "anchor_0" in module.state_dict()


def test_relevance_and_scales():
    module = make()
    with torch.no_grad():
        module.log_scales[0][:, 0] = -30.0
    relevance, scale = module.relevance(), module.input_scale()
    assert relevance[0] < 1e-9 < relevance[1] and scale[0] < 1e-9 < scale[1]
    linear = make(hidden=())
    assert linear.relevance().tolist() == [1, 1] and linear.input_scale().shape == (2,)
    assert linear.log_prior().shape == (3,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "os"}, "activation must be among"),
        ({"activation": ()}, "activation must be among"),
        ({"n_members": 0}, "n_members must be at least 1; got 0"),
        ({"hidden": (0,)}, "hidden must be at least 1; got 0"),
    ],
)
def test_wrong_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        AnchoredFeatures(2, **{"hidden": (3,), **options})


@pytest.mark.parametrize("hidden", [(4,), (4, 3)])
@pytest.mark.parametrize("activation", ["relu", "tanh", ("relu", "tanh"), "cos"], ids=str)
def test_gradients_of_features(hidden, activation):
    """Those of "relu" and "tanh" are written out."""
    module, x = moved(make(hidden, 4, activation)), torch.randn(5, 2).double().requires_grad_()
    names = [name for name, _ in module.named_parameters()]

    def features(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    parameters = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]
    assert torch.autograd.gradcheck(features, (x, *parameters))


def test_features_without_gradients_are_the_same():
    module, x = moved(make((6, 4), 4, ("relu", "tanh"))), torch.randn(5, 2).double()
    with torch.no_grad():
        without = module(x)
    assert torch.equal(without, module(x))
    kept = x.clone()
    module(x).sum().backward()
    assert torch.equal(x, kept)


def make_functions(hidden, activation, n_members=4, n_inputs=3, n_outputs=2):
    features = AnchoredFeatures(n_inputs, hidden, activation=activation, n_members=n_members).double()
    generator = torch.Generator().manual_seed(0)
    features.reset_parameters(generator)
    with torch.no_grad():
        for scale in features.log_scales:
            scale += 0.3 * torch.randn(scale.shape, generator=generator)
    n = features.n_features
    mean = torch.randn(n_members, n, n_outputs, generator=generator, dtype=torch.float64)
    A = torch.randn(n_members, n, n, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(A @ A.mT + 0.1 * torch.eye(n, dtype=torch.float64))
    return features, mean, root


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, ("relu", "tanh"), ("tanh", "cos", "relu")], ids=str)
@torch.no_grad()
def test_centres_and_variances(hidden, activation):
    features, mean, root = make_functions(hidden, activation)
    x = np.random.default_rng(0).normal(size=(7, 3))
    centres, variances = AnchoredFunctions(features, mean, root)(x)
    phi = features(torch.as_tensor(x))
    np.testing.assert_allclose(centres, phi @ mean, rtol=1e-11, atol=1e-12)
    half = torch.linalg.solve_triangular(root, phi.mT, upper=False)
    np.testing.assert_allclose(variances, half.square().sum(-2), rtol=1e-10)


@torch.no_grad()
def test_the_factor_of_functions_is_their_covariance_between_rows():
    features, mean, root = make_functions((5,), ("relu", "tanh"))
    x, scale = np.random.default_rng(0).normal(size=(7, 3)), np.random.default_rng(1).uniform(1, 2, (4, 2))
    factor = AnchoredFunctions(features, mean, root).factor(x, scale)
    phi = features(torch.as_tensor(x))
    own = (phi @ torch.linalg.inv(root @ root.mT) @ phi.mT).numpy()  # of each member, [E, N, N]
    for c in range(2):
        between = np.cov((phi @ mean)[..., c].numpy().T)
        expected = between + (own * scale[:, c, None, None] ** 2).mean(0)
        np.testing.assert_allclose(factor[..., c].T @ factor[..., c], expected, rtol=1e-9)


@pytest.mark.parametrize("n_rows", [0, 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 1])
def test_rows_in_blocks_are_those_one_by_one(n_rows):
    features, mean, root = make_functions((6,), "tanh")
    functions, x = AnchoredFunctions(features, mean, root), np.random.default_rng(1).normal(size=(n_rows, 3))
    kept, before = [p.clone() for p in features.parameters()], x.copy()
    centres, variances = functions(x)
    assert (x == before).all() and all(map(torch.equal, kept, features.parameters())), "all is left as it was"
    assert centres.shape == (4, n_rows, 2) and variances.shape == (4, n_rows)
    for row in {0, n_rows // 2, n_rows - 1} if n_rows else ():
        one, variance = functions(x[row : row + 1])
        np.testing.assert_allclose(centres[:, row], one[:, 0], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(variances[:, row], variance[:, 0], rtol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("n_directions", [6, 9])
def test_directions_of_all_rows_are_the_linear_model_of_all_inputs(n_directions):
    """Six rows of twelve inputs: mean and variance at new rows are those of a weight for each input."""
    rng = np.random.default_rng(0)
    x, new, y = rng.normal(size=(6, 12)), torch.as_tensor(rng.normal(size=(5, 12))), torch.as_tensor(rng.normal(size=6))
    expected = None
    for count in (0, n_directions):
        features = AnchoredFeatures(12, (), n_directions=count).double()
        if count:
            features.span(x)
        phi, precision = features(torch.as_tensor(x))[0], torch.ones(features.n_features, dtype=torch.float64)
        root = torch.linalg.cholesky(phi.mT @ phi + torch.diag(precision))
        mean = torch.cholesky_solve(phi.mT @ y[:, None], root)
        found = AnchoredFunctions(features, mean[None], root[None])(new.numpy())
        expected = expected or found
        assert features(new).shape[-1] == features.n_features == (count + 1 if count else 12) + 1
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-7)  # a length of zero is the root of a rounding error


@torch.no_grad()
def test_fewer_directions_than_rows_are_the_principal_ones():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 30)) + 1e-3 * rng.normal(size=(200, 30))
    features = AnchoredFeatures(30, (4,), n_members=2, n_directions=2).double()
    features.span(rows)
    linear = features.linear(torch.as_tensor(rows))
    assert linear[:, -1].max() < 0.02 < linear[:, :2].abs().mean()
    twice = features.linear(torch.as_tensor(rows).expand(2, 200, 30))
    torch.testing.assert_close(twice, linear.expand_as(twice))
