"""A multilayer perceptron of Bayesian layers: a composition of Gaussian processes [LW16, §2.3]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vmg.nn.bayesian import BayesianLinear
from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["ACTIVATIONS", "MLP", "MODULES", "Activation", "Elementwise", "LayerFactory", "as_module"]

Activation = Callable[[Tensor], Tensor]

LayerFactory = Callable[[int, int, int], BayesianLinear]
"""A layer from its position, counted from the input, its inputs and its outputs."""


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "cos": torch.cos,
    "logistic": torch.sigmoid,
    "identity": _identity,
}

MODULES: dict[Activation, type[nn.Module]] = {
    torch.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    F.silu: nn.SiLU,
    F.gelu: nn.GELU,
    torch.sigmoid: nn.Sigmoid,
    _identity: nn.Identity,
}


class MLP(nn.Module):
    """Matrix Gaussian layers, or layers of any other kind, with a nonlinearity between them.

    Args:
        hidden: sizes of the hidden layers.
        activation: {"relu", "tanh", "silu", "gelu", "cos", "logistic", "identity"} or callable; any elementwise
            function of a tensor.
        n_pseudo: pseudo-points of every layer, or of each.
        make_layer: makes layers of another kind; excludes ``n_pseudo`` and ``layer_options``.
        **layer_options: all other options of :class:`~vmg.nn.MatrixGaussianLinear`.
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        *,
        activation: str | Activation = "relu",
        n_pseudo: int | Sequence[int] = 0,
        make_layer: LayerFactory | None = None,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        if isinstance(activation, str):
            if activation not in ACTIVATIONS:
                raise ValueError(f"activation must be callable or one of {tuple(ACTIVATIONS)}; got {activation!r}")
            activation = ACTIVATIONS[activation]
        self.activation = activation
        sizes = list(pairwise([in_features, *hidden, out_features]))
        points = list(n_pseudo) if isinstance(n_pseudo, Sequence) else [int(n_pseudo)] * len(sizes)
        if len(points) != len(sizes):
            raise ValueError(f"n_pseudo must be one number or one for each of {len(sizes)} layers; got {points}")
        layers: list[BayesianLinear]
        if make_layer is None:
            own = zip(sizes, points, strict=True)
            layers = [MatrixGaussianLinear(*pair, n_pseudo=p, **layer_options) for pair, p in own]
        elif n_pseudo or layer_options:
            raise ValueError(
                f"make_layer must come without options of MatrixGaussianLinear; got n_pseudo={n_pseudo} and "
                f"{sorted(layer_options)}"
            )
        else:
            layers = [make_layer(position, *pair) for position, pair in enumerate(sizes)]
        self.layers = nn.ModuleList(layers)

    def extra_repr(self) -> str:
        return f"activation={getattr(self.activation, '__name__', type(self.activation).__name__)}"

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start every layer anew."""
        for layer in self.layers:
            assert isinstance(layer, BayesianLinear)
            layer.reset_parameters(generator)

    def forward(self, x: Tensor) -> Tensor:
        """One posterior draw of the outputs."""
        return self._chain(x, lambda layer, h: layer(h))

    def forward_mean(self, x: Tensor) -> Tensor:
        """The output of the paper's mean network: every layer's weights at its mean pseudo-data [LW16, §4.2]."""
        return self._chain(x, lambda layer, h: layer.forward_mean(h))

    def _chain(self, x: Tensor, apply: Callable[[Any, Tensor], Tensor]) -> Tensor:
        for layer in list(self.layers)[:-1]:
            x = self.activation(apply(layer, x))
        return apply(self.layers[-1], x)

    def sample_functions(self, n_functions: int, *, prior: bool = False) -> Callable[[Tensor], Tensor]:
        """Draw whole functions from the posterior (or the prior): f(x) [n_functions, *batch_shape, B, out].

        Every call of the returned f uses the same weights, so the draws are consistent across inputs.
        """
        functions = {}
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, BayesianLinear)
                functions[layer] = layer.sample_function(n_functions, prior=prior)
        return lambda x: self._chain(x, lambda layer, h: functions[layer](h))


def as_module(activation: Activation) -> nn.Module:
    """An activation as a module, PyTorch's own where there is one."""
    if isinstance(activation, nn.Module):
        return activation
    return MODULES[activation]() if activation in MODULES else Elementwise(activation)


class Elementwise(nn.Module):
    """A function as a module."""

    def __init__(self, function: Activation) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
