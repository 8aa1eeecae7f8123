"""Trainable parameters of a layer: those of its covariances, and its pseudo-data with their posterior [LW16, §2.4].

Calling a module of covariance parameters gives its :class:`~vmg.math.covariance.Covariance`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vmg.math.covariance import Covariance, Dense, Diagonal, RankOne
from vmg.math.linalg import at_least_float32, is_traced, randn
from vmg.math.preactivations import PseudoNoise, multiplicative_noise, pseudo_data_kl
from vmg.settings import KeepsSettings

__all__ = [
    "FAMILIES",
    "NOISE_KINDS",
    "CovarianceParameters",
    "DenseParameters",
    "DiagonalParameters",
    "PseudoData",
    "RankOneParameters",
]

INITIAL_SPREAD = 0.01  # of log scales and of u at the start, as in the authors' code


class CovarianceParameters(nn.Module, ABC):
    """Unconstrained parameters of a covariance; scales are kept as logarithms."""

    log_scale: nn.Parameter

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(*batch_shape, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        """Start near diag(exp(2 log_scale)), for log_scale [n]."""
        with torch.no_grad():
            noise = randn(self.log_scale.shape, like=log_scale, generator=generator)
            self.log_scale.copy_(log_scale + INITIAL_SPREAD * noise)

    @abstractmethod
    def forward(self) -> Covariance:
        """The covariance at the present parameters."""


class DiagonalParameters(CovarianceParameters):
    """A diagonal."""

    def forward(self) -> Diagonal:
        return Diagonal.from_log_scale(at_least_float32(self.log_scale))


class RankOneParameters(CovarianceParameters):
    """A diagonal plus rank one in the square root [LW16, footnote 1]."""

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__(n, batch_shape)
        self.vector = nn.Parameter(torch.zeros(*batch_shape, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        super().reset(log_scale, generator)
        with torch.no_grad():  # u = 0 has no gradient, so it starts a little beside
            self.vector.copy_(INITIAL_SPREAD * randn(self.vector.shape, like=log_scale, generator=generator))

    def forward(self) -> RankOne:
        return RankOne(at_least_float32(self.log_scale).exp(), at_least_float32(self.vector), validate=False)


class DenseParameters(CovarianceParameters):
    """A Cholesky factor: its log-diagonal, and its strict lower triangle relative to the row's scale."""

    def __init__(self, n: int, batch_shape: Sequence[int] = ()) -> None:
        super().__init__(n, batch_shape)
        self.lower = nn.Parameter(torch.zeros(*batch_shape, n, n))

    def reset(self, log_scale: Tensor, generator: torch.Generator | None = None) -> None:
        super().reset(log_scale, generator)
        with torch.no_grad():
            self.lower.zero_()

    def forward(self) -> Dense:
        lower = at_least_float32(self.lower)
        unit = lower.tril(-1) + torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
        return Dense(at_least_float32(self.log_scale).exp().unsqueeze(-1) * unit, validate=False)


FAMILIES: dict[str, type[CovarianceParameters]] = {
    "diagonal": DiagonalParameters,
    "rank_one": RankOneParameters,
    "dense": DenseParameters,
}


NOISE_KINDS = ("layer", "factored")
MIN_LOG_SCALE = -4.0  # the authors' lower limit of log √α; below it the noise has no effect and the KL only grows
INITIAL_RANGE = 0.01  # entries start in U[-0.01, 0.01] [LW16, §4]


