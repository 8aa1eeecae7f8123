"""A weight matrix whose entries have independent Gaussian posteriors: what three baselines share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.nn.bayesian import BayesianLinear

__all__ = ["FactorisedLinear", "he_normal_"]


def he_normal_(weight: Tensor, n_inputs: int, generator: torch.Generator | None = None) -> None:
    """Start W [..., R, C] at N(0, 2), bias row 0: He's scheme, as the layer divides its input by √R."""
    with torch.no_grad():
        weight.normal_(0, math.sqrt(2), generator=generator)
        weight[..., n_inputs:, :] = 0


class FactorisedLinear(BayesianLinear):
    """W_rc ~ N(M_rc, S_rc²), all entries independent.

    Parameters
    ----------
    in_features, out_features, bias
        As in ``nn.Linear``.
    initial_scale : float
        S at the start of training. A very small one makes the divergence so large at first that it drives all means
        to zero before the data are heard.
    batch_shape : sequence of int
        Independent replicas.
    """

    loc: nn.Parameter  # M
    log_scale: nn.Parameter  # log S

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        initial_scale: float = 0.01,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, batch_shape)
        if not initial_scale > 0:
            raise ValueError(f"initial_scale must be positive; got {initial_scale}")
        self.initial_scale = initial_scale
        shape = (*batch_shape, self.n_rows, out_features)
        self.loc = nn.Parameter(torch.empty(shape))
        self.log_scale = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Means by He's scheme, all scales at ``initial_scale``."""
        he_normal_(self.loc, self.in_features, generator)
        with torch.no_grad():
            self.log_scale.fill_(math.log(self.initial_scale))

    def mean_weight(self) -> Tensor:
        return self.loc

    def scale(self) -> Tensor:
        """S, [*batch_shape, R, C]."""
        return self.log_scale.exp()

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc + self.scale() * self.draw_noise(*sample_shape, *self.loc.shape)
