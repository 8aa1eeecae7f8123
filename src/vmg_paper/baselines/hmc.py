"""The exact posterior of a network with known noise by Hamiltonian Monte Carlo, the output layer integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vmg.math.preactivations import augment
from vmg.nn.mlp import ACTIVATIONS
from vmg.prediction import Prediction
from vmg_paper.baselines.batched_regressor import Array, BatchedRegressor, Rows
from vmg_paper.baselines.hamiltonian import Chains, bulk_ess, sample, split_rhat

__all__ = ["CollapsedPosterior", "FlatNetwork", "HMCRegressor", "LayerPrecisions", "SampledNetwork"]


@dataclass(frozen=True)
class FlatNetwork:
    """f(x; θ): every layer is [x, 1]W/√R, as the paper's are, so that weights N(0, 1) give outputs of unit size."""

    sizes: tuple[int, ...]
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {tuple(ACTIVATIONS)}; got {self.activation!r}")

    @property
    def n_weights(self) -> int:
        return sum(self.layer_sizes)

    @property
    def layer_sizes(self) -> list[int]:
        """Weights of each layer."""
        return [(n_in + 1) * n_out for n_in, n_out in pairwise(self.sizes)]

    def __call__(self, weights: Tensor, x: Tensor) -> Tensor:
        """Outputs [..., N, C] for weights [..., n_weights] and x [N, D] or [..., N, D]."""
        parts = weights.split(self.layer_sizes, -1)
        for position, (part, n_out) in enumerate(zip(parts, self.sizes[1:], strict=True)):
            x = augment(ACTIVATIONS[self.activation](x) if position else x) @ part.unflatten(-1, (-1, n_out))
        return x


@dataclass(frozen=True)
class LayerPrecisions:
    """Weights N(0, 1/(τ_r τ_c)) in each layer, Gamma(concentration, rate) on both: :class:`~vmg.priors.GammaPrior`."""

    concentration: float = 1.0
    rate: float = 0.5

    def __post_init__(self) -> None:
        if not min(self.concentration, self.rate) > 0:
            raise ValueError(f"concentration and rate must be positive; got {self.concentration} and {self.rate}")


class Features(NamedTuple):
    """Features of the output layer at N rows, for n states."""

    inputs: Tensor  # Φ = [z, 1]/√R, [n, N, R]
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
        inputs = augment(ACTIVATIONS[self.network.activation](self.hidden(self._weights(state), x)))
        variance = self._scales(state)[:, -1, None, None].square()
        K = variance * (inputs @ inputs.mT) + self.noise_scale**2 * torch.eye(len(x), dtype=x.dtype)
        root, failed = torch.linalg.cholesky_ex(K)  # a trajectory may leave the finite numbers; it is then refused
        return Features(inputs, variance, torch.where(failed[:, None, None] > 0, torch.nan, root))

    def log_density(self, state: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Log density [n] of states [n, dimensions] given x [N, D] and y [N], and its gradient."""
        state = state.detach().requires_grad_()
        with torch.enable_grad():
            value = self._log_evidence(state, x, y) + self._log_prior(state)
            [gradient] = torch.autograd.grad(value.sum(), state)
        return value.detach(), gradient

    def _log_evidence(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log N(y; 0, K) without its constant, [n]."""
        root = self._features(state, x).root
        whitened = torch.linalg.solve_triangular(root, y.expand(len(state), -1).unsqueeze(-1), upper=False)
        return -0.5 * whitened.square().sum((-2, -1)) - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _log_prior(self, state: Tensor) -> Tensor:
        squares = state[:, : self.hidden.n_weights].square().sum(-1)
        if not isinstance(self.weight_prior, LayerPrecisions):
            return -0.5 * squares / self.weight_prior**2
        a, b, logs = self.weight_prior.concentration, self.weight_prior.rate, self._log_precisions(state)
        # the Jacobian of log τ makes the exponent a, not a − 1
        return (a * logs - b * logs.exp()).sum((-2, -1)) - 0.5 * squares

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

    network: FlatNetwork
    chains: Chains
    noise_scale: float
    rhat: float
    """The largest split R̂ of the function at the training rows."""
    ess: float
    """The smallest bulk effective sample size of the same."""


@dataclass(eq=False)
class HMCRegressor(BatchedRegressor):
    """A network with known noise, sampled by full-batch Hamiltonian Monte Carlo.

    The output layer is integrated out, which leaves the posterior as it is and lets chains mix faster. Hidden units may
    change places without changing the function, so convergence is judged on functions, not weights.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The network, as in :class:`~vmg.VMGRegressor`.
    noise_scale : float
        Standard deviation of the noise in the target's own units.
    weight_prior : float or LayerPrecisions
        Standard deviation of the weights, or precisions of each layer, as the matrix Gaussian's Gamma prior has. Inputs
        of a layer are divided by √R.
    n_chains, n_warmup, n_draws : int
        Chains, iterations thrown away, and draws kept of each chain.
    path_length : float
        Mean length of a trajectory, in units of the posterior's own scales.
    random_state : int
    """

    hidden_layer_sizes: Sequence[int] = (50,)
    activation: str = "relu"
    _: KW_ONLY
    noise_scale: float
    weight_prior: float | LayerPrecisions = 1.0
    n_chains: int = 8
    n_warmup: int = 500
    n_draws: int = 500
    path_length: float = 1.5
    random_state: int = 0

    def _fit_all(self, sets: Sequence[Rows]) -> tuple[list[SampledNetwork], int]:
        if not self.hidden_layer_sizes:
            raise ValueError("hidden_layer_sizes must hold at least one layer; got none")
        sampled = [self._sample(rows) for rows in sets]  # each tunes its own step size and mass
        return sampled, self.n_warmup + self.n_draws

    def _sample(self, rows: Rows) -> SampledNetwork:
        network = FlatNetwork((rows.x.shape[1], *self.hidden_layer_sizes, 1), self.activation)
        generator = torch.Generator().manual_seed(self.random_state)
        x, y = torch.as_tensor(rows.x), torch.as_tensor(rows.y)
        posterior = CollapsedPosterior(network, self.weight_prior, self.noise_scale / rows.unit)
        chains = sample(
            lambda state: posterior.log_density(state, x, y),
            posterior.start((self.n_chains,), generator),
            n_warmup=self.n_warmup,
            n_draws=self.n_draws,
            path_length=self.path_length,
            generator=generator,
        )
        weights = posterior.draw_weights(chains.draws.flatten(0, 1), x, y, generator)
        chains = replace(chains, draws=weights.unflatten(0, chains.draws.shape[:2]))
        watched = network(chains.draws, x)[..., 0].numpy()
        rhat, ess = float(split_rhat(watched).max()), float(bulk_ess(watched).min())
        return SampledNetwork(network, chains, posterior.noise_scale, rhat, ess)

    def _predict_standard(self, x: Array) -> Prediction:
        """The equal mixture of the draws' Gaussians at x [N, D]."""
        one: SampledNetwork = self.posterior_
        loc = one.network(one.chains.draws.flatten(0, 1), torch.as_tensor(x)).numpy()  # [S, N, 1]
        return Prediction(loc, np.full((1, 1, 1), one.noise_scale), np.full((1, 1, 1), np.inf))
