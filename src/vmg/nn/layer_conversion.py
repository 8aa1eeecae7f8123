"""Make the Bayesian counterpart of one module, or give the reason why it has none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vmg.math.preactivations import input_divisor
from vmg.nn.attention import MatrixGaussianMultiheadAttention
from vmg.nn.bayesian import BayesianModule
from vmg.nn.convolution import MatrixGaussianConv1d, MatrixGaussianConv2d
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.priors import IsotropicPrior

__all__ = ["Refusal", "Settings", "counterpart", "is_linear"]

_MATRICES = (  # modules that are mostly weight matrices: a user expects these to be random too
    nn.RNNBase,
    nn.RNNCellBase,
    nn.Bilinear,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.EmbeddingBag,
)

Settings = Callable[..., dict[str, Any]]
"""Options of a layer from its number of inputs, bias included, and what this kind of layer would have otherwise."""


@dataclass(frozen=True)
class Refusal:
    """The reason why a module is left as it is, and whether that would surprise its user."""

    reason: str
    is_surprising: bool = True


def counterpart(
    module: nn.Module, owners: Callable[[nn.Parameter], int], settings: Settings, *, named: bool
) -> BayesianModule | Refusal:
    """A new module that starts at the weights of ``module``.

    Args:
        module: one of those that :func:`vmg.nn.convert.select` gives.
        owners: how many modules hold a parameter.
        settings: options of the layers.
        named: asked for by name: then frozen weights become a frozen mean.
    """
    if isinstance(module, BayesianModule):
        return Refusal("Bayesian already", is_surprising=False)
    make = _maker(module)
    if isinstance(make, Refusal):
        return make
    parameters = [p for p in module.parameters() if p is not None]
    if any(owners(p) > 1 for p in parameters):
        return Refusal("it shares weights with another module")
    trained = {p.requires_grad for p in parameters}
    if len(trained) > 1:
        return Refusal("some of its parameters are frozen and others are not")
    frozen = trained == {False}
    if frozen and not named:
        return Refusal("frozen", is_surprising=False)

    def options(n_rows: int, **own: Any) -> dict[str, Any]:
        return settings(n_rows, **own) | ({"n_pseudo": 0} if frozen else {})  # pseudo-data would move the mean

    with parameters[0].device:
        made = make(module, options)
    if next(made.parameters()).dtype is not parameters[0].dtype:
        made.to(parameters[0].dtype)
    for matrix, weight, bias in _weights(module, made):
        _start_at(matrix, weight, bias, frozen=frozen)
    return made


def _maker(module: nn.Module) -> Callable[[Any, Settings], BayesianModule] | Refusal:
    """The function that makes the counterpart of a module of this kind, or why there is none."""
    kind = type(module)
    if nn.utils.parametrize.is_parametrized(module):
        return Refusal("its weight is parametrised")
    makers: dict[type[nn.Module], Callable[[Any, Settings], BayesianModule]] = {
        nn.Linear: _make_linear,
        nn.Conv1d: _make_convolution,
        nn.Conv2d: _make_convolution,
        nn.Embedding: _make_embedding,
        nn.MultiheadAttention: _make_attention,
    }
    transposed = _transposed_linear()
    if transposed is not None:
        makers[transposed] = _make_transposed
    if kind not in makers:
        like = next((base.__name__ for base in makers if isinstance(module, base)), None)
        if like is not None:
            return Refusal(f"a subclass of {like}, which may compute something else")
        return Refusal(f"{kind.__name__} has no Bayesian counterpart", is_surprising=isinstance(module, _MATRICES))
    if "forward" in module.__dict__:
        return Refusal("its forward was replaced")
    if kind is not nn.MultiheadAttention and "weight" not in module._parameters:
        return Refusal("its weight is computed before each call")
    reason = _obstacle(module)
    return makers[kind] if reason is None else Refusal(reason)


def _obstacle(module: Any) -> str | None:
    """An option of a convertible module that the counterpart does not support; None if there is none."""
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups > 1:
        return f"its channels are in {module.groups} groups"
    if isinstance(module, nn.Embedding) and (module.max_norm or module.scale_grad_by_freq or module.sparse):
        return "max_norm, scale_grad_by_freq and sparse gradients are not supported"
    if isinstance(module, nn.MultiheadAttention):
        if not module._qkv_same_embed_dim:
            return "its keys or values have sizes of their own"
        if module.bias_k is not None or module.add_zero_attn:
            return "bias_kv and zero attention are not supported"
    return None


def _transposed_linear() -> type[nn.Module] | None:
    """``Conv1D`` of Hugging Face, a linear layer with a transposed weight; None where that library is not in use."""
    library = sys.modules.get("transformers.pytorch_utils")
    return None if library is None else library.Conv1D


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer, of PyTorch or Hugging Face."""
    return type(module) is nn.Linear or type(module) is _transposed_linear()


