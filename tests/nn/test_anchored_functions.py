"""The fast form of anchored networks' functions against features, a product and a solve."""

import numpy as np
import pytest
import torch

from vmg.nn.anchored import AnchoredFeatures
from vmg.nn.anchored_functions import BLOCK_ROWS, AnchoredFunctions
from vmg.nn.mlp import ACTIVATIONS


def make(hidden, activation, n_members=4, n_inputs=3, n_outputs=2):
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
    features, mean, root = make(hidden, activation)
    x = np.random.default_rng(0).normal(size=(7, 3))
    centres, variances = AnchoredFunctions(features, mean, root)(x)
    phi = features(torch.as_tensor(x))
    np.testing.assert_allclose(centres, phi @ mean, rtol=1e-11, atol=1e-12)
    half = torch.linalg.solve_triangular(root, phi.mT, upper=False)
    np.testing.assert_allclose(variances, half.square().sum(-2), rtol=1e-10)


@pytest.mark.parametrize("n_rows", [0, 1, BLOCK_ROWS, 2 * BLOCK_ROWS + 1])
def test_rows_in_blocks_are_those_one_by_one(n_rows):
    functions = AnchoredFunctions(*make((6,), "tanh"))
    x = np.random.default_rng(1).normal(size=(n_rows, 3))
    centres, variances = functions(x)
    assert centres.shape == (4, n_rows, 2) and variances.shape == (4, n_rows)
    for row in {0, n_rows // 2, n_rows - 1} if n_rows else ():
        one, variance = functions(x[row : row + 1])
        np.testing.assert_allclose(centres[:, row], one[:, 0], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(variances[:, row], variance[:, 0], rtol=1e-12)


def test_the_module_is_left_as_it_was():
    features, mean, root = make((4,), "tanh")
    kept = [parameter.clone() for parameter in features.parameters()]
    x = np.ones((3, 3))
    AnchoredFunctions(features, mean, root)(x)
    assert all(torch.equal(a, b) for a, b in zip(kept, features.parameters(), strict=True))
    assert (x == 1).all()
