"""Convolutions, embeddings and attention against the plain modules that they stand for."""

import pytest
import torch
from torch import nn

from vmg.nn import (
    MatrixGaussianConv1d,
    MatrixGaussianConv2d,
    MatrixGaussianEmbedding,
    MatrixGaussianMultiheadAttention,
    bayesianize,
    fixed_draw,
    kl_divergence,
    to_plain,
)
from vmg.priors import IsotropicPrior

SHAPES = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 3, "dilation": 2, "padding": "same"},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "reflected": {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
    "without bias": {"kernel_size": 2, "bias": False, "padding": "valid"},
    "even, same": {"kernel_size": 4, "padding": "same"},
}
over_shapes = pytest.mark.parametrize("shape", SHAPES)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # of PyTorch's own layer
over_kinds = pytest.mark.parametrize(("kind", "size"), [(nn.Conv1d, (9,)), (nn.Conv2d, (7, 8))])


@over_kinds
@over_shapes
def test_a_convolution_starts_at_the_plain_one_and_ends_as_one(kind, size, shape):
    plain = kind(2, 3, **SHAPES[shape]).double()
    x = torch.randn(4, 2, *size, dtype=torch.float64)
    layer = bayesianize(plain, n_data=100)
    torch.testing.assert_close(layer.forward_centre(x), plain(x))
    torch.testing.assert_close(layer.weight, plain.weight)
    torch.testing.assert_close(to_plain(layer)(x), plain(x))
    with fixed_draw(layer):
        drawn = layer(x)
        assert torch.equal(layer(x), drawn)
        torch.testing.assert_close(to_plain(layer)(x), drawn)
    assert not torch.equal(layer(x), drawn)


@over_kinds
@over_shapes
def test_marginal_draws_have_the_mean_of_patches(kind, size, shape):
    plain = kind(2, 3, **SHAPES[shape]).double()
    layer = bayesianize(plain, sampling="marginal", initial_scale=1e-8)
    x = torch.randn(4, 2, *size, dtype=torch.float64)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-2, rtol=0)  # the bias and pseudo-data keep some noise


def test_positions_share_the_kernel_unless_marginal():
    """Averaged over many positions a shared kernel keeps its spread; noise of each position goes away."""
    spread = {}
    for sampling in ("weights", "marginal"):
        layer = MatrixGaussianConv1d(1, 1, 1, bias=False, sampling=sampling, initial_scale=0.5)
        x = torch.ones(1, 1, 400)
        with torch.no_grad():
            spread[sampling] = torch.stack([layer(x).mean() for _ in range(60)]).std()
    assert spread["marginal"] < 0.3 * spread["weights"]


def test_the_divergence_is_that_of_the_matrix_once():
    layer = MatrixGaussianConv2d(2, 3, 3, n_pseudo=4)
    assert torch.equal(kl_divergence(nn.Sequential(layer)), layer.matrix.kl_divergence())


def test_wrong_options_of_a_convolution():
    with pytest.raises(ValueError, match="sampling must be one of"):
        MatrixGaussianConv2d(2, 3, 3, sampling="joint")
    with pytest.raises(ValueError, match=r"batch_shape must be empty for a convolution; got \(2,\)"):
        MatrixGaussianConv2d(2, 3, 3, batch_shape=(2,))
    with pytest.warns(UserWarning, match="its channels are in 2 groups"):
        bayesianize(nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Linear(3, 3)))


# -- embeddings -------------------------------------------------------------------------------------------------------


def test_an_embedding_starts_at_its_table():
    plain, tokens = nn.Embedding(7, 4, padding_idx=2), torch.randint(7, (5, 3))
    layer = bayesianize(plain)
    assert isinstance(layer, MatrixGaussianEmbedding)
    torch.testing.assert_close(layer.forward_mean(tokens), plain(tokens))
    torch.testing.assert_close(to_plain(layer)(tokens), plain(tokens))


def test_the_prior_of_a_converted_table():
    assert bayesianize(nn.Embedding(9, 4)).matrix.prior.scale == 3.0  # N(0, 1) for each entry
    assert bayesianize(nn.Embedding(9, 4), prior=IsotropicPrior(0.5)).matrix.prior.scale == 0.5


