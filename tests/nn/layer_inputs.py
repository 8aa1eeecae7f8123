"""Sizes, inputs and draws for the tests of layers."""

import pytest
import torch
from torch import nn

from vmg.nn import use_generator

IN, OUT, ROWS = 5, 2, 2
BATCH_SHAPES = ((), (2,), (2, 3))

every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


def inputs(*leading, dtype=torch.float64):
    return torch.randn(*leading, ROWS, IN, dtype=dtype)


def draw(layer, x, seed=1):
    use_generator(layer, torch.Generator().manual_seed(seed))
    return layer(x)


class Divergence(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer.kl_divergence()


class DrawAndDivergence(Divergence):
    def forward(self, x):
        return draw(self.layer, x), self.layer.kl_divergence()


def assert_gradients(layer, x):
    """Of a draw with fixed noise and of the KL, in the input and in every parameter, against finite differences."""
    both = DrawAndDivergence(layer)
    with torch.no_grad():
        both(x)  # moves √α inside its bounds; a little lower it is free to vary
        for parameter in both.parameters():
            parameter.sub_(0.1)
    names, parameters = zip(*both.named_parameters(), strict=True)

    def function(x, *values):
        return torch.func.functional_call(both, dict(zip(names, values, strict=True)), (x,))

    arguments = [t.detach().clone().requires_grad_() for t in (x, *parameters)]
    assert torch.autograd.gradcheck(function, arguments, fast_mode=True)


def rows(n, n_features, dtype=torch.float64):
    return torch.randn(n, n_features, dtype=dtype)
