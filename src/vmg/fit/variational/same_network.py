"""A network that trains further must still be the one that parameters and data ask for."""

from __future__ import annotations

import torch

from vmg.nn.bayesian import BayesianLinear
from vmg.nn.mlp import MLP
from vmg.priors import FixedPrior

__all__ = ["check_same_network"]


def check_same_network(present: MLP, asked: MLP) -> None:
    """Refuse to train further where layers differ; an online update leaves no pseudo-data, whatever is asked."""
    before, now = _layer_sizes(present), _layer_sizes(asked)
    if before != now:
        raise ValueError(
            "warm_start and partial_fit go on with the layers of the last fit, (inputs, outputs, members) "
            f"{before}; parameters and data now ask for {now}"
        )
    updated = any(isinstance(module, FixedPrior) for module in present.modules())
    if not updated and _shapes(present) != _shapes(asked):
        raise ValueError(
            "warm_start and partial_fit go on with the network of the last fit; n_pseudo, pseudo_noise, zero_mean, "
            "row_covariance and column_covariance must be those of that fit"
        )


def _layer_sizes(network: MLP) -> list[tuple[int, ...]]:
    layers = [layer for layer in network.layers if isinstance(layer, BayesianLinear)]
    return [(layer.in_features, layer.out_features, *layer.batch_shape) for layer in layers]


def _shapes(network: MLP) -> dict[str, torch.Size]:
    """Shapes of what is trained, the priors' own parameters aside."""
    return {name: p.shape for name, p in network.named_parameters() if "prior" not in name}
