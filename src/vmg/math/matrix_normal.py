"""The matrix variate Gaussian MN(M, U, V) as a ``torch.distributions.Distribution`` [LW16, §2.1 and appendix A]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.distributions.utils import _standard_normal

from vmg.math.covariance import Covariance

__all__ = ["MatrixNormal"]


class MatrixNormal(Distribution):
    """W ~ MN(M, U, V), that is vec(W) ~ N(vec M, V ⊗ U) with vec stacking columns [LW16, eq. 1].

    The density has the normaliser (2π)^{RC/2} |V|^{R/2} |U|^{C/2}; the paper prints |U|^{n/2} where |U|^{p/2} is meant.

    Parameters
    ----------
    loc : Tensor [..., R, C]
        Mean M.
    row_covariance, column_covariance : Covariance
        U of size R and V of size C, each of any family of :mod:`vmg.math.covariance`.
    """

    # the families check their own arguments
    arg_constraints = {"loc": constraints.independent(constraints.real, 2)}  # noqa: RUF012 - torch's convention
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        row_covariance: Covariance,
        column_covariance: Covariance,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() < 2:
            raise ValueError(f"loc must be a matrix or a batch of matrices; got shape {tuple(loc.shape)}")
        for name, covariance, size in (
            ("row_covariance", row_covariance, loc.shape[-2]),
            ("column_covariance", column_covariance, loc.shape[-1]),
        ):
            if not isinstance(covariance, Covariance):
                raise TypeError(
                    f"{name} must be a vmg.covariance.Covariance, such as Diagonal(scale) or Dense(scale_tril); "
                    f"got {type(covariance).__name__}"
                )
            if covariance.n != size:
                raise ValueError(
                    f"{name} must have size {size} to fit loc of shape {tuple(loc.shape)}; got {covariance.n}"
                )
        batch_shape = torch.broadcast_shapes(loc.shape[:-2], row_covariance.batch_shape, column_covariance.batch_shape)
        self.loc = loc.expand(*batch_shape, *loc.shape[-2:])
        self.row_covariance = row_covariance.expand(batch_shape)
        self.column_covariance = column_covariance.expand(batch_shape)
        super().__init__(batch_shape, self.loc.shape[-2:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> MatrixNormal:
        return MatrixNormal(
            self.loc.expand(*batch_shape, *self.event_shape),
            self.row_covariance.expand(batch_shape),
            self.column_covariance.expand(batch_shape),
            validate_args=False,
        )

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.row_covariance.diagonal().unsqueeze(-1) * self.column_covariance.diagonal().unsqueeze(-2)

    @property
    def covariance_matrix(self) -> Tensor:
        """V ⊗ U, [..., RC, RC]: the covariance of vec(W), columns stacked. Large; meant for small matrices."""
        U, V = self.row_covariance.to_dense(), self.column_covariance.to_dense()
        product = V[..., :, None, :, None] * U[..., None, :, None, :]
        size = self.event_shape.numel()
        return product.reshape(*self.batch_shape, size, size)

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """M + U^½ E V^½ᵀ with E standard normal [LW16, eq. 3]."""
        noise = _standard_normal(self._extended_shape(torch.Size(sample_shape)), self.loc.dtype, self.loc.device)
        return self.transform_noise(noise)

    def transform_noise(self, noise: Tensor) -> Tensor:
        """The sample that standard normal ``noise`` [..., R, C] becomes."""
        rows = self.row_covariance.sqrt_matmul(noise)
        return self.loc + self.column_covariance.sqrt_matmul(rows.mT).mT

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        R, C = self.event_shape
        rows = self.row_covariance.sqrt_solve(value - self.loc)
        whitened = self.column_covariance.sqrt_solve(rows.mT)
        mahalanobis = whitened.square().sum((-2, -1))
        logdet = C * self.row_covariance.logdet() + R * self.column_covariance.logdet()
        return -0.5 * (mahalanobis + logdet + R * C * math.log(2 * math.pi))

    def entropy(self) -> Tensor:
        R, C = self.event_shape
        logdet = C * self.row_covariance.logdet() + R * self.column_covariance.logdet()
        return 0.5 * (logdet + R * C * (1 + math.log(2 * math.pi)))


@register_kl(MatrixNormal, MatrixNormal)  # type: ignore[untyped-decorator]
def _kl_matrix_normal(q: MatrixNormal, p: MatrixNormal) -> Tensor:
    """KL(q ‖ p) in closed form for every pair of families [LW16, appendix A]."""
    if q.event_shape != p.event_shape:
        raise ValueError(f"both matrices must have one shape; got {tuple(q.event_shape)} and {tuple(p.event_shape)}")
    R, C = q.event_shape
    U0, V0, U1, V1 = q.row_covariance, q.column_covariance, p.row_covariance, p.column_covariance
    trace = U0.trace_relative_to(U1) * V0.trace_relative_to(V1)  # t_a
    rows = U1.sqrt_solve(p.loc - q.loc)
    mahalanobis = V1.sqrt_solve(rows.mT).square().sum((-2, -1))  # t_b
    logdet = C * (U1.logdet() - U0.logdet()) + R * (V1.logdet() - V0.logdet())  # t_c
    return 0.5 * (trace + mahalanobis - R * C + logdet)
