import itertools
import math
import re

import pytest
import torch
from layer_inputs import every_dtype, rows
from torch.distributions import kl_divergence

from reference import assert_moments, many_draws
from vmg import MatrixNormal
from vmg.covariance import Diagonal
from vmg.fused import library
from vmg.nn import MatrixGaussianLinear

FAMILIES = ("diagonal", "rank_one", "dense")
SAMPLERS = ("marginal", "joint", "weights")
QUIET = 1e-4  # a bound on √α that makes the noise of pseudo-data negligible beside Monte Carlo error

family_pairs = pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))


def augmented(x):
    return torch.cat([x, torch.ones_like(x[..., :1])], -1) / math.sqrt(x.shape[-1] + 1)


# -- what the layer is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bias", "expected"), [(False, 7 * 5 + 7 + 5), (True, 8 * 5 + 8 + 5)])
def test_number_of_parameters(bias, expected):
    """n_in n_out + n_in + n_out [LW16, §2.2]; the bias is one more row."""
    layer = MatrixGaussianLinear(7, 5, bias)
    assert sum(p.numel() for p in layer.parameters()) == expected
    assert f"parameters={expected}" in repr(layer)
    assert f"7, 5, bias={bias}" in repr(layer)


def test_starts_as_the_authors_code():
    layer = MatrixGaussianLinear(300, 200, n_pseudo=3)
    M = layer.posterior.loc
    n = 300 * 200
    assert (M[-1] == 0).all()
    assert M[:-1].var().item() == pytest.approx(4 / 500, rel=5 * math.sqrt(2 / n))
    row_scale = layer.posterior.row_covariance.diagonal().sqrt()
    assert torch.allclose(row_scale[:-1], torch.ones(300), atol=0.05)
    assert row_scale[-1].item() == pytest.approx(math.exp(-4), rel=0.05)
    assert layer.pseudo_data.inputs.abs().max() <= 0.01
    assert layer.pseudo_data.outputs.abs().max() <= 0.01


@pytest.mark.parametrize("n_pseudo", [0, 2])
@family_pairs
def test_kl_divergence_is_that_of_the_posterior_and_of_the_pseudo_data(make_layer, row, column, n_pseudo):
    options = {"row_covariance": row, "column_covariance": column, "pseudo_noise": "factored"}
    layer = make_layer(4, 3, n_pseudo=n_pseudo, **options)
    one = torch.ones(5, dtype=torch.float64)
    prior = MatrixNormal(torch.zeros(5, 3, dtype=torch.float64), Diagonal(one), Diagonal(one[:3]))
    own = layer.pseudo_data.kl_divergence() if n_pseudo else 0
    torch.testing.assert_close(layer.kl_divergence(), kl_divergence(layer.posterior, prior) + own)


# -- the distribution of the outputs, in closed form ------------------------------------------------------------------


@family_pairs
def test_predictive_without_pseudo_data_is_the_plain_layer(make_layer, row, column):
    """[LW16, eq. 5]."""
    layer, x = make_layer(4, 3, row_covariance=row, column_covariance=column), rows(3, 4)
    posterior, predictive = layer.posterior, layer.predictive(x)
    A = augmented(x)
    U, V = posterior.row_covariance.to_dense(), posterior.column_covariance.to_dense()
    torch.testing.assert_close(predictive.mean, A @ posterior.loc)
    torch.testing.assert_close(predictive.covariance_matrix, torch.kron(V, A @ U @ A.mT))
    torch.testing.assert_close(layer.mean_weight(), posterior.loc)


