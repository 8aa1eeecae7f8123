"""Layers of one learned weight matrix: deterministic, dropout, DropConnect and variational dropout."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vmg.math.preactivations import augment
from vmg.priors import log_uniform_kl
from vmg_paper.layers.factorised import LocatedLinear

__all__ = [
    "DeterministicLinear",
    "DropConnectLinear",
    "DropoutLinear",
    "DroppingLinear",
    "NoisyInputLinear",
    "PointLinear",
    "VariationalDropoutLinear",
]


class PointLinear(LocatedLinear):
    """A single learned weight matrix θ.

    Parameters
    ----------
    in_features, out_features, bias
        As in ``nn.Linear``.
    precision : float
        Of a Gaussian prior on the weights that ``nn.Linear`` would have, θ/√R: its negative log-density, without
        constants, stands for the KL divergence. The objective divides it by N: this is weight decay.
    batch_shape : sequence of int
        Independent replicas.
    """

    def __init__(self, *sizes: Any, precision: float = 0.0, **options: Any) -> None:
        super().__init__(*sizes, **options)
        if not precision >= 0:
            raise ValueError(f"precision must be >= 0; got {precision}")
        self.precision = precision

    def kl_divergence(self) -> Tensor:
        """½ precision ‖θ‖²/R; zero for maximum likelihood."""
        return self._decay(self.loc)

    def _decay(self, weight: Tensor) -> Tensor:
        if self.precision == 0:
            return self.loc.new_zeros(self.batch_shape)
        return 0.5 * self.precision / self.n_rows * weight.square().sum((-2, -1))

    def _uniform(self, *shape: int) -> Tensor:
        like = self.loc
        return torch.rand(*shape, generator=self.generator, dtype=like.dtype, device=like.device)


class DeterministicLinear(PointLinear):
    """An ordinary linear layer, for maximum likelihood (``precision=0``) and maximum a posteriori."""

    def _draw(self, x: Tensor) -> Tensor:
        return x @ self.loc

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc.expand(*sample_shape, *self.loc.shape)


class NoisyInputLinear(PointLinear):
    """y = (x̂ ⊙ z)θ with noise z of mean one for each input; a function draw has one z for all rows."""

    @abstractmethod
    def _input_noise(self, *shape: int) -> Tensor:
        """z, [*shape, in_features]."""

    def _multiplier(self, *shape: int) -> Tensor:
        """z with ones for the bias, [*shape, R]."""
        return pad(self._input_noise(*shape), (0, int(self.has_bias)), value=1.0)

    def _draw(self, x: Tensor) -> Tensor:
        return (x * self._multiplier(*self.batch_shape, x.shape[-2])) @ self.loc

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._multiplier(*sample_shape, *self.batch_shape, 1).mT * self.loc


class DroppingLinear(PointLinear):
    """A layer that drops inputs or weights.

    Parameters
    ----------
    in_features, out_features, bias, precision, batch_shape
        As in :class:`PointLinear`.
    rate : float or Tensor [*batch_shape]
        Probability that an input or a weight is dropped; replicas may have their own.
    """

    rate: Tensor

    def __init__(self, *sizes: Any, rate: float | Tensor = 0.5, **options: Any) -> None:
        super().__init__(*sizes, **options)
        values = torch.as_tensor(rate, dtype=torch.get_default_dtype())
        if not ((values >= 0) & (values < 1)).all():
            raise ValueError(f"rate must be in [0, 1); got {rate}")
        self.register_buffer("rate", values.expand(self.batch_shape).clone())


class DropoutLinear(DroppingLinear, NoisyInputLinear):
    """y = (x̂ ⊙ z/(1 − rate)) θ with z ~ Bernoulli(1 − rate) for each input of each row; the bias is kept.

    The mean is the network without dropout, so nothing is rescaled at test time. A function draw is one mask for all
    rows: with the decay of :class:`PointLinear` this is the Bayesian reading of dropout
    (Gal & Ghahramani 2016), whose KL is ½ precision ((1 − rate)‖M‖² + ‖m‖²) for weights M and biases m.
    """

    def _input_noise(self, *shape: int) -> Tensor:
        rate = self.rate[..., None, None]
        return (self._uniform(*shape, self.in_features) >= rate) / (1 - rate)

    def kl_divergence(self) -> Tensor:
        return (1 - self.rate) * self._decay(self.loc[..., : self.in_features, :]) + self._decay(
            self.loc[..., self.in_features :, :]
        )


class DropConnectLinear(DroppingLinear):
    """y = x̂ (Z ⊙ θ/(1 − rate)) with Z ~ Bernoulli(1 − rate) for each weight, biases among them.

    Outputs are drawn from the Gaussians with their moments over masks: two products of matrices. Differs from Wan et
    al. (2013): they train with a mask for each row, B × R × C numbers, too many for wide layers without their special
    kernels, and use the Gaussians at test time (algorithm 2).
    """

    def _draw(self, x: Tensor) -> Tensor:
        mean, variance = self._moments(x)
        noise = self.draw_noise(*self.batch_shape, x.shape[-2], self.out_features)
        return mean + variance.clamp(min=torch.finfo(x.dtype).tiny).sqrt() * noise

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rate = self.rate[..., None, None]
        return (self._uniform(*sample_shape, *self.loc.shape) >= rate) * (self.loc / (1 - rate))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs over masks, each [..., B, C] (Wan et al. 2013, §3.2)."""
        return self._moments(augment(self.check_finite(self.as_rows(x)), self.has_bias))

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = (self.rate / (1 - self.rate))[..., None, None]
        return x @ self.loc, odds * (x.square() @ self.loc.square())

    def sample_function(self, n_functions: int, *, prior: bool = False) -> Callable[[Tensor], Tensor]:
        """Draws from the Gaussians with the outputs' moments, their noise shared by all rows."""
        if prior:
            return super().sample_function(n_functions, prior=True)
        noise = self.draw_noise(n_functions, *self.batch_shape, 1, self.out_features)

        def function(x: Tensor) -> Tensor:
            mean, variance = self.moments(x.to(noise.dtype))
            return (mean + variance.sqrt() * noise).to(x.dtype)

        return function


