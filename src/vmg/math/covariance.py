"""Covariance families for the rows and the columns of a random matrix [LW16, §2.2 and footnote 1].

Every family is a square-root factor ``L`` with ``C = L Lᵀ`` and knows how to apply it, solve with it and take traces
without forming anything larger than it must: a diagonal stays a vector, diagonal plus rank one stays two vectors.
Leading dimensions are batch dimensions throughout.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vmg.math.linalg import cholesky, cholesky_logdet

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Conditioned", "Covariance", "Dense", "Diagonal", "RankOne", "damped_root"]


def _require_positive(name: str, value: Tensor) -> None:
    if not (torch.isfinite(value) & (value > 0)).all():
        raise ValueError(f"{name} must be positive and finite; its smallest entry is {value.min().item():g}")


class Covariance(ABC):
    """A positive definite matrix C = L Lᵀ, kept in the form in which it is cheap.

    ``n`` is its number of rows, ``batch_shape`` the shape of its leading dimensions, ``dtype`` that of its parameters.
    """

    def __init__(self, n: int, batch_shape: torch.Size, dtype: torch.dtype) -> None:
        self.n = n
        self.batch_shape = batch_shape
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, batch_shape={tuple(self.batch_shape)})"

    @abstractmethod
    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Self:
        """The same of changed parameters; ``change`` gets each with the number of its dimensions after the batch's."""

    def to(self, dtype: torch.dtype) -> Self:
        """The same covariance in another precision."""
        return self._map(lambda value, n_dims: value.to(dtype))

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """The same covariance seen with more batch dimensions."""
        return self._map(lambda value, n_dims: value.expand(*batch_shape, *value.shape[-n_dims:]))

    @abstractmethod
    def sqrt_matmul(self, X: Tensor) -> Tensor:
        """L X for X [..., n, k]."""

    @abstractmethod
    def sqrt_solve(self, X: Tensor) -> Tensor:
        """L⁻¹ X for X [..., n, k]; whitens samples."""

    @abstractmethod
    def matmul(self, X: Tensor) -> Tensor:
        """C X for X [..., n, k]."""

    @abstractmethod
    def solve(self, X: Tensor) -> Tensor:
        """C⁻¹ X for X [..., n, k]."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """log |C|, [...]."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of C, [..., n]."""

    @abstractmethod
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹, [..., n]."""

    @abstractmethod
    def to_dense(self) -> Tensor:
        """C as a matrix, [..., n, n]."""

    @abstractmethod
    def trace_relative_to(self, other: Covariance) -> Tensor:
        """tr(other⁻¹ C), through ``other``'s own solves: the trace term of a Gaussian KL divergence."""

    def trace(self) -> Tensor:
        """tr C, [...]."""
        return self.diagonal().sum(-1)

    def gram(self, X1: Tensor, X2: Tensor | None = None) -> Tensor:
        """X₁ C X₂ᵀ for rows X₁ [..., m, n] and X₂ [..., k, n]; the kernel matrix of a linear layer."""
        return X1 @ self.matmul((X1 if X2 is None else X2).mT)

    def quadratic(self, X: Tensor) -> Tensor:
        """x C xᵀ for each row x of X [..., m, n]; the diagonal of :meth:`gram` without forming it."""
        return self.matmul(X.mT).mul(X.mT).sum(-2)


class Diagonal(Covariance):
    """C = diag(scale²); the paper's default for rows and columns [LW16, §2.2]."""

    def __init__(self, scale: Tensor, *, validate: bool = True) -> None:
        if validate:
            _require_positive("scale", scale)
        super().__init__(scale.shape[-1], scale.shape[:-1], scale.dtype)
        self.scale = scale
        self._log_scale: Tensor | None = None

    @classmethod
    def from_log_scale(cls, log_scale: Tensor) -> Diagonal:
        """The member with scale exp(log_scale), for any real log_scale."""
        diagonal = cls(log_scale.exp(), validate=False)
        diagonal._log_scale = log_scale
        return diagonal

    @property
    def log_scale(self) -> Tensor:
        """log of the scale, exact where that is how it was given."""
        return self.scale.log() if self._log_scale is None else self._log_scale

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Diagonal:
        if self._log_scale is not None:
            return Diagonal.from_log_scale(change(self._log_scale, 1))
        return Diagonal(change(self.scale, 1), validate=False)

    def sqrt_matmul(self, X: Tensor) -> Tensor:
        return self.scale.unsqueeze(-1) * X

    def sqrt_solve(self, X: Tensor) -> Tensor:
        return X / self.scale.unsqueeze(-1)

    def matmul(self, X: Tensor) -> Tensor:
        return self.scale.square().unsqueeze(-1) * X

    def solve(self, X: Tensor) -> Tensor:
        return X / self.scale.square().unsqueeze(-1)

    def logdet(self) -> Tensor:
        return 2 * self.log_scale.sum(-1)

    def diagonal(self) -> Tensor:
        return self.scale.square()

    def inverse_diagonal(self) -> Tensor:
        return self.scale.square().reciprocal()

    def to_dense(self) -> Tensor:
        return torch.diag_embed(self.scale.square())

    def trace_relative_to(self, other: Covariance) -> Tensor:
        return (other.inverse_diagonal() * self.scale.square()).sum(-1)

    def quadratic(self, X: Tensor) -> Tensor:
        return (X.square() @ self.scale.square().unsqueeze(-1)).squeeze(-1)


