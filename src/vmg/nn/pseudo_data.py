"""Learned pseudo-data of a layer and their posterior [LW16, §2.4]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.functional import log_uniform_kl, multiplicative_noise

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

    log_input_noise: nn.Parameter  # log √α of inputs: [..., 1] or [..., R]
    log_output_noise: nn.Parameter  # of outputs: [..., 1] or [..., C]
    log_point_noise: nn.Parameter | None  # of points: [..., P], only when factored

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
        self.inputs = nn.Parameter(torch.empty(*batch_shape, n_points, n_rows))
        self.outputs = nn.Parameter(torch.empty(*batch_shape, n_points, n_columns))
        factored = noise == "factored"
        self.log_input_noise = nn.Parameter(torch.empty(*batch_shape, n_rows if factored else 1))
        self.log_output_noise = nn.Parameter(torch.empty(*batch_shape, n_columns if factored else 1))
        self.log_point_noise = nn.Parameter(torch.empty(*batch_shape, n_points)) if factored else None
        self.reset()

    def extra_repr(self) -> str:
        return f"{self.inputs.shape[-2]} points, max_noise={self.max_noise:g}, noise={self.noise}"

    @property
    def _noise_parameters(self) -> list[nn.Parameter]:
        both = [self.log_input_noise, self.log_output_noise]
        return both if self.log_point_noise is None else [*both, self.log_point_noise]

    @property
    def _max_log_scale(self) -> float:
        return math.log(self.max_noise) / (2 if self.noise == "factored" else 1)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Entries uniform near zero, √α at its bound, as in the authors' code."""
        with torch.no_grad():
            for entries in (self.inputs, self.outputs):
                entries.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
            for parameter in self._noise_parameters:
                parameter.fill_(self._max_log_scale)

    def project_(self) -> None:
        """Move √α back into its bounds, without a trace in the graph."""
        for parameter in self._noise_parameters:
            parameter.data.clamp_(min(MIN_LOG_SCALE, self._max_log_scale), self._max_log_scale)

    def _log_scales(self) -> tuple[Tensor, Tensor]:
        """log √α of inputs and outputs, broadcastable to [..., P, R] and [..., P, C]."""
        both = (self.log_input_noise.unsqueeze(-2), self.log_output_noise.unsqueeze(-2))
        if self.log_point_noise is None:
            return both
        points = self.log_point_noise.unsqueeze(-1)
        return points + both[0], points + both[1]

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One draw (Ã, B̃) for each index of ``sample_shape``."""
        self.project_()
        drawn = []
        for mean, log_scale in zip((self.inputs, self.outputs), self._log_scales(), strict=True):
            noise = torch.randn(*sample_shape, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            drawn.append(multiplicative_noise(mean, log_scale.exp(), noise))
        return drawn[0], drawn[1]

    def kl_divergence(self) -> Tensor:
        """KL of both posteriors to their log-uniform priors, summed over entries; [*batch_shape]."""
        self.project_()
        total = torch.zeros((), dtype=self.inputs.dtype, device=self.inputs.device)
        for mean, log_scale in zip((self.inputs, self.outputs), self._log_scales(), strict=True):
            kl = log_uniform_kl(log_scale, self.max_noise)
            repeats = (mean.shape[-2] * mean.shape[-1]) // (kl.shape[-2] * kl.shape[-1])
            total = total + repeats * kl.sum((-2, -1))
        return total
