"""A network's posterior with the output layer integrated out: the same posterior, far easier to sample.

Given the hidden layers, a network with known Gaussian noise is linear in its output weights: these have a closed form.
What is left, p(hidden weights | data), does not grow stiff as the noise gets small: chains take longer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from vmg.math.preactivations import input_divisor
from vmg.nn.mlp import ACTIVATIONS
from vmg_paper.baselines.flat_network import DERIVATIVES, FlatNetwork, Trace, ValueGradient

__all__ = ["CollapsedPosterior", "LayerPrecisions"]


@dataclass(frozen=True)
class LayerPrecisions:
    """Weights N(0, 1/(τ_r τ_c)) in each layer, Gamma(concentration, rate) on both: :class:`~vmg.priors.GammaPrior`."""

    concentration: float = 1.0
    rate: float = 0.5

    def __post_init__(self) -> None:
        if not min(self.concentration, self.rate) > 0:
            raise ValueError(f"concentration and rate must be positive; got {self.concentration} and {self.rate}")


@dataclass(frozen=True)
class Features:
    """Features of the output layer at N rows, for n states."""

    trace: Trace
    inputs: Tensor  # of the output layer, Φ = [z, 1]/√R: [n, N, R]
    derivative: Tensor  # of the activation, [n, N, R − 1]
    variance: Tensor  # v of the output weights, [n, 1, 1]
    root: Tensor  # lower Cholesky factor of K = vΦΦᵀ + σ²I, [n, N, N]


@dataclass(frozen=True)
class CollapsedPosterior:
    """log p(hidden weights | data) up to a constant for one output with noise N(0, ``noise_scale``²).

    A state is [..., hidden weights]; with layers' precisions it is [hidden weights · √(τ_r τ_c), log τ_r and log τ_c of
    each layer]: so scaled, weights and precisions are independent before the data, and chains avoid a funnel
    (Papaspiliopoulos, Roberts & Sköld 2007).
    """

    network: FlatNetwork
    weight_prior: float | LayerPrecisions
    noise_scale: float

    @property
    def hidden(self) -> FlatNetwork:
        """The network up to the last hidden layer, before its activation."""
        return FlatNetwork(self.network.sizes[:-1], self.network.activation)

    @property
    def n_dimensions(self) -> int:
        layered = isinstance(self.weight_prior, LayerPrecisions)
        return self.hidden.n_weights + 2 * layered * len(self.network.layer_sizes)

    def start(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Weights N(0, 1) and unit precisions: [*shape, n_dimensions] in double precision."""
        weights = torch.randn(*shape, self.hidden.n_weights, generator=generator, dtype=torch.float64)
        return torch.nn.functional.pad(weights, (0, self.n_dimensions - self.hidden.n_weights))

    def _scales(self, state: Tensor) -> Tensor:
        """Standard deviations of each layer's weights before the data, [n, layers]."""
        if not isinstance(self.weight_prior, LayerPrecisions):
            return state.new_full((len(state), len(self.network.layer_sizes)), self.weight_prior)
        return torch.exp(-0.5 * self._log_precisions(state).sum(-1))

    def _log_precisions(self, state: Tensor) -> Tensor:
        return state[:, self.hidden.n_weights :].unflatten(-1, (-1, 2))  # [n, layers, 2]

    def _weights(self, state: Tensor) -> Tensor:
        """Hidden weights, [n, hidden weights]."""
        weights = state[:, : self.hidden.n_weights]
        if not isinstance(self.weight_prior, LayerPrecisions):
            return weights
        return weights * self._scales(state)[:, :-1].repeat_interleave(torch.tensor(self.hidden.layer_sizes), -1)

    def _features(self, state: Tensor, x: Tensor) -> Features:
        trace = self.hidden.trace(self._weights(state), x)
        before = trace.outputs[-1]
        z = ACTIVATIONS[self.network.activation](before)
        inputs = torch.nn.functional.pad(z, (0, 1), value=1.0) / input_divisor(z.shape[-1] + 1)
        variance = self._scales(state)[:, -1, None, None].square()
        K = variance * (inputs @ inputs.mT)
        K.diagonal(dim1=-2, dim2=-1).add_(self.noise_scale**2)
        root, failed = torch.linalg.cholesky_ex(K)  # a trajectory may leave the finite numbers; it is then refused
        root = torch.where(failed[:, None, None] > 0, torch.nan, root)
        return Features(trace, inputs, DERIVATIVES[self.network.activation](before, z), variance, root)

    def log_density(self, state: Tensor, x: Tensor, y: Tensor) -> ValueGradient:
        """Log density [n] of states [n, dimensions] given x [N, D] and y [N], and its gradient, written out."""
        f = self._features(state, x)
        weights = state[:, : self.hidden.n_weights]
        inverse = torch.cholesky_inverse(f.root)
        solved = inverse @ y  # K⁻¹y, [n, N]
        fit = -0.5 * solved @ y - f.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        of_kernel = 0.5 * (solved.unsqueeze(-1) * solved.unsqueeze(-2) - inverse)  # ∂/∂K
        of_inputs = 2 * f.variance * (of_kernel @ f.inputs)
        slope = of_inputs[..., :-1] / input_divisor(f.inputs.shape[-1]) * f.derivative
        gradient = self.hidden.pull_back(f.trace, slope)
        if not isinstance(self.weight_prior, LayerPrecisions):
            precision = self.weight_prior**-2
            return fit - 0.5 * precision * weights.square().sum(-1), gradient - precision * weights
        a, b = self.weight_prior.concentration, self.weight_prior.rate
        logs, scales = self._log_precisions(state), self._scales(state)
        sizes = self.hidden.layer_sizes
        gradient = gradient * scales[:, :-1].repeat_interleave(torch.tensor(sizes), -1)
        hidden = (-0.5 * part.sum(-1) for part in (gradient * weights).split(sizes, -1))
        output = -0.5 * (of_inputs * f.inputs).sum((-2, -1))
        through_scales = torch.stack(list(chain(hidden, [output])), -1)  # [n, layers]
        of_logs = a - b * logs.exp() + through_scales.unsqueeze(-1)
        value = fit - 0.5 * weights.square().sum(-1) + (a * logs - b * logs.exp()).sum((-2, -1))
        return value, torch.cat([gradient - weights, of_logs.flatten(-2)], -1)

    def draw_weights(self, state: Tensor, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """All weights [n, n_weights] of the network: the output's are drawn from p(· | hidden weights, data).

        Matheron's rule: a draw w₀ from the prior and noise ε give w₀ + vΦᵀK⁻¹(y − Φw₀ − ε).
        """
        f = self._features(state, x)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=state.dtype)

        prior = f.variance.sqrt() * normal(len(state), f.inputs.shape[-1], 1)
        missing = y.unsqueeze(-1) - f.inputs @ prior - self.noise_scale * normal(*f.inputs.shape[:-1], 1)
        drawn = prior + f.variance * (f.inputs.mT @ torch.cholesky_solve(missing, f.root))
        return torch.cat([self._weights(state), drawn.squeeze(-1)], -1)
