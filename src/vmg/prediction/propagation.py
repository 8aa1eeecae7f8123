"""A network's predictive mean and variance without samples, layer by layer."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.fused.moments import SmallMatrices, propagate
from vmg.math.moments import FoldedLayer, LayerMoments, activation_moments, fold_layer, layer_moments, pull_back
from vmg.math.preactivations import input_divisor
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP

__all__ = ["OutputMoments", "propagate_moments"]

ENTRIES = 2**18
"""Numbers of the widest layer worked on at once: they stay in the processor's cache, and memory does not grow."""


class OutputMoments(NamedTuple):
    """Mean and variance of a network's outputs, each [*batch_shape, N, C]."""

    mean: Tensor
    variance: Tensor


@torch.no_grad()
def propagate_moments(
    network: MLP, x: Tensor, *, n_pseudo_draws: int = 0, ignore_correlation: bool = False
) -> OutputMoments:
    """Mean and variance of the network's outputs at each row of x, by propagation instead of sampling.

    Units of a layer are taken for independent and Gaussian given the pseudo-inputs; in a network of one hidden layer
    they are. The weights' and the pseudo-outputs' uncertainty is then exact (:mod:`vmg.math.moments`). That of the
    pseudo-inputs enters to first order or, with ``n_pseudo_draws``, by averaging over draws of them: slower, noisy,
    and right for any size of their noise.

    In a deeper network units are correlated, and the error of the variance has no bound: it may be a fiftieth of the
    true one. So deeper networks are refused, unless ``ignore_correlation``.

    Args:
        network: of :class:`~vmg.nn.MatrixGaussianLinear` layers with diagonal covariances.
        x: rows [N, in], or [*batch_shape, N, in].
        n_pseudo_draws: draws of the pseudo-inputs; 0 for the first order.
        ignore_correlation: go on in spite of several hidden layers, as if units were independent.
    """
    layers = [_require_diagonal(layer) for layer in network.layers]
    if len(layers) > 2 and not ignore_correlation:
        raise ValueError(
            f"moments need at most one hidden layer; got {len(layers) - 1}, whose units are correlated. "
            "Use draws of the network"
        )
    if n_pseudo_draws < 0:
        raise ValueError(f"n_pseudo_draws must be >= 0; got {n_pseudo_draws}")
    layers[0].check_input(x)
    dtype = layers[0].row.log_scale.dtype
    if all(layer.pseudo_data is None for layer in layers):
        n_pseudo_draws = 0
    lead = (*([n_pseudo_draws] if n_pseudo_draws else []), *layers[0].batch_shape)
    folded = [_fold(layer, n_pseudo_draws) for layer in layers]
    found = _compiled(network, layers, folded, lead, x.to(dtype))
    if found is not None:
        mean, variance = found
    else:
        folded = [small.to(dtype) for small in folded]
        widest = max(layer.n_rows for layer in layers)
        chunk = max(1, ENTRIES // (math.prod(lead) * widest))
        parts = [_propagate(network, layers, folded, rows) for rows in x.to(dtype).split(chunk, dim=-2)]
        mean, variance = (torch.cat(values, dim=-2) for values in zip(*parts, strict=True))
    if not n_pseudo_draws:
        return OutputMoments(mean, variance)
    between = mean.var(0) if n_pseudo_draws > 1 else torch.zeros_like(mean[0])
    return OutputMoments(mean.mean(0), variance.mean(0) + between)


def _require_diagonal(layer: torch.nn.Module) -> MatrixGaussianLinear:
    if isinstance(layer, MatrixGaussianLinear) and layer.is_diagonal:
        return layer
    raise ValueError(f"every layer must be a MatrixGaussianLinear with diagonal covariances; got {layer}")


def _fold(layer: MatrixGaussianLinear, n_draws: int) -> FoldedLayer:
    """The layer in double precision, with 1/√R taken from the inputs into M and U: x̂M = [x, 1](M/√R), and so on."""
    R = layer.n_rows
    M = None if layer.loc is None else layer.loc.double() / input_divisor(R)
    row, column = torch.exp(2 * layer.row.log_scale.double()) / R, torch.exp(2 * layer.column.log_scale.double())
    data = layer.pseudo_data
    if data is None:
        return fold_layer(M, row, column, None, None, damping=layer.damping)
    data.project_()
    spread = (data.points * data.noise_scale).double().square()
    A, B = data.inputs.double(), data.outputs.double()
    if n_draws:
        A = data.sample((n_draws,), layer.generator)[0].double()
    return fold_layer(
        M,
        row,
        column,
        A,
        B,
        input_noise=None if n_draws else spread[..., :R],
        output_noise=spread[..., R:],
        damping=layer.damping,
    )


def _compiled(
    network: MLP, layers: list[MatrixGaussianLinear], folded: list[FoldedLayer], lead: tuple[int, ...], x: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The result from the kernel, for networks that it knows and whose weights stay in the processor's cache."""
    if network.activation is not torch.relu:
        return None
    noisy = any(small.input_noise is not None for small in folded)
    last = len(layers) - 1

    def small_matrices() -> list[SmallMatrices]:
        pairs = enumerate(zip(layers, folded, strict=True))
        return [_small_matrices(small, layer.in_features, k > 0, k == last, noisy) for k, (layer, small) in pairs]

    return propagate(small_matrices, [(layer.n_rows, layer.out_features) for layer in layers], lead, x)


def _small_matrices(layer: FoldedLayer, n_in: int, uncertain: bool, last: bool, noisy: bool) -> SmallMatrices:
    """The sums of ``layer_moments`` and ``pull_back`` of :mod:`vmg.math.moments`, as few products with rows.

    Args:
        layer: with its pseudo-data.
        n_in: inputs without the one of the bias.
        uncertain: whether these have variances.
        last: whether its outputs are the network's.
        noisy: whether any layer's pseudo-inputs have noise.
    """
    W, u, v = layer.weight, layer.row_variance.unsqueeze(-1), layer.column_variance.unsqueeze(-2)
    R, C = W.shape[-2:]
    P = 0 if layer.gain is None else layer.gain.shape[-2]
    first, squares, spread, carry = layer.mean_weight, u, v, None
    if uncertain:
        carry = W[..., :n_in, :].square() + layer.left_variance[..., :n_in].unsqueeze(-1) * v
    if layer.gain is not None and layer.output_noise is not None:
        first = _beside(first, layer.gain.mT)
        spread = _beside(v.mT, (layer.output_noise + layer.damping * v).mT).mT
        if carry is not None:
            carry = carry + layer.gain[..., :n_in].square().mT @ layer.output_noise
    level = cross = noise = None
    slopes = W.mT if noisy and not last else None
    if layer.input_noise is not None and layer.pull is not None:
        noise, pull_t = layer.input_noise.mT, layer.pull.mT
        if last:
            squares = _beside(u.square() * (noise @ layer.pull.square()), u)
            level = layer.input_noise @ W.square()
            cross = ((u * W).unsqueeze(-1) * noise.unsqueeze(-2) * pull_t.unsqueeze(-3)).flatten(-2)
        else:
            squares, slopes = _beside(u.square() * noise, u), _beside(W.mT, pull_t)
    E = squares.shape[-1] - 1
    inputs, weight = layer.inputs, W if last else None
    return SmallMatrices(
        (R, n_in, C, P, E), first, inputs, squares, spread, carry, weight, level, cross, slopes, noise, u
    )


def _beside(*matrices: Tensor) -> Tensor:
    """Matrices side by side, where those of one replica serve all."""
    lead = max((W.shape[:-2] for W in matrices), key=len)
    return torch.cat([W if W.shape[:-2] == lead else W.expand(*lead, *W.shape[-2:]) for W in matrices], dim=-1)


def _propagate(
    network: MLP, layers: list[MatrixGaussianLinear], folded: list[FoldedLayer], x: Tensor
) -> tuple[Tensor, Tensor]:
    passes: list[LayerMoments] = []
    slopes: list[Tensor] = []
    variance: Tensor | None = None
    for number, (layer, small) in enumerate(zip(layers, folded, strict=True)):
        if number:
            x, variance, slope = activation_moments(network.activation, passes[-1].mean, passes[-1].variance)
            slopes.append(slope)
        if layer.has_bias:
            x = torch.cat([x.mT, x.new_ones(*x.shape[:-2], 1, x.shape[-2])], dim=-2).mT  # keeps rows along memory
        passes.append(layer_moments(small, x, variance))
    mean, variance = passes[-1].mean, passes[-1].variance
    if any(small.input_noise is not None for small in folded):
        columns = [_pseudo_input_variance(folded, passes, slopes, c) for c in range(mean.shape[-1])]
        variance = variance + torch.stack(torch.broadcast_tensors(*columns), dim=-1)
    return mean, variance


def _pseudo_input_variance(
    folded: list[FoldedLayer], passes: list[LayerMoments], slopes: list[Tensor], output: int
) -> Tensor:
    """First-order share of all layers' pseudo-inputs in the variance of one output, [..., B]."""
    last = passes[-1].mean
    g = last.new_zeros(1, last.shape[-1])
    g[0, output] = 1
    total = last.new_zeros(last.shape[:-1])
    for number in reversed(range(len(folded))):
        share, g_x = pull_back(folded[number], passes[number], g)
        if share is not None:
            total = total + share
        if number:
            slope = slopes[number - 1]
            g = g_x[..., : slope.shape[-1]] * slope
    return total
