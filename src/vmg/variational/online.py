"""Training a fitted network further, and online learning: the posterior so far becomes the prior of rows to come."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from vmg.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.priors import FixedPrior

__all__ = ["check_same_network", "likelihood_as_prior", "posterior_as_prior", "separate"]

DRAWS = 256  # weight draws behind the moments; their standard deviations are then known to 4 %


@torch.no_grad()
def posterior_as_prior(network: MLP, generator: torch.Generator) -> MLP:
    """A copy of ``network`` that starts at its posterior and is pulled towards it.

    A layer's posterior includes its pseudo-data, and whatever pseudo-data say is free of charge: new ones would fit the
    new rows and forget the old. So each layer becomes one without pseudo-data whose matrix Gaussian, with diagonal
    covariances, has the mean of the old posterior and the nearest product of row and column variances in the logarithm,
    both as its prior and as its starting point (variational continual learning, Nguyen et al. 2018).
    """
    updated = copy.deepcopy(network)
    use_generator(updated, generator)
    updated.layers = nn.ModuleList(_moments_matched(layer, generator) for layer in updated.layers)
    return updated


def likelihood_as_prior(likelihood: Likelihood) -> Likelihood:
    """A likelihood whose prior is the present one's posterior; one without a posterior stays as it is."""
    if not isinstance(likelihood, GaussianLikelihood):
        return likelihood
    updated = likelihood.posterior_as_prior()
    # count updates anew: the first are large again, so that few steps are enough for the new rows to be counted
    count = updated.get_buffer("n_updates")
    if isinstance(updated, HeteroscedasticLikelihood):
        updated.get_buffer("fade").sub_(count)
    count.zero_()
    return updated


def _moments_matched(layer: nn.Module, generator: torch.Generator) -> MatrixGaussianLinear:
    assert isinstance(layer, MatrixGaussianLinear)
    weights = layer.sample_weight((DRAWS,))
    loc = weights.mean(0)
    row_scale, column_scale = separate(weights.var(0))
    matched = MatrixGaussianLinear(
        layer.in_features,
        layer.out_features,
        layer.has_bias,
        prior=FixedPrior(loc, row_scale, column_scale),
        batch_shape=layer.batch_shape,
    ).to(loc)
    assert matched.loc is not None
    matched.loc.copy_(loc)
    matched.row.reset(row_scale.log(), generator)
    matched.column.reset(column_scale.log(), generator)
    return matched


def separate(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales r, c with r_i² c_j² closest to variance [..., R, C] in least squares of logarithms."""
    log_variance = variance.clamp_min(torch.finfo(variance.dtype).tiny).log()
    level = log_variance.mean((-2, -1), keepdim=True)
    row = log_variance.mean(-1) - 0.5 * level.squeeze(-1)
    column = log_variance.mean(-2) - 0.5 * level.squeeze(-2)
    return (0.5 * row).exp(), (0.5 * column).exp()


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