class RankOne(Covariance):
    """C = (D + u uᵀ)², D = diag(scale): a square root that is diagonal plus rank one [LW16, footnote 1].

    The symmetric square root ``L = D + u uᵀ`` is positive definite for any ``u`` since D is. Its inverse follows from
    Sherman and Morrison's formula, its determinant from the matrix determinant lemma.
    """

    def __init__(self, scale: Tensor, vector: Tensor, *, validate: bool = True) -> None:
        if scale.shape[-1] != vector.shape[-1]:
            raise ValueError(
                f"scale and vector must have the same length; got {scale.shape[-1]} and {vector.shape[-1]}"
            )
        if validate:
            _require_positive("scale", scale)
        self.scale, self.vector = torch.broadcast_tensors(scale, vector)
        super().__init__(self.scale.shape[-1], self.scale.shape[:-1], self.scale.dtype)

    @property
    def _capacity(self) -> Tensor:
        """1 + uᵀ D⁻¹ u, [..., 1]."""
        return 1 + (self.vector.square() / self.scale).sum(-1, keepdim=True)

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> RankOne:
        return RankOne(change(self.scale, 1), change(self.vector, 1), validate=False)

    def sqrt_matmul(self, X: Tensor) -> Tensor:
        u = self.vector.unsqueeze(-1)  # [..., n, 1]
        return self.scale.unsqueeze(-1) * X + u * (u.mT @ X)

    def sqrt_solve(self, X: Tensor) -> Tensor:
        w = (self.vector / self.scale).unsqueeze(-1)  # D⁻¹u
        return X / self.scale.unsqueeze(-1) - w * (w.mT @ X) / self._capacity.unsqueeze(-1)

    def matmul(self, X: Tensor) -> Tensor:
        return self.sqrt_matmul(self.sqrt_matmul(X))

    def solve(self, X: Tensor) -> Tensor:
        return self.sqrt_solve(self.sqrt_solve(X))

    def logdet(self) -> Tensor:
        return 2 * (self.scale.log().sum(-1) + self._capacity.squeeze(-1).log())

    def diagonal(self) -> Tensor:
        # row i of L is d_i e_i + u_i u, so its squared norm is d_i² + 2 d_i u_i² + u_i² uᵀu
        u2 = self.vector.square()
        return self.scale.square() + u2 * (2 * self.scale + u2.sum(-1, keepdim=True))

    def inverse_diagonal(self) -> Tensor:
        # the same for L⁻¹ = D⁻¹ − w wᵀ / c, w = D⁻¹u
        w2, c = (self.vector / self.scale).square(), self._capacity
        return self.scale.square().reciprocal() + w2 / c * (w2.sum(-1, keepdim=True) / c - 2 / self.scale)

    def to_dense(self) -> Tensor:
        root = torch.diag_embed(self.scale) + self.vector.unsqueeze(-1) * self.vector.unsqueeze(-2)
        return root @ root

    def trace_relative_to(self, other: Covariance) -> Tensor:
        # C = D² + (Du)uᵀ + u(Du)ᵀ + (uᵀu) u uᵀ
        u = self.vector.unsqueeze(-1)
        solved = other.solve(u)  # [..., n, 1]
        diagonal = (other.inverse_diagonal() * self.scale.square()).sum(-1)
        cross = 2 * (self.scale.unsqueeze(-1) * u * solved).sum((-2, -1))
        outer = self.vector.square().sum(-1) * (u * solved).sum((-2, -1))
        return diagonal + cross + outer


