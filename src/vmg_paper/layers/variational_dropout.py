"""Variational dropout with correlated weight noise, variant A of Kingma, Salimans & Welling (2015)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.math.preactivations import log_uniform_kl
from vmg_paper.layers.noisy_inputs import NoisyInputLinear

__all__ = ["VariationalDropoutLinear"]

MAX_SCALE = 1.0  # of √α: beyond α = 1 the fit of the divergence ends, and the posterior has bad optima
MIN_LOG_SCALE = -6.0  # of log √α; below it the noise has no effect and the KL only grows


class VariationalDropoutLinear(NoisyInputLinear):
    """B = (Â ⊙ ξ)θ with ξ ~ N(1, α) for each input of each row, α learned; the bias has no noise.

    A row of the weight matrix is w_i = s_i θ_i with s_i ~ N(1, α) under a log-uniform prior, so the divergence counts
    one noise source for each input, in_features × KL(α) (their §3.2). It is not downscaled. α <= 1 is kept by moving
    the parameter itself back before each use, as in :class:`~vmg.nn.PseudoData`.

    Parameters
    ----------
    in_features, out_features, bias, batch_shape
        As in ``nn.Linear``, and independent replicas.
    initial_noise : float
        √α at the start of training.
    """

    log_noise: nn.Parameter  # log √α, [*batch_shape]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        initial_noise: float = 0.2,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, batch_shape=batch_shape)
        if not 0 < initial_noise <= MAX_SCALE:
            raise ValueError(f"initial_noise must be in (0, {MAX_SCALE:g}]; got {initial_noise}")
        self.initial_noise = initial_noise
        self.log_noise = nn.Parameter(torch.full(tuple(batch_shape), math.log(initial_noise)))

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
