"""DropConnect (Wan et al. 2013): single weights set to zero at random; outputs drawn from matched Gaussians after."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vmg.math.preactivations import augment
from vmg_paper.layers.deterministic import PointLinear
from vmg_paper.layers.dropout import rates_of_replicas

__all__ = ["DropConnectLinear"]


class DropConnectLinear(PointLinear):
    """y = x̂ (Z ⊙ θ/(1 − rate)) with Z ~ Bernoulli(1 − rate) for each weight, biases among them.

    Parameters
    ----------
    in_features, out_features, bias, precision, batch_shape
        As in :class:`~vmg_paper.layers.deterministic.PointLinear`.
    rate : float or Tensor [*batch_shape]
        Probability that a weight is dropped; replicas may have their own.
    matched : bool
        Draw the outputs of each row from the Gaussians with their moments over masks, as after training, instead of a
        mask: two products of matrices. Wan et al. draw a mask for each row, B × R × C numbers, too many for wide layers
        without their special kernels.
    """

    rate: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rate: float | Tensor = 0.5,
        matched: bool = False,
        precision: float = 0.0,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, precision=precision, batch_shape=batch_shape)
        self.matched = matched
        self.register_buffer("rate", rates_of_replicas(rate, batch_shape))

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        if self.matched:
            mean, variance = self._moments(x)
            noise = self.draw_noise(*sample_shape, *self.batch_shape, x.shape[-2], self.out_features)
            return mean + variance.clamp(min=torch.finfo(x.dtype).tiny).sqrt() * noise
        rate = self.rate[..., None, None, None]
        mask = self._uniform(*sample_shape, *self.batch_shape, x.shape[-2], *self.loc.shape[-2:]) >= rate
        weight = mask * (self.loc.unsqueeze(-3) / (1 - rate))  # [..., B, R, C]
        return (x.unsqueeze(-2) @ weight).squeeze(-2)

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        rate = self.rate[..., None, None]
        return (self._uniform(*sample_shape, *self.loc.shape) >= rate) * (self.loc / (1 - rate))

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the outputs over masks, each [..., B, C] (Wan et al. 2013, §3.2)."""
        return self._moments(augment(self.check_input(x), self.has_bias))

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """At augmented inputs."""
        odds = (self.rate / (1 - self.rate))[..., None, None]
        return x @ self.loc, odds * (x.square() @ self.loc.square())

    def sample_function(self, n_functions: int, *, prior: bool = False) -> Callable[[Tensor], Tensor]:
        """Draws from the Gaussians with the outputs' moments, their noise shared by all rows.

        This is the inference of Wan et al. (algorithm 2). :meth:`sample_weight` draws masks.
        """
        if prior:
            return super().sample_function(n_functions, prior=True)
        noise = self.draw_noise(n_functions, *self.batch_shape, 1, self.out_features)

        def function(x: Tensor) -> Tensor:
            mean, variance = self.moments(x.to(noise.dtype))
            return (mean + variance.sqrt() * noise).to(x.dtype)

        return function
