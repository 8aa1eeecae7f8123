"""Learned pseudo-data of a layer and their posterior [LW16, §2.4]."""

from __future__ import annotations

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

    ``max_noise`` is one number, or a tensor [*batch_shape] with a bound for each replica.
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
        max_noise: float | Tensor | Sequence[float] = 0.25,
        noise: str = "layer",
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        bounds = torch.as_tensor(max_noise, dtype=torch.get_default_dtype())
        if not ((bounds > 0) & (bounds <= 1)).all():
            raise ValueError(f"max_noise, the bound on √α, must be in (0, 1]; got {max_noise}")
        if not isinstance(max_noise, int | float) and bounds.shape != torch.Size(batch_shape):
            raise ValueError(
                f"max_noise must be one number or one for each of the replicas {tuple(batch_shape)}; "
                f"got shape {tuple(bounds.shape)}"
            )
        if noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {noise!r}")
        self.max_noise: float | Tensor = bounds
        if isinstance(max_noise, int | float):
            self.max_noise = float(max_noise)
        self.noise = noise
        highest = bounds.log().unsqueeze(-1) / (2 if noise == "factored" else 1)  # of a factor's logarithm
        self.register_buffer("_highest", highest, persistent=False)
        self.register_buffer("_lowest", highest.clamp(max=MIN_LOG_SCALE), persistent=False)
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
        bound = "one per replica" if isinstance(self.max_noise, Tensor) else f"{self.max_noise:g}"
        return f"{self.n_points} points, max_noise={bound}, noise={self.noise}"

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

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Entries uniform near zero, √α at its bound, as in the authors' code."""
        with torch.no_grad():
            self.points.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
            for log_noise in self._log_noises():
                log_noise.copy_(self.get_buffer("_highest").expand_as(log_noise))

    def project_(self) -> None:
        """Move √α back into its bounds, without a trace in the graph."""
        for log_noise in self._log_noises():
            log_noise.data.clamp_(self._buffers["_lowest"], self._buffers["_highest"])

    def _log_noises(self) -> list[nn.Parameter]:
        return [self.log_noise] if self.log_point_noise is None else [self.log_noise, self.log_point_noise]

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

    def antithetic_inputs(self, n_pairs: int, seed: int = 0) -> Tensor:
        """Draws Ã [2 n_pairs, ..., P, R] in pairs whose noise is opposite; they depend on ``seed`` alone."""
        self.project_()
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(n_pairs, *self.inputs.shape[-2:], generator=generator, dtype=torch.float64)
        noise = torch.cat([noise, -noise]).to(self.inputs)
        noise = noise[(slice(None), *[None] * (self.inputs.dim() - 2))]  # replicas share it
        scale = self._log_scale().exp().expand_as(self.points)[..., : self.n_rows]
        return multiplicative_noise(self.inputs, scale, noise)

    def kl_divergence(self) -> Tensor:
        """KL of both posteriors to their log-uniform priors, summed over entries; [*batch_shape]."""
        self.project_()
        if self.log_point_noise is None:
            return log_uniform_kl(self.log_noise, self._bound(1)) @ self.get_buffer("_counts")
        return log_uniform_kl(self._log_scale(), self._bound(2)).sum((-2, -1))

    def _bound(self, n_dims: int) -> float | Tensor:
        """max_noise, for a tensor with ``n_dims`` dimensions after those of the replicas."""
        if not isinstance(self.max_noise, Tensor):
            return self.max_noise
        return self.max_noise.to(self.points)[(..., *[None] * n_dims)]
