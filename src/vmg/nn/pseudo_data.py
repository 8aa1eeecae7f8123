"""Learned pseudo-data of a layer and their posterior [LW16, §2.4]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.functional import log_uniform_kl, multiplicative_noise
from vmg.priors import PseudoNoise

__all__ = ["NOISE_KINDS", "PseudoData"]

NOISE_KINDS = ("layer", "factored")
MIN_LOG_SCALE = -4.0  # the authors' lower limit of log √α; below it the noise has no effect and the KL only grows
INITIAL_RANGE = 0.01  # entries start in U[-0.01, 0.01] [LW16, §4]


class PseudoData(nn.Module):
    """Pseudo-inputs Ã [P, R] and pseudo-outputs B̃ [P, C] with multiplicative Gaussian posteriors.

    An entry is mean ⊙ (1 + √α ε) with √α <= ``max_noise``. With ``noise="layer"`` there is one √α for all inputs and
    one for all outputs; with ``"factored"`` √α_ij = (point i's factor) × (dimension j's factor), inputs and outputs
    sharing the points' factors, each factor bounded by √max_noise.

    The bound is kept by moving the parameter itself back (:meth:`project_`) before each use. A clamp inside the graph
    would cut the gradient at the bound, and √α would never come down again.
    """

    points: nn.Parameter  # [Ã, B̃] side by side, [..., P, R+C]
    log_noise: nn.Parameter  # log √α of inputs and outputs [..., 2], or the dimensions' factors [..., R+C]
    log_point_noise: nn.Parameter | None  # the points' factors [..., P], only when factored

    def __init__(
        self,
        n_points: int,
        n_rows: int,
        n_columns: int,
        *,
        max_noise: float = 0.25,
        noise: str = "layer",
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if not 0 < max_noise <= 1:
            raise ValueError(f"max_noise, the bound on √α, must be in (0, 1]; got {max_noise}")
        if noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {noise!r}")
        self.max_noise, self.noise = max_noise, noise
        self.n_points, self.n_rows, self.n_columns = n_points, n_rows, n_columns
        width = n_rows + n_columns
        factored = noise == "factored"
        self.points = nn.Parameter(torch.empty(*batch_shape, n_points, width))
        self.log_noise = nn.Parameter(torch.empty(*batch_shape, width if factored else 2))
        self.log_point_noise = nn.Parameter(torch.empty(*batch_shape, n_points)) if factored else None
        counts = torch.tensor([n_points * n_rows, n_points * n_columns], dtype=self.points.dtype)
        self.register_buffer("_counts", counts, persistent=False)  # entries that share one √α
        kinds = torch.arange(width) >= n_rows  # 0 for inputs, 1 for outputs
        self.register_buffer("_kinds", kinds.long(), persistent=False)
        self.reset()

    def extra_repr(self) -> str:
        return f"{self.n_points} points, max_noise={self.max_noise:g}, noise={self.noise}"

    @property
    def inputs(self) -> Tensor:
        """Mean pseudo-inputs, [..., P, R], bias entry included."""
        return self.points[..., : self.n_rows]

    @property
    def outputs(self) -> Tensor:
        """Mean pseudo-outputs, [..., P, C]."""
        return self.points[..., self.n_rows :]

    @property
    def noise_scale(self) -> Tensor:
        """√α of every entry of ``points``, [..., P, R+C]."""
        return self._log_scale().exp().expand_as(self.points)

    @property
    def _max_log_scale(self) -> float:
        return math.log(self.max_noise) / (2 if self.noise == "factored" else 1)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Entries uniform near zero, √α at its bound, as in the authors' code."""
        with torch.no_grad():
            self.points.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
            self.log_noise.fill_(self._max_log_scale)
            if self.log_point_noise is not None:
                self.log_point_noise.fill_(self._max_log_scale)

    def project_(self) -> None:
        """Move √α back into its bounds, without a trace in the graph."""
        highest = self._max_log_scale
        lowest = min(MIN_LOG_SCALE, highest)
        self.log_noise.data.clamp_(lowest, highest)
        if self.log_point_noise is not None:
            self.log_point_noise.data.clamp_(lowest, highest)

    def projected_noise(self) -> PseudoNoise:
        """The parameters of √α, moved back into their bounds."""
        self.project_()
        return PseudoNoise(self.n_points, self.log_noise, self.log_point_noise, self.max_noise)

    def _log_scale(self) -> Tensor:
        """log √α, broadcastable to ``points``: [..., 1, R+C] or [..., P, R+C]."""
        if self.log_point_noise is None:
            return self.log_noise.index_select(-1, self.get_buffer("_kinds")).unsqueeze(-2)
        return self.log_point_noise.unsqueeze(-1) + self.log_noise.unsqueeze(-2)

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One draw (Ã, B̃) for each index of ``sample_shape``."""
        self.project_()
        like = self.points
        noise = torch.randn(*sample_shape, *like.shape, generator=generator, dtype=like.dtype, device=like.device)
        drawn = multiplicative_noise(like, self._log_scale().exp(), noise)
        return drawn[..., : self.n_rows], drawn[..., self.n_rows :]

    def kl_divergence(self) -> Tensor:
        """KL of both posteriors to their log-uniform priors, summed over entries; [*batch_shape]."""
        self.project_()
        if self.log_point_noise is None:
            return log_uniform_kl(self.log_noise, self.max_noise) @ self.get_buffer("_counts")
        return log_uniform_kl(self._log_scale(), self.max_noise).sum((-2, -1))
