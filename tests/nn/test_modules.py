"""Convolutions, attention, recurrent layers and embeddings against the plain modules that they stand for."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from vmg.nn import (
    MatrixGaussianEmbedding,
    MatrixGaussianModule,
    bayesianize,
    fixed_draw,
    kl_divergence,
    to_plain,
)
from vmg.priors import IsotropicPrior

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # of PyTorch's own layer
ROWS, TOKENS = (torch.randn(4, 3, dtype=torch.float64) for _ in range(2)), torch.randn(5, 4, 8, dtype=torch.float64)
LINE, IMAGE, BODY = (torch.randn(3, 4, *size, dtype=torch.float64) for size in ((9,), (7, 8), (4, 4, 4)))
STEPS = torch.randn(5, 2, 3, dtype=torch.float64)

MODULES = {
    "line": (nn.Conv1d(4, 3, 3), LINE),
    "strided": (nn.Conv2d(4, 3, 3, stride=2, padding=1), IMAGE),
    "dilated": (nn.Conv2d(4, 3, 3, dilation=2, padding="same"), IMAGE),
    "circular": (nn.Conv1d(4, 3, 3, padding=1, padding_mode="circular"), LINE),
    "reflected": (nn.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), IMAGE),
    "without bias": (nn.Conv2d(4, 3, 2, bias=False, padding="valid"), IMAGE),
    "even, same": (nn.Conv1d(4, 3, 4, padding="same"), LINE),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), IMAGE),
    "depthwise": (nn.Conv1d(4, 4, 3, groups=4), LINE),
    "body": (nn.Conv3d(4, 2, 2), BODY),
    "transposed": (nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), IMAGE),
    "bilinear": (nn.Bilinear(3, 3, 2), *ROWS),
    "attention": (nn.MultiheadAttention(8, 2), TOKENS, TOKENS, TOKENS),
    "batch first": (nn.MultiheadAttention(8, 2, bias=False, batch_first=True), TOKENS, TOKENS.flip(0), TOKENS),
    "gru": (nn.GRU(3, 4, 2, bidirectional=True), STEPS),
    "lstm": (nn.LSTM(3, 4, bias=False, batch_first=True), STEPS),
    "cell": (nn.LSTMCell(3, 4), STEPS[0]),
}
every_module = pytest.mark.parametrize("name", MODULES)


def make(name, **options):
    plain, *inputs = MODULES[name]
    plain = copy.deepcopy(plain).double()
    return plain, bayesianize(plain, n_data=100, **options), inputs


def first(output):
    return output[0] if isinstance(output, tuple) else output


@every_module
def test_a_module_starts_at_the_plain_one_and_ends_as_one(name):
    plain, layer, inputs = make(name)
    assert isinstance(layer, MatrixGaussianModule)
    assert str(plain) in str(layer).splitlines()[1] or isinstance(plain, nn.MultiheadAttention)
    expected = first(plain(*inputs))
    torch.testing.assert_close(first(layer.forward_mean(*inputs)), expected)
    torch.testing.assert_close(first(to_plain(layer)(*inputs)), expected)
    with torch.no_grad():
        for parameter, value in plain.named_parameters():
            torch.testing.assert_close(getattr(layer, parameter) if "." not in parameter else value, value)
    with fixed_draw(layer):
        drawn = first(layer(*inputs))
        assert torch.equal(first(layer(*inputs)), drawn)
        torch.testing.assert_close(first(to_plain(layer)(*inputs)), drawn)
    assert not torch.equal(first(layer(*inputs)), drawn)


@every_module
def test_a_module_trains_copies_and_changes_its_precision(name):
    _, layer, inputs = make(name)
    terms = [matrix.kl_divergence() for matrix in layer.matrices.values()]
    for model in ([layer], [layer, *layer.matrices.values()]):  # what one holds is its own to count
        torch.testing.assert_close(kl_divergence(nn.ModuleList(model)), sum(terms))
    (first(layer(*inputs)).square().sum() + layer.kl_divergence()).backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        same.load_state_dict(layer.state_dict())
        torch.testing.assert_close(first(same.forward_mean(*inputs)), first(layer.forward_mean(*inputs)))
    assert first(layer.float()(*(x.float() for x in inputs))).dtype is torch.float32
    elsewhere = bayesianize(to_plain(layer).to("meta"))
    assert first(elsewhere(*(x.float().to("meta") for x in inputs))).is_meta
    assert {p.device.type for p in (*elsewhere.parameters(), *to_plain(elsewhere).parameters())} == {"meta"}


def test_a_module_stands_in_for_the_plain_one():
    plain = nn.Conv2d(2, 3, 3, padding=1)
    layer = MatrixGaussianModule(plain, n_pseudo=4)
    assert layer.kernel_size == (3, 3)
    assert layer.matrices["weight"].n_pseudo == 4
    torch.testing.assert_close(layer.forward_mean(IMAGE[:, :2].float()), plain(IMAGE[:, :2].float()))
    attention = MatrixGaussianModule(nn.MultiheadAttention(8, 2, batch_first=True), n_pseudo=2)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    encoder.self_attn = attention
    with torch.no_grad():
        assert not torch.equal(encoder(TOKENS.float()), encoder(TOKENS.float()))
    with pytest.warns(UserWarning, match="weight of a MatrixGaussianModule is its mean, without noise"):
        assert layer.weight.shape == (3, 2, 3, 3)


def test_positions_and_steps_share_one_draw():
    """Averaged over many positions a shared kernel keeps its spread."""
    layer = MatrixGaussianModule(nn.Conv1d(1, 1, 1, bias=False), initial_scale=0.5)
    with torch.no_grad():
        drawn = torch.stack([layer(torch.ones(1, 1, 400)).flatten() for _ in range(60)])
    torch.testing.assert_close(drawn.mean(1).std(), drawn[:, 0].std())


def test_packed_sequences_and_masks():
    plain, layer, _ = make("gru")
    packed = pack_sequence([STEPS[:, 0], STEPS[:3, 1]])
    torch.testing.assert_close(layer.forward_mean(packed)[0].data, plain(packed)[0].data)
    plain, layer, _ = make("attention")
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    centre = layer.forward_mean(TOKENS, TOKENS, TOKENS, attn_mask=mask)[0]
    torch.testing.assert_close(centre, plain(TOKENS, TOKENS, TOKENS, attn_mask=mask)[0])


def test_threads_have_draws_of_their_own():
    """A shared place for the weights of a draw would mix those of two calls."""
    _, layer, (x,) = make("strided", initial_scale=0.5)
    outputs = []
    threads = [threading.Thread(target=lambda: outputs.append(layer(x).detach())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({out.sum().item() for out in outputs}) == 8


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.MultiheadAttention(4, 2, kdim=3), "its in_proj_bias cannot be part of a weight matrix"),
        (nn.MultiheadAttention(4, 2, add_bias_kv=True), "its bias_k, bias_v cannot be part"),
        (nn.ConvTranspose1d(2, 4, 3, groups=2), "its channels are transposed in 2 groups"),
        (nn.EmbeddingBag(3, 3), "EmbeddingBag has no Bayesian counterpart"),
        (nn.Embedding(3, 3, max_norm=1.0), "max_norm"),
    ],
)
def test_modules_that_are_left_with_a_warning(module, reason):
    with pytest.warns(UserWarning, match=reason):
        bayesianize(nn.ModuleList([module, nn.Linear(3, 3)]))


def test_wrong_options_of_a_module():
    with pytest.raises(ValueError, match=r"batch_shape must be empty for Conv2d; got .*\(2,\)"):
        MatrixGaussianModule(nn.Conv2d(2, 3, 3), batch_shape=(2,))
    with pytest.raises(ValueError, match="an embedding must be without pseudo-data"):
        MatrixGaussianEmbedding(3, 2, n_pseudo=1)


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