@pytest.mark.parametrize("zero_mean", [False, True])
@family_pairs
def test_predictive_with_pseudo_data(make_layer, row, column, zero_mean):
    """[LW16, eq. 8], written out with explicit inverses."""
    options = {"row_covariance": row, "column_covariance": column, "zero_mean": zero_mean, "damping": 1e-3}
    layer, x = make_layer(5, 3, n_pseudo=2, **options), rows(3, 5)
    posterior, predictive = layer.posterior, layer.predictive(x)
    M, U, V = posterior.loc, posterior.row_covariance.to_dense(), posterior.column_covariance.to_dense()
    A, B = layer.pseudo_data.inputs / math.sqrt(6), layer.pseudo_data.outputs
    X = augmented(x)
    gain = X @ U @ A.mT @ torch.linalg.inv(A @ U @ A.mT + 1e-3 * torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(predictive.mean, X @ M + gain @ (B - A @ M))
    torch.testing.assert_close(predictive.covariance_matrix, torch.kron(V, X @ U @ X.mT - gain @ A @ U @ X.mT))
    assert zero_mean == (not M.any())


def test_outputs_at_the_pseudo_inputs_are_the_pseudo_outputs(make_layer):
    layer = make_layer(5, 3, n_pseudo=2, damping=1e-12)
    with torch.no_grad():
        layer.pseudo_data.inputs[:, -1] = 1  # an input the layer can be given: its bias entry is one
    predictive = layer.predictive(layer.pseudo_data.inputs[:, :5])
    torch.testing.assert_close(predictive.mean, layer.pseudo_data.outputs)
    assert predictive.variance.max() < 1e-9


@pytest.mark.parametrize("n_pseudo", [0, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_marginalising_a_row_is_removing_the_input(make_layer, n_pseudo, family):
    """[LW16, §2.3]."""
    layer, x = make_layer(6, 2, n_pseudo=n_pseudo, row_covariance=family, column_covariance=family), rows(4, 6)
    keep = torch.tensor([0, 1, 3])
    joint, alone = layer.predictive(x), layer.predictive(x[keep])
    of_vec = torch.cat([keep, 4 + keep])  # the columns of 4 rows are stacked
    torch.testing.assert_close(joint.mean[keep], alone.mean)
    torch.testing.assert_close(joint.covariance_matrix[of_vec][:, of_vec], alone.covariance_matrix)


@family_pairs
def test_kernel(make_layer, row, column):
    layer, x = make_layer(4, 3, row_covariance=row, column_covariance=column), rows(7, 4)
    K, full = layer.kernel(x), layer.kernel(x, full=True)
    V = layer.posterior.column_covariance.to_dense()
    torch.testing.assert_close(K, K.mT)
    torch.testing.assert_close(full, torch.kron(V, K))
    assert torch.linalg.eigvalsh(full).min() > -1e-10  # of rank 5 × 3, so many eigenvalues are zero
    few = layer.predictive(x[:4])  # before pseudo-data: vec of the outputs, columns stacked
    torch.testing.assert_close(layer.kernel(x[:4], full=True), few.covariance_matrix)
    torch.testing.assert_close(layer.kernel(x[:3], x[3:]), K[:3, 3:])
    assert layer.kernel(x[:3], x[3:], full=True).shape == (9, 12)


# -- draws ------------------------------------------------------------------------------------------------------------


def moments(draws):
    """First and second moments of draws [S, n], as one feature per column."""
    n = draws.shape[-1]
    i, j = torch.triu_indices(n, n)
    return torch.cat([draws, draws[:, i] * draws[:, j]], -1)


def assert_same_moments(a, b):
    """Two sets of draws [S, n] agree in mean and covariance, within five standard errors."""
    centre = a.mean(0)
    first, second = moments(a - centre), moments(b - centre)
    error = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    z = ((first.mean(0) - second.mean(0)) / error).abs()
    assert z.max() < 5, f"off by {z.max():.1f} standard errors"


def stacked(draws):
    """vec of each draw [S, B, C], columns stacked: [S, CB]."""
    return draws.mT.flatten(1)


@every_dtype
@pytest.mark.parametrize(("n_pseudo", "zero_mean"), [(0, False), (3, False), (3, True)])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", SAMPLERS)
def test_draws_follow_the_predictive(make_layer, sampling, family, n_pseudo, zero_mean, dtype):
    options = {"row_covariance": family, "column_covariance": family, "n_pseudo": n_pseudo, "zero_mean": zero_mean}
    layer, x = make_layer(5, 2, dtype=dtype, sampling=sampling, max_noise=QUIET, **options), rows(2, 5, dtype)
    predictive = layer.predictive(x)
    covariance = predictive.covariance_matrix
    if sampling == "marginal":  # rows on their own: nothing between them
        covariance = covariance * torch.eye(2, dtype=dtype).repeat(2, 2)
    with torch.no_grad():
        draws = many_draws(layer, x, 20_000)
    assert_moments(stacked(draws), predictive.mean.mT.flatten(), covariance)


@pytest.mark.parametrize("family", ["diagonal", "dense"])
@pytest.mark.parametrize("noise", ["layer", "factored"])
def test_samplers_have_the_same_marginals(make_layer, family, noise):
    """With pseudo-data that are far from certain; no closed form, so the three are held against each other."""
    options = {"n_pseudo": 3, "max_noise": 0.5, "pseudo_noise": noise, "row_covariance": family}
    layer, x = make_layer(5, 2, **options), rows(2, 5)
    draws = {}
    with torch.no_grad():
        for sampling in SAMPLERS:
            other = MatrixGaussianLinear(5, 2, sampling=sampling, **options).double()
            other.load_state_dict(layer.state_dict())
            draws[sampling] = many_draws(other, x, 20_000)
    for row in range(2):
        assert_same_moments(draws["marginal"][:, row], draws["joint"][:, row])
        assert_same_moments(draws["marginal"][:, row], draws["weights"][:, row])
    assert_same_moments(draws["joint"].flatten(1), draws["weights"].flatten(1))  # these two, with all correlations


def test_prior_weights_are_standard_normal(make_layer):
    W = make_layer(3, 2).sample_prior_weight((20_000,))
    assert W.dtype == torch.float64
    assert_moments(W.flatten(1).double(), torch.zeros(8), torch.eye(8))


# -- the mean weights, as a plain layer --------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n_pseudo", "zero_mean"), [(0, False), (3, False), (3, True)])
@family_pairs
def test_folded_mean_is_the_unfolded(make_layer, row, column, n_pseudo, zero_mean, bias):
    options = {"row_covariance": row, "column_covariance": column, "n_pseudo": n_pseudo, "zero_mean": zero_mean}
    layer, x = make_layer(5, 2, bias, **options), rows(2, 5)
    linear = layer.to_linear()
    assert type(linear) is torch.nn.Linear and (linear.bias is not None) == bias
    torch.testing.assert_close(linear(x), layer.forward_mean(x))
    torch.testing.assert_close(layer.forward_mean(x), layer.predictive(x).mean)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    assert not torch.allclose(linear(x), layer.forward_mean(x)), "a copy"


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_pseudo": -1}, "n_pseudo must be >= 0; got -1"),
        ({"row_covariance": "full"}, "row_covariance must be one of ('diagonal', 'rank_one', 'dense'); got 'full'"),
        ({"column_covariance": "x"}, "column_covariance must be one of ('diagonal', 'rank_one', 'dense'); got 'x'"),
        ({"sampling": "local"}, "sampling must be one of ('marginal', 'joint', 'weights'); got 'local'"),
        ({"kl": "full"}, "kl must be one of ('marginal', 'conditional'); got 'full'"),
        ({"zero_mean": True}, "zero_mean needs n_pseudo >= 1"),
        ({"n_pseudo": 1, "max_noise": 0.0}, "max_noise, the bound on √α, must be in (0, 1]; got 0.0"),
        ({"n_pseudo": 1, "max_noise": 1.01}, "max_noise, the bound on √α, must be in (0, 1]; got 1.01"),
        ({"n_pseudo": 1, "max_noise": math.nan}, "max_noise, the bound on √α, must be in (0, 1]; got nan"),
        ({"n_pseudo": 1, "pseudo_noise": "all"}, "noise must be one of ('layer', 'factored'); got 'all'"),
        ({"damping": 0.0}, "damping must be positive; got 0.0"),
        ({"in_features": 0}, "in_features must be at least 1; got 0"),
        ({"out_features": 0}, "out_features must be at least 1; got 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        MatrixGaussianLinear(**{"in_features": 3, "out_features": 2, **options})


@pytest.mark.parametrize("method", ["forward", "forward_mean", "predictive", "kernel"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.tensor([[1.0, 2.0, math.nan]]), "x must be finite; got NaN or infinite values"),
        (torch.tensor([[1.0, -math.inf, 2.0]]), "x must be finite; got NaN or infinite values"),
        (torch.ones(4, 2), "x must have 3 features in its last dimension; got 2"),
        (torch.ones(0, 3), "x must have at least one row; got shape (0, 3)"),
    ],
)
def test_wrong_inputs(method, x, message):
    layer = MatrixGaussianLinear(3, 2, n_pseudo=1)
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(layer, method)(x)


def test_too_many_pseudo_points_without_bias_names_the_right_rule():
    with pytest.warns(UserWarning, match=r"n_pseudo should be <.*\(3\).*got 3") as caught:
        MatrixGaussianLinear(3, 2, bias=False, n_pseudo=3)
    assert "in_features + 1" not in str(caught[0].message), "without a bias the rank is in_features"


# -- as many pseudo-points as the kernel has rank ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_pseudo", [4, 7])
@pytest.mark.parametrize("sampling", SAMPLERS)
def test_many_pseudo_points_warn_and_work(sampling, n_pseudo, dtype):
    """P >= R, as the paper ran it on narrow tables: the layer's own variance vanishes."""
    message = rf"n_pseudo should be < in_features \+ 1 \(4\).*got {n_pseudo}"
    with pytest.warns(UserWarning, match=message):
        layer = MatrixGaussianLinear(3, 2, n_pseudo=n_pseudo, sampling=sampling).to(dtype)
    with torch.no_grad():
        layer.pseudo_data.inputs.normal_()
        layer.pseudo_data.outputs.normal_()
    x = torch.randn(8, 3, dtype=dtype)
    drawn = layer(x)
    drawn.square().sum().backward()
    assert torch.isfinite(drawn).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
    assert layer.predictive(x).variance.max() < 1e-2 * layer.kernel(x).max()


@pytest.mark.filterwarnings("ignore:n_pseudo should be")
@pytest.mark.parametrize("way", ["forward", "joint", "weights", "mean"])
@pytest.mark.parametrize("row", FAMILIES)
def test_single_precision_is_right_with_more_points_than_rows(make_layer, row, way, monkeypatch):
    """Of every family, under the same noise: in single precision and in double."""
    monkeypatch.setattr(library, "available", lambda: False)  # the kernels have noise of their own
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
                value = layer.mean_weight() if way == "mean" else layer(x.float().to(dtype))
        assert value.dtype == dtype
        found.append(value.detach().double())
    assert (found[0] - found[1]).norm() < 1e-4 * found[1].norm()
