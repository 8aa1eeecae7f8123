"""What pseudo-inputs leave of a layer's row covariance [LW16, eq. 8, in the space of weights]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from vmg.math.covariance import Covariance, Dense
from vmg.math.linalg import cholesky

__all__ = ["Conditioned"]


class Conditioned(Covariance):
    """U' = U − UÃᵀΣ₁₁⁻¹ÃU with Σ₁₁ = ÃUÃᵀ + σ²I: the row covariance of W ~ MN(M, U, V) given ÃW + σξ, ξ ~ MN(0, I, V).

    U'⁻¹ = U⁻¹ + ÃᵀÃ/σ² and log|U'| = log|U| + P log σ² − log|Σ₁₁|, so its traces, solves and determinant cost no more
    than P×P matrices. Only square roots form an n×n matrix.

    Args:
        covariance: U, of any family.
        inputs: Ã [..., P, n].
        damping: σ².
    """

    def __init__(self, covariance: Covariance, inputs: Tensor, damping: float) -> None:
        if inputs.shape[-1] != covariance.n:
            raise ValueError(f"inputs must have {covariance.n} columns; got {inputs.shape[-1]}")
        if not damping > 0:
            raise ValueError(f"damping must be positive; got {damping}")
        batch_shape = torch.broadcast_shapes(covariance.batch_shape, inputs.shape[:-2])
        super().__init__(covariance.n, batch_shape, covariance.dtype)
        self.covariance, self.inputs, self.damping = covariance, inputs, damping

    def __repr__(self) -> str:
        return f"Conditioned({self.covariance!r}, n_inputs={self.inputs.shape[-2]})"

    def to(self, dtype: torch.dtype) -> Conditioned:
        return Conditioned(self.covariance.to(dtype), self.inputs.to(dtype), self.damping)

    def expand(self, batch_shape: Sequence[int]) -> Conditioned:
        inputs = self.inputs.expand(*batch_shape, *self.inputs.shape[-2:])
        return Conditioned(self.covariance.expand(batch_shape), inputs, self.damping)

    @cached_property
    def _cross(self) -> Tensor:
        """ÃU [..., P, n]."""
        return self.covariance.matmul(self.inputs.mT).mT

    @cached_property
    def _root(self) -> Tensor:
        """Cholesky factor of Σ₁₁."""
        eye = torch.eye(self.inputs.shape[-2], dtype=self.inputs.dtype, device=self.inputs.device)
        return cholesky(self._cross @ self.inputs.mT + self.damping * eye, name="Σ₁₁ = ÃUÃᵀ + σ²I")

    @cached_property
    def _gain(self) -> Tensor:
        """K = Σ₁₁⁻¹ÃU [..., P, n]."""
        return torch.cholesky_solve(self._cross, self._root)

    @cached_property
    def _dense(self) -> Dense:
        return Dense(cholesky(self.to_dense(), level=self.covariance.diagonal().mean(-1), name="U'"))

    def sqrt_matmul(self, X: Tensor) -> Tensor:
        return self._dense.sqrt_matmul(X)

    def sqrt_solve(self, X: Tensor) -> Tensor:
        return self._dense.sqrt_solve(X)

    def matmul(self, X: Tensor) -> Tensor:
        before = self.covariance.matmul(X)
        return before - self._gain.mT @ (self.inputs @ before)

    def solve(self, X: Tensor) -> Tensor:
        return self.covariance.solve(X) + self.inputs.mT @ (self.inputs @ X) / self.damping

    def logdet(self) -> Tensor:
        of_points = 2 * self._root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.covariance.logdet() + self.inputs.shape[-2] * math.log(self.damping) - of_points

    def diagonal(self) -> Tensor:
        return self.covariance.diagonal() - (self._cross * self._gain).sum(-2)

    def inverse_diagonal(self) -> Tensor:
        return self.covariance.inverse_diagonal() + self.inputs.square().sum(-2) / self.damping

    def to_dense(self) -> Tensor:
        # (I − KᵀÃ) U (I − KᵀÃ)ᵀ + σ²KᵀK, a sum of squares, so that nothing cancels
        eye = torch.eye(self.n, dtype=self.inputs.dtype, device=self.inputs.device)
        left = eye - self._gain.mT @ self.inputs
        return self.covariance.gram(left) + self.damping * self._gain.mT @ self._gain

    def trace_after(self, other: Covariance) -> Tensor:
        return self.covariance.trace_after(other) - (other.solve(self._cross.mT) * self._gain.mT).sum((-2, -1))
