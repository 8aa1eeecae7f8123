"""Plain PyTorch copies of Bayesian models, for serving: at the centre, at the mean, or of one draw."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from vmg.nn.attention import MatrixGaussianMultiheadAttention
from vmg.nn.bayesian import BayesianLinear, BayesianModule, plain_linear
from vmg.nn.convert import ATTRIBUTE, replace_in_place
from vmg.nn.convolution import MatrixGaussianConv1d, MatrixGaussianConv2d
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.lora import MatrixGaussianLoRA
from vmg.nn.mlp import MLP, as_module

__all__ = ["to_plain"]


@torch.no_grad()
def to_plain(model: nn.Module, *, centre: bool = True) -> nn.Module:
    """A copy of ``model`` whose Bayesian modules are plain ones of PyTorch; an ``MLP`` becomes an ``nn.Sequential``.

    They have the weights at the mean pseudo-data, so that a model which was converted and not trained comes back as it
    was; with ``centre=False`` the mean weights E[W], which the noise of pseudo-inputs moves away from these.
    Inside :func:`~vmg.nn.fixed_draw` they have the weights of the draw in use, so that what is exported is one function
    from the posterior. The copy can be scripted, exported and converted as any model of PyTorch.
    """
    drawn = [part.drawn for part in model.modules() if isinstance(part, BayesianLinear)]
    copied = copy.deepcopy(model, {id(weight): weight.detach() for weight in drawn if weight is not None})
    inside: set[nn.Module] = set()
    for part in list(copied.modules()):
        if type(part) is MLP:
            modules = [module for layer in part.layers for module in (as_module(part.activation), layer)]
            replace_in_place(part, nn.Sequential(*modules[1:]), forget=True)  # its layers come later in this loop
        elif isinstance(part, BayesianModule) and part not in inside:
            inside.update(part.modules())
            replace_in_place(part, _plain(part, centre), forget=True)
    copied.__dict__.pop(ATTRIBUTE, None)
    return copied


def _matrix(matrix: BayesianLinear, centre: bool) -> Tensor:
    if matrix.drawn is not None:
        return matrix.drawn
    return matrix.centre_weight() if centre else matrix.mean_weight()


def _weight(matrix: BayesianLinear, centre: bool) -> tuple[Tensor, Tensor | None]:
    weight, bias = matrix.as_linear(_matrix(matrix, centre))
    like = next(matrix.parameters())
    return weight.to(like.dtype), None if bias is None else bias.to(like.dtype)


def _plain(module: BayesianModule, centre: bool) -> nn.Module:
    if isinstance(module, MatrixGaussianLoRA):
        down, up = _matrix(module.down, centre), _matrix(module.up, centre)
        return plain_linear(module.adapted_weight(down, up), module.bias)
    if isinstance(module, MatrixGaussianMultiheadAttention):
        return _attention(module, centre)
    if isinstance(module, MatrixGaussianConv1d | MatrixGaussianConv2d):
        return _convolution(module, centre)
    if isinstance(module, MatrixGaussianEmbedding):
        table = _weight(module.matrix, centre)[0].mT.clone()
        if module.padding_idx is not None:
            table[module.padding_idx] = module.weight[module.padding_idx]
        return nn.Embedding.from_pretrained(table, freeze=False, padding_idx=module.padding_idx)
    if not isinstance(module, BayesianLinear):
        raise ValueError(f"{type(module).__name__} has no plain counterpart")
    if module.batch_shape:
        raise ValueError(f"to_plain needs single layers; got one with {tuple(module.batch_shape)} replicas")
    return plain_linear(*_weight(module, centre))


def _convolution(module: MatrixGaussianConv1d | MatrixGaussianConv2d, centre: bool) -> nn.Module:
    weight, bias = _weight(module.matrix, centre)
    kind = nn.Conv1d if isinstance(module, MatrixGaussianConv1d) else nn.Conv2d
    plain = kind(
        module.in_channels,
        module.out_channels,
        module.kernel_size,  # type: ignore[arg-type]
        module.stride,  # type: ignore[arg-type]
        module.padding,  # type: ignore[arg-type]
        module.dilation,  # type: ignore[arg-type]
        bias=bias is not None,
        padding_mode=module.padding_mode,  # type: ignore[arg-type]
        dtype=weight.dtype,
        device=weight.device,
    )
    plain.weight.copy_(weight.reshape(plain.weight.shape))
    if plain.bias is not None and bias is not None:
        plain.bias.copy_(bias)
    return plain


def _attention(module: MatrixGaussianMultiheadAttention, centre: bool) -> nn.Module:
    (in_weight, in_bias), (out_weight, out_bias) = _weight(module.in_proj, centre), _weight(module.out_proj, centre)
    plain = nn.MultiheadAttention(
        module.embed_dim,
        module.num_heads,
        module.dropout,
        in_bias is not None,
        batch_first=module.batch_first,
        dtype=in_weight.dtype,
        device=in_weight.device,
    )
    assert plain.in_proj_weight is not None
    plain.in_proj_weight.copy_(in_weight)
    plain.out_proj.weight.copy_(out_weight)
    if in_bias is not None and out_bias is not None:
        plain.in_proj_bias.copy_(in_bias)
        plain.out_proj.bias.copy_(out_bias)
    return plain