def test_a_token_that_comes_twice_has_one_vector_and_padding_has_its_mean():
    layer = MatrixGaussianEmbedding(7, 4, padding_idx=2)
    tokens = torch.tensor([[1, 2, 1], [3, 2, 3]])
    vectors = layer(tokens)
    assert torch.equal(vectors[0, 0], vectors[0, 2])
    assert not torch.equal(vectors[0, 0], vectors[1, 0])
    torch.testing.assert_close(vectors[:, 1], layer.weight[2].expand(2, 4))
    with fixed_draw(layer):
        assert torch.equal(layer(tokens), layer(tokens))
        torch.testing.assert_close(to_plain(layer)(tokens), layer(tokens))


@pytest.mark.parametrize("row_covariance", ["diagonal", "dense"])
def test_the_padding_token_is_not_trained(row_covariance):
    layer = MatrixGaussianEmbedding(7, 4, padding_idx=2, row_covariance=row_covariance)
    assert not layer.matrix.loc[2].any()
    without = MatrixGaussianEmbedding(7, 4, row_covariance=row_covariance)
    without.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer.kl_divergence(), without.kl_divergence())
    with torch.no_grad():
        layer.matrix.loc[2] = 1.0  # as that of a converted table may be
    (layer(torch.tensor([1, 2, 3])).sum() - layer.kl_divergence()).backward()
    assert not layer.matrix.loc.grad[2].any()
    assert layer.matrix.loc.grad[[1, 3]].all()


@pytest.mark.parametrize("family", ["diagonal", "rank_one"])
def test_rows_of_an_embedding_are_rows_of_its_matrix(family):
    layer = MatrixGaussianEmbedding(3, 2, row_covariance=family, initial_scale=0.5).double()
    tokens = torch.arange(3)
    with torch.no_grad():
        drawn = torch.stack([layer(tokens) for _ in range(4_000)])
        expected = torch.stack([layer.matrix.sample_weight() for _ in range(4_000)]) / 3**0.5
    torch.testing.assert_close(drawn.std(0), expected.std(0), atol=0.03, rtol=0.1)
    torch.testing.assert_close(drawn.mean(0), layer.weight.detach(), atol=0.05, rtol=0)


def test_wrong_options_of_an_embedding():
    with pytest.raises(ValueError, match="an embedding must be without pseudo-data"):
        MatrixGaussianEmbedding(3, 2, n_pseudo=1)
    with pytest.warns(UserWarning, match="max_norm"):
        bayesianize(nn.Sequential(nn.Embedding(3, 3, max_norm=1.0), nn.Linear(3, 3)))


# -- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_starts_at_the_plain_one(batch_first, bias):
    plain = nn.MultiheadAttention(8, 2, bias=bias, batch_first=batch_first).double()
    x, other = torch.randn(5, 3, 8, dtype=torch.float64), torch.randn(5, 3, 8, dtype=torch.float64)
    layer = bayesianize(plain)
    assert isinstance(layer, MatrixGaussianMultiheadAttention)
    with fixed_draw(layer):
        layer.in_proj.drawn, layer.out_proj.drawn = layer.in_proj.centre_weight(), layer.out_proj.centre_weight()
        for a, b in zip(layer(x, other, other), plain(x, other, other), strict=True):
            torch.testing.assert_close(a, b)
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if not batch_first else torch.ones(3, 3).triu(1).bool()
        torch.testing.assert_close(layer(x, x, x, attn_mask=mask)[0], plain(x, x, x, attn_mask=mask)[0])
    torch.testing.assert_close(to_plain(layer)(x, x, x)[0], plain(x, x, x)[0])
    with torch.no_grad():
        torch.testing.assert_close(layer.in_proj_weight, plain.in_proj_weight)
    assert (layer(x, x, x)[0] - layer(x, x, x)[0]).abs().max() > 0


def test_attention_that_is_left():
    with pytest.raises(ValueError, match="embed_dim must be a multiple of num_heads"):
        MatrixGaussianMultiheadAttention(5, 2)
    for options, reason in (({"kdim": 3}, "sizes of their own"), ({"add_bias_kv": True}, "bias_kv")):
        with pytest.warns(UserWarning, match=reason):
            bayesianize(nn.ModuleList([nn.MultiheadAttention(4, 2, **options), nn.Linear(3, 3)]))