MAX_SCALE = 1.0  # of √α: beyond α = 1 the fit of the divergence ends, and the posterior has bad optima
MIN_LOG_SCALE = -6.0  # of log √α; below it the noise has no effect and the KL only grows


class VariationalDropoutLinear(NoisyInputLinear):
    """B = (Â ⊙ ξ)θ with ξ ~ N(1, α) for each input of each row, α learned; the bias has no noise.

    A row of the weight matrix is w_i = s_i θ_i with s_i ~ N(1, α) under a log-uniform prior, so the divergence counts
    one noise source for each input, in_features × KL(α) (their §3.2). It is not downscaled. α <= 1 is kept by moving
    the parameter itself back before each use, as in :class:`~vmg.nn.PseudoData`.

    Parameters
    ----------
    in_features, out_features, bias, precision, batch_shape
        As in :class:`PointLinear`.
    initial_noise : float
        √α at the start of training.
    """

    log_noise: nn.Parameter  # log √α, [*batch_shape]

    def __init__(self, *sizes: Any, initial_noise: float = 0.2, **options: Any) -> None:
        super().__init__(*sizes, **options)
        if not 0 < initial_noise <= MAX_SCALE:
            raise ValueError(f"initial_noise must be in (0, {MAX_SCALE:g}]; got {initial_noise}")
        self.initial_noise = initial_noise
        self.log_noise = nn.Parameter(torch.full(self.batch_shape, math.log(initial_noise)))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """θ by He's scheme, √α at ``initial_noise``."""
        super().reset_parameters(generator)
        with torch.no_grad():
            self.log_noise.fill_(math.log(self.initial_noise))

    def project_(self) -> None:
        """Move √α back between its limits, without a trace in the graph."""
        self.log_noise.data.clamp_(MIN_LOG_SCALE, math.log(MAX_SCALE))

    def _input_noise(self, *shape: int) -> Tensor:
        self.project_()
        return 1 + self.log_noise.exp()[..., None, None] * self.draw_noise(*shape, self.in_features)  # ξ

    def kl_divergence(self) -> Tensor:
        self.project_()
        return self.in_features * log_uniform_kl(self.log_noise, MAX_SCALE)