class Dense(Covariance):
    """C = L Lᵀ for a lower-triangular L, the Cholesky factor."""

    def __init__(self, scale_tril: Tensor, *, validate: bool = True) -> None:
        if scale_tril.dim() < 2 or scale_tril.shape[-1] != scale_tril.shape[-2]:
            raise ValueError(f"scale_tril must be square matrices; got shape {tuple(scale_tril.shape)}")
        if validate:
            _require_positive("the diagonal of scale_tril", scale_tril.diagonal(dim1=-2, dim2=-1))
        super().__init__(scale_tril.shape[-1], scale_tril.shape[:-2], scale_tril.dtype)
        self.scale_tril = scale_tril.tril()

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Dense:
        return Dense(change(self.scale_tril, 2), validate=False)

    def sqrt_matmul(self, X: Tensor) -> Tensor:
        return self.scale_tril @ X

    def sqrt_solve(self, X: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.scale_tril, X, upper=False)

    def matmul(self, X: Tensor) -> Tensor:
        return self.scale_tril @ (self.scale_tril.mT @ X)

    def solve(self, X: Tensor) -> Tensor:
        return torch.cholesky_solve(X, self.scale_tril)

    def logdet(self) -> Tensor:
        return cholesky_logdet(self.scale_tril)

    def diagonal(self) -> Tensor:
        return self.scale_tril.square().sum(-1)

    def inverse_diagonal(self) -> Tensor:
        eye = torch.eye(self.n, dtype=self.dtype, device=self.scale_tril.device)
        return self.sqrt_solve(eye).square().sum(-2)

    def to_dense(self) -> Tensor:
        return self.scale_tril @ self.scale_tril.mT

    def trace_relative_to(self, other: Covariance) -> Tensor:
        return other.sqrt_solve(self.scale_tril).square().sum((-2, -1))

    def gram(self, X1: Tensor, X2: Tensor | None = None) -> Tensor:
        left = X1 @ self.scale_tril
        return left @ (left if X2 is None else X2 @ self.scale_tril).mT

    def quadratic(self, X: Tensor) -> Tensor:
        return (X @ self.scale_tril).square().sum(-1)


def damped_root(kernel: Tensor, damping: float) -> Tensor:
    """Cholesky factor of Σ₁₁ = ÃUÃᵀ + σ²I from ÃUÃᵀ [..., P, P]."""
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    return cholesky(kernel + damping * eye, name="Σ₁₁ = ÃUÃᵀ + σ²I")


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

    def _map(self, change: Callable[[Tensor, int], Tensor]) -> Conditioned:
        return Conditioned(self.covariance._map(change), change(self.inputs, 2), self.damping)

    @cached_property
    def _cross(self) -> Tensor:
        """ÃU [..., P, n]."""
        return self.covariance.matmul(self.inputs.mT).mT

    @cached_property
    def _root(self) -> Tensor:
        """Cholesky factor of Σ₁₁."""
        return damped_root(self._cross @ self.inputs.mT, self.damping)

    @cached_property
    def _gain(self) -> Tensor:
        """K = Σ₁₁⁻¹ÃU [..., P, n]."""
        return torch.cholesky_solve(self._cross, self._root)

    @cached_property
    def _dense(self) -> Dense:
        return Dense(cholesky(self.to_dense(), name="U'"))

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
        of_points = self.inputs.shape[-2] * math.log(self.damping) - cholesky_logdet(self._root)
        return self.covariance.logdet() + of_points

    def diagonal(self) -> Tensor:
        return self.covariance.diagonal() - (self._cross * self._gain).sum(-2)

    def inverse_diagonal(self) -> Tensor:
        return self.covariance.inverse_diagonal() + self.inputs.square().sum(-2) / self.damping

    def to_dense(self) -> Tensor:
        # (I − KᵀÃ) U (I − KᵀÃ)ᵀ + σ²KᵀK, a sum of squares, so that nothing cancels
        eye = torch.eye(self.n, dtype=self.inputs.dtype, device=self.inputs.device)
        left = eye - self._gain.mT @ self.inputs
        return self.covariance.gram(left) + self.damping * self._gain.mT @ self._gain

    def trace_relative_to(self, other: Covariance) -> Tensor:
        return self.covariance.trace_relative_to(other) - (other.solve(self._cross.mT) * self._gain.mT).sum((-2, -1))
