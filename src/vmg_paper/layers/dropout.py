"""Dropout (Srivastava et al. 2014): inputs of a layer set to zero at random, in training and, if wanted, after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vmg_paper.layers.deterministic import PointLinear

__all__ = ["DropoutLinear", "check_rate"]


def check_rate(rate: float | Tensor) -> Tensor:
    """A rate, or one for each replica, as a tensor."""
    values = torch.as_tensor(rate, dtype=torch.get_default_dtype())
    if not ((values >= 0) & (values < 1)).all():
        raise ValueError(f"rate must be in [0, 1); got {rate}")
    return values


class DropoutLinear(PointLinear):
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
        self.register_buffer("rate", check_rate(rate).expand(tuple(batch_shape)).clone())

    def _kept(self, *shape: int) -> Tensor:
        """z/(1 − rate), [..., n, R] with ones for the bias."""
        rate = self.rate[..., None, None]
        kept = (self._uniform(*shape, self.in_features) >= rate) / (1 - rate)
        return torch.nn.functional.pad(kept, (0, int(self.has_bias)), value=1.0)

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        return (x * self._kept(*sample_shape, *self.batch_shape, x.shape[-2])) @ self.loc

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._kept(*sample_shape, *self.batch_shape, 1).mT * self.loc

    def kl_divergence(self) -> Tensor:
        if self.precision == 0:
            return self._decay(self.loc)
        return (1 - self.rate) * self._decay(self.loc[..., : self.in_features, :]) + self._decay(
            self.loc[..., self.in_features :, :]
        )
