"""Online learning: the posterior of the rows so far becomes the prior of the rows to come."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from vmg.nn.contract import use_generator
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.priors import FixedPrior

__all__ = ["posterior_as_prior"]

DRAWS = 256  # weight draws behind the moments; their standard deviations are then known to 4 %


@torch.no_grad()
def posterior_as_prior(network: MLP, generator: torch.Generator) -> MLP:
    """A copy of ``network`` that starts at its posterior and is pulled towards it.

    A layer's posterior includes its pseudo-data. The matrix Gaussian with diagonal covariances that has the same mean,
    and the nearest product of row and column variances in the logarithm, stands for it both as the new prior and as
    the new starting point; new pseudo-data start in agreement with it.
    """
    updated = copy.deepcopy(network)
    use_generator(updated, generator)
    for layer in updated.layers:
        assert isinstance(layer, MatrixGaussianLinear)
        weights = layer.sample_weight((DRAWS,))
        loc = weights.mean(0)
        row_scale, column_scale = _separate(weights.var(0))
        layer.prior = FixedPrior(loc, row_scale, column_scale)
        layer.reset_parameters(generator)
        layer.row.reset(row_scale.log(), generator)
        layer.column.reset(column_scale.log(), generator)
        if layer.loc is not None:
            layer.loc.copy_(loc)
        if layer.pseudo_data is not None:
            inputs = layer.pseudo_data.inputs
            layer.pseudo_data.outputs.copy_(inputs / inputs.shape[-1] ** 0.5 @ loc)
    return updated


def _separate(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales r, c with r_i² c_j² closest to variance [..., R, C] in least squares of logarithms."""
    log_variance = variance.clamp_min(torch.finfo(variance.dtype).tiny).log()
    level = log_variance.mean((-2, -1), keepdim=True)
    row = log_variance.mean(-1) - 0.5 * level.squeeze(-1)
    column = log_variance.mean(-2) - 0.5 * level.squeeze(-2)
    return (0.5 * row).exp(), (0.5 * column).exp()
