"""Encoders, tokens and checkpoints: what a user of transformers meets."""

import math
import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vmg.nn import MatrixGaussianLinear, add_lora, bayesianize, conversion, fixed_draw, to_plain, use_generator


def make_encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return bayesianize(plain, n_data=100, **options)


@pytest.mark.works_with("`nn.TransformerEncoder`", "both modes; the fused path of eval mode is bypassed")
@pytest.mark.parametrize("options", [{}, {"skip": ".*self_attn"}, {"only": ".*linear1"}])
@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_draws_in_both_modes(options, training):
    """In eval mode PyTorch's fast path took the layers' weights, which were not there."""
    model, x = make_encoder(**options).train(training), torch.randn(3, 5, 8)
    with torch.no_grad():
        assert (model(x) - model(x)).abs().max() > 0
        mask = torch.tensor([[False] * 4 + [True]] * 3)
        assert torch.isfinite(model(x, src_key_padding_mask=mask)).all()


def test_the_mean_of_an_encoder_is_the_plain_one():
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(to_plain(bayesianize(plain))(x), plain(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n_pseudo", [0, 2])
@pytest.mark.parametrize("family", ["diagonal", "rank_one"])
def test_tokens_share_one_weight_matrix(n_pseudo, family):
    """64 equal tokens drawn one by one had a mean with an eighth of the spread of one."""
    layer = MatrixGaussianLinear(3, 1, n_pseudo=n_pseudo, row_covariance=family, initial_scale=0.5)
    x = torch.randn(1, 1, 3).expand(1, 64, 3)
    with torch.no_grad():
        drawn = torch.stack([layer(x)[0, :, 0] for _ in range(200)])
    torch.testing.assert_close(drawn.mean(1).std(), drawn[:, 0].std(), rtol=1e-4, atol=1e-6)


@pytest.mark.works_with("activation checkpointing", "both kinds, with PyTorch's default generator")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_gradients_are_those_without(reentrant):
    model = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), initial_scale=0.5).double()
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(1)
        model.zero_grad()
        run(x).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_with_a_generator_is_refused(reentrant):
    """Its state is not put back, so the second pass would draw other noise and give gradients of another function."""
    model, x = bayesianize(nn.Linear(3, 2)), torch.randn(5, 3, requires_grad=True)
    use_generator(model, torch.Generator())
    out = checkpoint(model, x, use_reentrant=reentrant)
    with pytest.raises(RuntimeError, match="must draw from PyTorch's default generator"):
        out.sum().backward()


class Conv1D(nn.Module):
    """As in ``transformers.pytorch_utils``: a linear layer with the weight [in, out]."""

    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_in, n_out)), nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_the_transposed_linear_layer_of_hugging_face(monkeypatch):
    plain, x = nn.Sequential(Conv1D(4, 3), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    assert conversion(bayesianize(plain)).left == {"0": "Conv1D has no Bayesian counterpart"}
    library = types.SimpleNamespace(Conv1D=Conv1D)
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", library)
    model = bayesianize(plain)
    assert list(conversion(model).converted) == ["0", "2"]
    torch.testing.assert_close(to_plain(model)(x), plain(x))
    adapted = add_lora(plain, only="0", rank=2)
    torch.testing.assert_close(to_plain(adapted)(x), plain(x))


# -- low-rank adapters ------------------------------------------------------------------------------------------------


def test_an_adapted_model_starts_at_the_frozen_one_and_trains_adapters_only():
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    model, x = add_lora(plain, only="linear.*", rank=3, alpha=6, n_data=100), torch.randn(3, 5, 8)
    torch.testing.assert_close(to_plain(model)(x), plain(x), atol=1e-5, rtol=1e-4)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all(".down." in name or ".up." in name for name in trained)
    assert model.linear1.scaling == 2
    with torch.no_grad():
        assert (model(x) - model(x)).abs().max() > 0


def test_an_adapter_is_its_base_plus_a_product():
    plain = nn.Linear(4, 3)
    seen = []
    plain.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    layer, x = add_lora(plain, rank=2), torch.randn(5, 4)
    with torch.no_grad():
        layer.up.loc.normal_()
        with fixed_draw(layer):
            expected = plain(x) + x / 2 @ layer.down.drawn / math.sqrt(2) @ layer.up.drawn
            seen.clear()
            torch.testing.assert_close(layer(x), expected)
    assert len(seen) == 1, "hooks stay outside"
    torch.testing.assert_close(layer.kl_divergence(), layer.down.kl_divergence() + layer.up.kl_divergence())


def test_an_adapter_with_pseudo_data_is_at_its_mean():
    layer, x = add_lora(nn.Linear(6, 3).double(), rank=4, n_pseudo=2, max_noise=0.5), torch.randn(5, 6).double()
    with torch.no_grad():
        for parameter in (layer.up.loc, layer.up.pseudo_data.points, layer.down.pseudo_data.points):
            parameter.normal_()
    with fixed_draw(layer):
        for part in (layer.down, layer.up):
            part.drawn = part.mean_weight()
        expected = layer(x)
    torch.testing.assert_close(to_plain(layer)(x), expected)


def test_wrong_adapters():
    with pytest.raises(ValueError, match="rank must be at least 1; got 0"):
        add_lora(nn.Linear(3, 2), rank=0)
    with pytest.raises(ValueError, match="holds no linear layer to adapt"):
        add_lora(nn.Sequential(nn.LayerNorm(3)))
