"""Layers that learn one weight matrix, with or without noise around it; and the plain one, without."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.nn.bayesian import BayesianLinear
from vmg_paper.layers.factorised import he_normal_

__all__ = ["DeterministicLinear", "PointLinear"]


class PointLinear(BayesianLinear):
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

    loc: nn.Parameter  # θ

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        precision: float = 0.0,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, batch_shape)
        if not precision >= 0:
            raise ValueError(f"precision must be >= 0; got {precision}")
        self.precision = precision
        self.loc = nn.Parameter(torch.empty(*batch_shape, self.n_rows, out_features))
        he_normal_(self.loc, in_features)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """θ by He's scheme."""
        he_normal_(self.loc, self.in_features, generator)

    def mean_weight(self) -> Tensor:
        return self.loc

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

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        out = x @ self.loc
        return out.expand(*sample_shape, *self.batch_shape, *out.shape[-2:])

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc.expand(*sample_shape, *self.loc.shape)
