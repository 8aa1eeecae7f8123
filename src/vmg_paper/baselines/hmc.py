"""The exact posterior of a network by Hamiltonian Monte Carlo: its log density with gradient, and the regressor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vmg.math.preactivations import input_divisor
from vmg.nn.mlp import ACTIVATIONS
from vmg.prediction import Prediction
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.baselines.hamiltonian import Chains, bulk_ess, sample, split_rhat

__all__ = [
    "CollapsedPosterior",
    "FlatNetwork",
    "HMCRegressor",
    "LayerPrecisions",
    "NetworkPosterior",
    "SampledNetwork",
    "Trace",
    "ValueGradient",
]

ValueGradient = tuple[Tensor, Tensor]

DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda a, z: a > 0,
    "tanh": lambda a, z: 1 - z.square(),
    "cos": lambda a, z: -a.sin(),
    "logistic": lambda a, z: z * (1 - z),
    "identity": lambda a, z: torch.ones_like(a),
}
"""Derivative of each activation z(a), as a function of both."""


class Trace(NamedTuple):
    """Values of a forward pass that the backward pass needs."""

    layers: list[Tensor]
    inputs: list[Tensor]
    outputs: list[Tensor]  # before the activation


@dataclass(frozen=True)
class FlatNetwork:
    """f(x; θ): every layer is [x, 1]W/√R, as the paper's are, so that weights N(0, 1) give outputs of unit size."""

    sizes: tuple[int, ...]
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.activation not in DERIVATIVES:
            raise ValueError(f"activation must be one of {tuple(DERIVATIVES)}; got {self.activation!r}")

    @property
    def n_weights(self) -> int:
        return sum(self.layer_sizes)

    @property
    def layer_sizes(self) -> list[int]:
        """Weights of each layer."""
        return [(n_in + 1) * n_out for n_in, n_out in pairwise(self.sizes)]

    def _layers(self, weights: Tensor) -> list[Tensor]:
        """Each layer's weights, [..., R, C], the bias in the last row."""
        parts = weights.split(self.layer_sizes, -1)
        return [part.unflatten(-1, (-1, n_out)) for part, n_out in zip(parts, self.sizes[1:], strict=True)]

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """Outputs [..., N, C] for weights [..., n_weights] and x [N, D] or [..., N, D]."""
        for position, W in enumerate(self._layers(weights)):
            x = ACTIVATIONS[self.activation](x) if position else x
            x = (x @ W[..., :-1, :] + W[..., -1:, :]) / math.sqrt(W.shape[-2])
        return x

    def trace(self, weights: Tensor, x: Tensor) -> Trace:
        """A forward pass for weights [n, n_weights] that :meth:`pull_back` can follow."""
        layers, inputs = self._layers(weights), [x.expand(len(weights), *x.shape[-2:])]
        outputs: list[Tensor] = []
        for position, W in enumerate(layers):
            if position:
                inputs.append(ACTIVATIONS[self.activation](outputs[-1]))
            scale = 1 / math.sqrt(W.shape[-2])
            outputs.append(torch.baddbmm(W[:, -1:], inputs[-1], W[:, :-1], beta=scale, alpha=scale))
        return Trace(layers, inputs, outputs)

    def pull_back(self, trace: Trace, slope: Tensor) -> Tensor:
        """The gradient [n, n_weights] of a function whose gradient at the outputs is ``slope`` [n, N, C]."""
        parts: list[Tensor] = []
        for position in reversed(range(len(trace.layers))):
            W, z = trace.layers[position], trace.inputs[position]
            slope = slope / math.sqrt(W.shape[-2])
            parts += [slope.sum(-2), torch.bmm(z.mT, slope).flatten(1)]
            if position:
                derivative = DERIVATIVES[self.activation](trace.outputs[position - 1], z)
                slope = torch.bmm(slope, W[:, :-1].mT) * derivative
        return torch.cat(parts[::-1], -1)


