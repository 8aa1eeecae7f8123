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


def draw(layer, x, seed=1, sample_shape=()):
    use_generator(layer, torch.Generator().manual_seed(seed))
    return layer(x, sample_shape)


class DrawAndDivergence(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return draw(self.layer, x), self.layer.kl_divergence()
