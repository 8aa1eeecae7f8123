"""The mean of a matrix Gaussian layer, as weights and as a plain layer."""

import itertools

import pytest
import torch
from layer_inputs import rows

from vmg.covariance import Diagonal
from vmg.math import preactivations as F

FAMILIES = ("diagonal", "rank_one", "dense")

family_pairs = pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n_pseudo", "zero_mean"), [(0, False), (3, False), (3, True)])
@family_pairs
def test_folded_mean_is_the_unfolded(make_layer, row, column, n_pseudo, zero_mean, bias):
    options = {"row_covariance": row, "column_covariance": column, "n_pseudo": n_pseudo, "zero_mean": zero_mean}
    layer, x = make_layer(5, 2, bias, **options), rows(2, 5)
    for centre, forward in ((False, layer.forward_mean), (True, layer.forward_centre)):
        linear = layer.to_linear(centre=centre)
        assert type(linear) is torch.nn.Linear
        assert (linear.bias is not None) == bias
        torch.testing.assert_close(linear(x), forward(x))
    torch.testing.assert_close(layer.forward_centre(x), layer.predictive(x).mean)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize(
    ("row", "n_pseudo", "zero_mean"), [("diagonal", 5, False), ("dense", 5, True), ("diagonal", 12, False)]
)
@pytest.mark.parametrize("noise", ["layer", "factored"])
@pytest.mark.filterwarnings("ignore:n_pseudo should be")
def test_mean_weight_is_the_mean_of_draws(make_layer, row, n_pseudo, zero_mean, noise, batch_shape):
    """Under strong noise of the pseudo-inputs, where the weights at the mean pseudo-data are far from it."""
    options = {"row_covariance": row, "n_pseudo": n_pseudo, "zero_mean": zero_mean, "batch_shape": batch_shape}
    layer = make_layer(9, 2, pseudo_noise=noise, max_noise=0.5 if n_pseudo < 10 else 0.25, **options)
    with torch.no_grad():
        layer.pseudo_data.points.normal_()
        mean = layer.sample_weight((8_000,)).mean(0)
        moved = (layer.centre_weight() - mean).norm()
        assert moved > 0.1 * mean.norm()
        assert (layer.mean_weight() - mean).norm() < 0.5 * moved
    assert torch.equal(layer.mean_weight(), layer.mean_weight())


def test_without_noise_the_mean_is_the_centre(make_layer):
    layer = make_layer(5, 2, n_pseudo=3, max_noise=1e-6)
    torch.testing.assert_close(layer.mean_weight(), layer.centre_weight())
    plain = make_layer(5, 2)
    assert torch.equal(plain.mean_weight(), plain.centre_weight())


def test_average_mean_is_an_average_of_folded_means(make_layer):
    A, B, M = torch.randn(7, 2, 3, 5).double(), torch.randn(2, 3, 4).double(), torch.randn(2, 5, 4).double()
    U = Diagonal(torch.rand(2, 5).double() + 0.5)
    for mean in (M, None):
        expected = torch.stack([F.fold_mean(mean, U, draw, B, 0.1) for draw in A]).mean(0)
        torch.testing.assert_close(F.average_mean(mean, U, A, B, 0.1), expected)


def test_to_linear_is_a_copy(make_layer):
    layer, x = make_layer(3, 2), rows(2, 3)
    linear = layer.to_linear()
    before = linear(x)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    assert torch.equal(linear(x), before)
    assert not torch.allclose(layer.forward_mean(x), before)


@pytest.mark.filterwarnings("ignore:n_pseudo should be")
@pytest.mark.parametrize("way", ["forward", "joint", "weights", "centre"])
@pytest.mark.parametrize("row", FAMILIES)
def test_single_precision_is_right_with_more_points_than_rows(make_layer, row, way, monkeypatch):
    """Of every family, under the same noise: in single precision and in double."""
    sampling = "joint" if way == "joint" else "marginal"
    layer, x = make_layer(4, 2, n_pseudo=9, row_covariance=row, sampling=sampling), rows(3, 4)
    with torch.no_grad():
        layer.pseudo_data.points.normal_()
    noise, randn, found = {}, torch.randn, []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "randn", lambda *shape, **o: noise.setdefault(shape, randn(*shape)).to(o["dtype"]))
            if way == "weights":
                value = layer.sample_weight((2,))
            else:
                value = layer.centre_weight() if way == "centre" else layer(x.float().to(dtype), (2,))
        assert value.dtype == dtype
        found.append(value.detach().double())
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()