@dataclass(frozen=True)
class NetworkPosterior:
    """log p(θ, log τ | data) up to a constant: weights N(0, 1/λ), noise precision τ known or Gamma.

    A state is [..., n_weights], with log τ as one more entry where the noise is not known. A Gamma prior on a λ that
    all weights share is integrated out, which makes the weights a multivariate Student-t.
    """

    network: FlatNetwork
    weight_prior: float | tuple[float, float] = 1.0
    """Standard deviation of the weights, or Gamma(concentration, rate) of the precision that all share."""
    noise_prior: tuple[float, float] | None = (6.0, 6.0)
    """Gamma(concentration, rate) of τ; None where the noise is known."""
    noise_scale: float | None = None
    """The known noise's standard deviation."""

    def __post_init__(self) -> None:
        if (self.noise_prior is None) == (self.noise_scale is None):
            raise ValueError("exactly one of noise_prior and noise_scale must be given")
        if not np.min(self.weight_prior) > 0:
            raise ValueError(f"weight_prior must be positive; got {self.weight_prior}")

    @property
    def n_dimensions(self) -> int:
        return self.network.n_weights + (self.noise_prior is not None)

    def start(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Weights N(0, 1) and unit noise: [*shape, n_dimensions] in double precision."""
        state = torch.zeros(*shape, self.n_dimensions, dtype=torch.float64)
        weights = state[..., : self.network.n_weights]
        weights.copy_(torch.randn(weights.shape, generator=generator, dtype=torch.float64))
        return state

    def functions(self, state: Tensor, x: Tensor) -> Tensor:
        """The network's outputs [..., N, C]."""
        return self.network(state[..., : self.network.n_weights], x)

    def noise(self, state: Tensor) -> Tensor:
        """Standard deviation of the noise, [...]."""
        if self.noise_prior is None:
            return torch.as_tensor(self.noise_scale, dtype=state.dtype).expand(state.shape[:-1])
        return torch.exp(-0.5 * state[..., -1])

    def log_density(self, state: Tensor, x: Tensor, y: Tensor) -> ValueGradient:
        """Log density [n] of states [n, dimensions] given x [N, D] and y [N], and its gradient, written out.

        Autograd takes twice as long.
        """
        weights = state[:, : self.network.n_weights]
        trace = self.network.trace(weights, x)
        r = y - trace.outputs[-1][..., 0]  # [n, N]
        squares = r.square().sum(-1)
        n_rows = r.shape[-1]
        known = self.noise_prior is None
        precision = torch.as_tensor(self.noise_scale, dtype=state.dtype) ** -2 if known else state[:, -1].exp()
        slope = self.network.pull_back(trace, (precision * r.mT).mT.unsqueeze(-1))
        value, gradient = self._log_prior(weights, slope)
        value = value - 0.5 * precision * squares
        if self.noise_prior is None:
            return value, gradient
        log_precision, (concentration, rate) = state[:, -1], self.noise_prior
        # the Jacobian of log τ makes the exponent a, not a − 1
        value = value + concentration * log_precision - rate * precision + 0.5 * n_rows * log_precision
        of_log_precision = concentration - rate * precision + 0.5 * (n_rows - precision * squares)
        return value, torch.cat([gradient, of_log_precision.unsqueeze(-1)], -1)

    def _log_prior(self, weights: Tensor, slope: Tensor) -> ValueGradient:
        """The prior, and the gradient of the whole, given the likelihood's at the weights, ``slope`` [n, n_weights]."""
        half_squares = 0.5 * weights.square().sum(-1)
        if isinstance(self.weight_prior, tuple):
            concentration, rate = self.weight_prior
            exponent = concentration + 0.5 * self.network.n_weights
            pull = -exponent / (rate + half_squares)
            return -exponent * torch.log1p(half_squares / rate), slope + pull.unsqueeze(-1) * weights
        return -half_squares / self.weight_prior**2, slope - weights / self.weight_prior**2


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


class SampledNetwork(NamedTuple):
    """Posterior draws of one fit, and whether its chains agree."""

    model: NetworkPosterior
    chains: Chains
    rhat: float
    """The largest split R̂ of the function at the training rows and, where it is not known, of the noise."""
    ess: float
    """The smallest bulk effective sample size of the same."""


@dataclass(eq=False)
class HMCRegressor(BatchedRegressor):
    """A network with weights N(0, 1/λ), sampled by full-batch Hamiltonian Monte Carlo.

    Hidden units may change places without changing the function, so convergence is judged on functions, not weights.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The network, as in :class:`~vmg.VMGRegressor`.
    weight_prior : float, (float, float) or LayerPrecisions
        Standard deviation of the weights; Gamma(concentration, rate) of the precision that all weights share; or, with
        known noise, precisions of each layer, as the matrix Gaussian's Gamma prior has. Inputs of a layer are divided
        by √R.
    noise_prior : (float, float)
        Gamma(concentration, rate) of the noise precision in standardised units.
    noise_scale : float, optional
        Standard deviation of the noise in the target's own units, where it is known.
    n_chains, n_warmup, n_draws : int
        Chains, iterations thrown away, and draws kept of each chain.
    collapse : bool
        Integrate the output layer out where that is exact: the noise known, and hidden layers with weights N(0, s²) or
        with precisions of their own. The posterior is the same; chains mix faster.
    path_length : float
        Mean length of a trajectory, in units of the posterior's own scales.
    random_state : int
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    activation: str = "relu"
    weight_prior: float | tuple[float, float] | LayerPrecisions = (6.0, 6.0)
    noise_prior: tuple[float, float] = (1.0, 1e-3)
    noise_scale: float | None = None
    n_chains: int = 8
    n_warmup: int = 500
    n_draws: int = 500
    collapse: bool = True
    path_length: float = 1.5
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[SampledNetwork], int]:
        sampled = [self._sample(rows) for rows in sets]  # each tunes its own step size and mass
        return sampled, self.n_warmup + self.n_draws

    def _sample(self, rows: Rows) -> SampledNetwork:
        network = FlatNetwork((rows.x.shape[1], *self.hidden_layer_sizes, 1), self.activation)
        generator = torch.Generator().manual_seed(self.random_state)
        x, y = torch.as_tensor(rows.x), torch.as_tensor(rows.y)
        prior, scale = self.weight_prior, None if self.noise_scale is None else self.noise_scale / rows.unit
        if self.collapse and scale is not None and self.hidden_layer_sizes and not isinstance(prior, tuple):
            hidden = CollapsedPosterior(network, prior, scale)
            chains = self._run(hidden, x, y, generator)
            weights = hidden.draw_weights(chains.draws.flatten(0, 1), x, y, generator)
            chains = replace(chains, draws=weights.unflatten(0, chains.draws.shape[:2]))
            model = NetworkPosterior(network, 1.0, None, scale)  # its states are weights as they are
        elif isinstance(prior, LayerPrecisions):
            raise ValueError("weight_prior of each layer needs known noise, hidden layers and collapse; got others")
        else:
            model = NetworkPosterior(network, prior, self.noise_prior if scale is None else None, scale)
            chains = self._run(model, x, y, generator)
        watched = model.functions(chains.draws, x)[..., 0]
        if scale is None:
            watched = torch.cat([watched, model.noise(chains.draws).log()[..., None]], -1)
        return SampledNetwork(
            model, chains, float(split_rhat(watched.numpy()).max()), float(bulk_ess(watched.numpy()).min())
        )

    def _run(
        self, model: NetworkPosterior | CollapsedPosterior, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> Chains:
        return sample(
            lambda state: model.log_density(state, x, y),
            model.start((self.n_chains,), generator),
            n_warmup=self.n_warmup,
            n_draws=self.n_draws,
            path_length=self.path_length,
            generator=generator,
        )

    def _predict_standard(self, x: Array) -> Prediction:
        """The equal mixture of the draws' Gaussians at x [N, D]."""
        model, draws = self.posterior_.model, self.posterior_.chains.draws.flatten(0, 1)
        loc = model.functions(draws, torch.as_tensor(x)).numpy()  # [S, N, 1]
        return Prediction(loc, model.noise(draws).numpy()[:, None, None], np.full((1, 1, 1), np.inf))