class PseudoData(KeepsSettings):
    """Pseudo-inputs Ã [P, R] and pseudo-outputs B̃ [P, C] with multiplicative Gaussian posteriors.

    An entry is mean ⊙ (1 + √α ε) with √α <= ``max_noise``. With ``noise="layer"`` there is one √α for all inputs and
    one for all outputs; with ``"factored"`` √α_ij = (point i's factor) × (dimension j's factor), inputs and outputs
    sharing the points' factors, each factor bounded by √max_noise.

    The bound is kept by moving the parameter itself back (:meth:`project_`) before each use. A clamp inside the graph
    would cut the gradient at the bound, and √α would never come down again.

    ``max_noise`` is one number, or a tensor [*batch_shape] with a bound for each replica.
    """

    SETTINGS = ("max_noise",)

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
        bounds = torch.as_tensor(max_noise, dtype=torch.get_default_dtype(), device="cpu")
        one = isinstance(max_noise, int | float)
        if not (0 < float(max_noise) <= 1 if one else ((bounds > 0) & (bounds <= 1)).all()):  # type: ignore[arg-type]
            raise ValueError(f"max_noise, the bound on √α, must be in (0, 1]; got {max_noise}")
        if not one and bounds.shape != torch.Size(batch_shape):
            raise ValueError(
                f"max_noise must be one number or one for each of the replicas {tuple(batch_shape)}; "
                f"got shape {tuple(bounds.shape)}"
            )
        if noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {noise!r}")
        self.max_noise: float | Tensor = float(max_noise) if isinstance(max_noise, int | float) else bounds
        self.noise, self.lowest = noise, MIN_LOG_SCALE
        self.n_points, self.n_rows, self.n_columns = n_points, n_rows, n_columns
        width = n_rows + n_columns
        factored = noise == "factored"
        self.points = nn.Parameter(torch.empty(*batch_shape, n_points, width))
        self.log_noise = nn.Parameter(torch.empty(*batch_shape, width if factored else 2))
        self.log_point_noise = nn.Parameter(torch.empty(*batch_shape, n_points)) if factored else None
        self.reset()

    def extra_repr(self) -> str:
        bound = "one per replica" if isinstance(self.max_noise, Tensor) else f"{self.max_noise:g}"
        return f"{self.n_points} points, max_noise={bound}, noise={self.noise}"

    @property
    def inputs(self) -> Tensor:
        """Mean pseudo-inputs, [..., P, R], bias entry included."""
        return at_least_float32(self.points[..., : self.n_rows])

    @property
    def outputs(self) -> Tensor:
        """Mean pseudo-outputs, [..., P, C]."""
        return at_least_float32(self.points[..., self.n_rows :])

    @property
    def noise_scale(self) -> Tensor:
        """√α of every entry of ``points``, [..., P, R+C]."""
        return self._log_scale().exp().expand_as(self.points)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Entries uniform near zero, √α at its bound, as in the authors' code."""
        with torch.no_grad():
            self.points.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
            highest = self._highest()
            for log_noise in self.log_noises():
                log_noise.copy_(torch.as_tensor(highest).expand_as(log_noise))

    def _highest(self) -> Any:
        """The bound of a factor's logarithm: a number, or [*batch_shape, 1] of the parameters' kind."""
        share = 2 if self.noise == "factored" else 1
        if isinstance(self.max_noise, Tensor):
            return self.max_noise.to(self.points).log().unsqueeze(-1) / share
        return math.log(self.max_noise) / share

    def limits(self) -> tuple[Any, Any]:
        """The smallest and the largest log √α, or factor of it; numbers where all replicas share them."""
        highest = self._highest()
        return highest.clamp(max=self.lowest) if isinstance(highest, Tensor) else min(highest, self.lowest), highest

    def project_(self) -> None:
        """Move √α back into its bounds, without a trace in the graph; a recorded program leaves parameters alone."""
        if is_traced(self.log_noise):
            return
        lowest, highest = self.limits()
        for log_noise in self.log_noises():
            log_noise.data.clamp_(lowest, highest)

    def _inside(self, log_noise: Tensor) -> Tensor:
        """A logarithm inside its bounds; where it cannot be moved there, its value is, and its gradient stays."""
        log_noise = at_least_float32(log_noise)
        if not is_traced(log_noise):
            return log_noise
        return log_noise + (log_noise.clamp(*self.limits()) - log_noise).detach()

    def _moved_inside(self, log_noise: Tensor) -> Tensor:
        log_noise.data.clamp_(*self.limits())
        return at_least_float32(log_noise)

    def log_noises(self) -> list[nn.Parameter]:
        """The parameters of √α."""
        return [self.log_noise] if self.log_point_noise is None else [self.log_noise, self.log_point_noise]

    def projected_noise(self) -> PseudoNoise:
        """The parameters of √α, moved back into their bounds."""
        log_noise, log_point_noise = self.log_noise, self.log_point_noise
        inside = self._inside if is_traced(log_noise) else self._moved_inside
        points = None if log_point_noise is None else inside(log_point_noise)
        return PseudoNoise(self.n_points, inside(log_noise), points, self.max_noise)

    def _log_scale(self) -> Tensor:
        """log √α, broadcastable to ``points``: [..., 1, R+C] or [..., P, R+C]."""
        log_noise = self._inside(self.log_noise)
        if self.log_point_noise is not None:
            return self._inside(self.log_point_noise).unsqueeze(-1) + log_noise.unsqueeze(-2)
        kinds = zip(log_noise.unsqueeze(-2).split(1, -1), (self.n_rows, self.n_columns), strict=True)
        return torch.cat([kind.expand(*kind.shape[:-1], n) for kind, n in kinds], dim=-1)

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One draw (Ã, B̃) for each index of ``sample_shape``."""
        self.project_()
        points = at_least_float32(self.points)
        noise = randn((*sample_shape, *points.shape), like=points, generator=generator)
        drawn = multiplicative_noise(points, self._log_scale().exp(), noise)
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
        return pseudo_data_kl(self.projected_noise(), self.n_rows, self.n_columns)
