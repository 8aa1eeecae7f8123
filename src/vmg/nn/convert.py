"""Swap the linear layers of any PyTorch model for Bayesian ones."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["bayesianize"]

INITIAL_SCALE = math.exp(-6)  # trained weights are kept, with little noise around them


def bayesianize(module: nn.Module, **layer_options: Any) -> nn.Module:
    """A copy of ``module`` whose ``nn.Linear`` layers are :class:`~vmg.nn.MatrixGaussianLinear`.

    Each new layer starts at the weights of the old one, so a trained model keeps its predictions as its mean.

    Args:
        module: any model; it is left as it is.
        **layer_options: options of :class:`~vmg.nn.MatrixGaussianLinear`.
    """
    if isinstance(module, nn.Linear):
        return _from_linear(module, layer_options)
    converted = copy.deepcopy(module)
    # a layer that stands in several places is converted once and stays one layer; subclasses have ways of their own
    made = {old: _from_linear(old, layer_options) for old in converted.modules() if type(old) is nn.Linear}
    if not made:
        raise ValueError(f"{type(module).__name__} holds no nn.Linear layer to convert")
    for parent in list(converted.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.Linear) and child in made:
                parent._modules[name] = made[child]
    return converted


def _from_linear(linear: nn.Linear, layer_options: dict[str, Any]) -> MatrixGaussianLinear:
    bias = linear.bias is not None
    options = {"initial_scale": INITIAL_SCALE, **layer_options}
    layer = MatrixGaussianLinear(linear.in_features, linear.out_features, bias, **options)
    layer = layer.to(dtype=linear.weight.dtype, device=linear.weight.device)
    if layer.loc is None:
        return layer
    with torch.no_grad():
        root = math.sqrt(layer.loc.shape[-2])  # the layer divides its inputs by √R
        layer.loc[..., : linear.in_features, :] = root * linear.weight.mT
        if bias:
            layer.loc[..., linear.in_features, :] = root * linear.bias
        if layer.pseudo_data is not None:  # B̃ = ÃM: the pseudo-data agree with the mean and leave it as it is
            pseudo_data = layer.pseudo_data
            pseudo_data.outputs.copy_(pseudo_data.inputs / root @ layer.loc)
    return layer
