"""Dropout (Srivastava et al. 2014): inputs of a layer set to zero at random, in training and, if wanted, after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vmg_paper.layers.noisy_inputs import NoisyInputLinear

__all__ = ["DropoutLinear", "rates_of_replicas"]


def rates_of_replicas(rate: float | Tensor, batch_shape: Sequence[int]) -> Tensor:
    """A rate for each replica [*batch_shape], from one rate for all or from one for each."""
    values = torch.as_tensor(rate, dtype=torch.get_default_dtype())
    if not ((values >= 0) & (values < 1)).all():
        raise ValueError(f"rate must be in [0, 1); got {rate}")
    return values.expand(tuple(batch_shape)).clone()


class DropoutLinear(NoisyInputLinear):
    """y = (x̂ ⊙ z/(1 − rate)) θ with z ~ Bernoulli(1 − rate) for each input of each row; the bias is kept.

    The mean is the network without dropout, so nothing is rescaled at test time. A function draw is one mask for all
    rows: with the decay of :class:`~vmg_paper.layers.deterministic.PointLinear` this is the Bayesian reading of dropout
    (Gal & Ghahramani 2016), whose KL is ½ precision ((1 − rate)‖M‖² + ‖m‖²) for weights M and biases m.

    Parameters
    ----------
    in_features, out_features, bias, precision, batch_shape
        As in :class:`~vmg_paper.layers.deterministic.PointLinear`.
    rate : float or Tensor [*batch_shape]
        Probability that an input is dropped; replicas may have their own.
    """

    rate: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        rate: float | Tensor = 0.5,
        precision: float = 0.0,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, precision=precision, batch_shape=batch_shape)
        self.register_buffer("rate", rates_of_replicas(rate, batch_shape))

    def _input_noise(self, *shape: int) -> Tensor:
        rate = self.rate[..., None, None]
        return (self._uniform(*shape, self.in_features) >= rate) / (1 - rate)

    def kl_divergence(self) -> Tensor:
        if self.precision == 0:
            return self._decay(self.loc)
        return (1 - self.rate) * self._decay(self.loc[..., : self.in_features, :]) + self._decay(
            self.loc[..., self.in_features :, :]
        )
