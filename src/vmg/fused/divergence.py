"""The KL divergence of a diagonal layer, of its weights and its pseudo-data, in one compiled operation.

:mod:`vmg.priors` states it. :mod:`vmg.fused.stack` computes it together with the layer's draw, so that each parameter
has one gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from vmg.fused import library

__all__ = ["DiagonalKL"]


@dataclass(eq=False)
class DiagonalKL:
    """The divergence of one layer: :meth:`value`, and then :meth:`add_gradients` at the same tensors.

    The tensors are M, log σ_r, log σ_c and the two logarithms of √α, None where there is none.
    """

    plain: Callable[..., Tensor]  # of the tensors: the same divergence by autograd
    coefficients: tuple[float, ...]  # of the prior: vmg.priors.Coefficients
    sizes: tuple[int, int, int]  # P, R and C of the layer
    factored: bool  # whether √α of the pseudo-data is a product of factors
    at_bound: float | Tensor  # −KL of an entry of the pseudo-data at the bound of √α, up to the constant that it sets

    def value(self, native: Any, tensors: Sequence[Tensor | None]) -> Tensor:
        """The divergence, [*batch_shape]."""
        tensors, log_row = library.packed(tensors), tensors[1]
        assert log_row is not None
        (P, R, C), lead, at_bound = self.sizes, log_row.shape[:-1], self.at_bound
        offset = P * (R + C) * at_bound.to(log_row) if isinstance(at_bound, Tensor) else None  # one for each replica
        n, self._shapes = _layout(lead, R, C, P, self.factored)
        self._scalars = (n, R, C, P, self.factored, *self.coefficients, 0.0 if offset is not None else at_bound)
        library.require(_NAMES, tensors, self._shapes, log_row.dtype)
        self._native = native
        self._results = log_row.new_empty((4, *lead))  # the divergence; the precision, tr U and tr V, for its gradient
        native.divergence(self._record(tensors, (None,) * 6))
        return self._results[0].clone() if offset is None else self._results[0] + offset

    def add_gradients(self, tensors: Sequence[Tensor | None], g: Tensor, to: Sequence[Tensor | None]) -> None:
        """Add the gradients by the tensors to what stands in ``to``; ``g`` is the gradient of the value."""
        tensors, g, dtype = library.packed(tensors), g.contiguous(), self._results.dtype
        library.require(("g",), (g,), (self._results.shape[1:],), dtype)
        library.require(_NAMES, tensors, self._shapes, dtype)
        library.require(_NAMES_OF_GRADIENTS, to, self._shapes, dtype)
        self._native.add_divergence_gradient(self._record(tensors, (g, *to)))

    def _record(self, tensors: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> bytes:
        """The arguments of the kernels; the gradients are that of the value, and then those by the tensors."""
        results = self._results
        rows = [row.data_ptr() for row in results]
        before, after = ([0 if t is None else t.data_ptr() for t in part] for part in (tensors, gradients))
        return library.DIVERGENCE.pack(*self._scalars, *before, *rows, *after)


@lru_cache(maxsize=256)
def _layout(lead: tuple[int, ...], R: int, C: int, P: int, factored: bool) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The number of replicas, and the shapes that the tensors must have."""
    own = ((R, C), (R,), (C,), (R + C if factored else 2,), (P,))
    return math.prod(lead), tuple((*lead, *shape) for shape in own)


_NAMES = ("M", "log_row", "log_column", "log_noise", "log_point_noise")
_NAMES_OF_GRADIENTS = tuple(f"the gradient of {name}" for name in _NAMES)