def _make_linear(module: nn.Linear, options: Settings) -> BayesianModule:
    bias = module.bias is not None
    return MatrixGaussianLinear(module.in_features, module.out_features, bias, **options(module.in_features + bias))


def _make_transposed(module: Any, options: Settings) -> BayesianModule:
    n_in, n_out = module.weight.shape
    return MatrixGaussianLinear(n_in, n_out, True, **options(n_in + 1))


def _make_convolution(module: nn.Conv1d | nn.Conv2d, options: Settings) -> BayesianModule:
    bias = module.bias is not None
    kind = MatrixGaussianConv1d if isinstance(module, nn.Conv1d) else MatrixGaussianConv2d
    return kind(
        module.in_channels,
        module.out_channels,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        bias,
        padding_mode=module.padding_mode,
        **options(module.weight[0].numel() + bias),
    )


def _make_embedding(module: nn.Embedding, options: Settings) -> BayesianModule:
    prior = IsotropicPrior(input_divisor(module.num_embeddings))  # the layer's own, which knows the table's scale
    chosen = options(module.num_embeddings, prior=prior) | {"n_pseudo": 0}
    return MatrixGaussianEmbedding(module.num_embeddings, module.embedding_dim, module.padding_idx, **chosen)


def _make_attention(module: nn.MultiheadAttention, options: Settings) -> BayesianModule:
    bias = module.in_proj_bias is not None
    chosen = options(module.embed_dim + bias)
    sizes = module.embed_dim, module.num_heads, module.dropout, bias
    return MatrixGaussianMultiheadAttention(*sizes, batch_first=module.batch_first, **chosen)


def _weights(module: Any, made: BayesianModule) -> list[tuple[MatrixGaussianLinear, Tensor, Tensor | None]]:
    """Each matrix of the counterpart, and the weight [out, in] and bias that it starts at."""
    if isinstance(made, MatrixGaussianMultiheadAttention):
        out = module.out_proj
        return [
            (made.in_proj, module.in_proj_weight, module.in_proj_bias),
            (made.out_proj, out.weight, out.bias),
        ]
    if isinstance(made, MatrixGaussianEmbedding):
        return [(made.matrix, module.weight.mT, None)]
    if isinstance(made, MatrixGaussianConv1d | MatrixGaussianConv2d):
        return [(made.matrix, module.weight.flatten(1), module.bias)]
    assert isinstance(made, MatrixGaussianLinear)
    return [(made, module.weight if isinstance(module, nn.Linear) else module.weight.mT, module.bias)]


@torch.no_grad()
def _start_at(matrix: MatrixGaussianLinear, weight: Tensor, bias: Tensor | None, *, frozen: bool) -> None:
    """Let these weights be the mean M and, with pseudo-data, the centre too."""
    if matrix.loc is None:
        return
    root = input_divisor(matrix.n_rows)
    matrix.loc[..., : matrix.in_features, :] = root * weight.mT
    if bias is not None:
        matrix.loc[..., matrix.in_features, :] = root * bias
    if matrix.pseudo_data is not None:  # B̃ = ÃM: the pseudo-data agree with the mean and leave it as it is
        data = matrix.pseudo_data
        data.points[..., matrix.n_rows :] = data.points[..., : matrix.n_rows] / root @ matrix.loc
    matrix.loc.requires_grad_(not frozen)
