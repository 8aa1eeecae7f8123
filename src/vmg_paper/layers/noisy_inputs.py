"""Layers whose inputs are multiplied by noise, each input of each row by its own; the bias is not."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from vmg_paper.layers.deterministic import PointLinear

__all__ = ["NoisyInputLinear"]


class NoisyInputLinear(PointLinear):
    """y = (x̂ ⊙ z)θ with noise z of mean one for each input; a function draw has one z for all rows."""

    @abstractmethod
    def _input_noise(self, *shape: int) -> Tensor:
        """z, [*shape, in_features]."""

    def _multiplier(self, *shape: int) -> Tensor:
        """z with ones for the bias, [*shape, R]."""
        return pad(self._input_noise(*shape), (0, int(self.has_bias)), value=1.0)

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        return (x * self._multiplier(*sample_shape, *self.batch_shape, x.shape[-2])) @ self.loc

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._multiplier(*sample_shape, *self.batch_shape, 1).mT * self.loc
