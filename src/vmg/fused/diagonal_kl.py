"""The KL divergence of a whole diagonal layer, of its weights and its pseudo-data, in one compiled operation.

:mod:`vmg.priors` and :func:`vmg.math.log_uniform.pseudo_data_kl` state it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.math.log_uniform import PseudoNoise, log_uniform_at_bound

__all__ = ["BoundKL", "BoundLearnedKL", "Coefficients", "LearnedPrecisions", "compiled_kl", "kl_scalars"]


class Coefficients(NamedTuple):
    """A prior whose KL divergence from a diagonal posterior depends on E = E‖W‖² and the log-determinant only.

    KL = ½τE − ½ log|V ⊗ U| + constant, with τ = ``precision``; or, where ``concentration`` a > 0, with the conjugate
    posterior of both precisions, τ = (a/b)² and 2a(log b + rate/b) added, b the root of b² − rate·b − ½aE = 0.
    """

    precision: float
    concentration: float
    rate: float
    constant: float


def kl_scalars(
    coefficients: Coefficients, log_row: Tensor, log_column: Tensor, pseudo: PseudoNoise | None
) -> tuple[tuple[Any, ...], Tensor | None]:
    """What the kernels need besides tensors, and a constant for each replica."""
    batch_shape, R, C = log_row.shape[:-1], log_row.shape[-1], log_column.shape[-1]
    n_points, factored, at_bound, offset = 0, False, 0.0, None
    if pseudo is not None:
        n_points, factored = pseudo.n_points, pseudo.log_point_noise is not None
        if isinstance(pseudo.max_noise, Tensor):
            offset = n_points * (R + C) * log_uniform_at_bound(pseudo.max_noise.to(log_row))
        else:
            at_bound = log_uniform_at_bound(pseudo.max_noise)
    return (batch_shape.numel(), R, C, n_points, factored, *coefficients, at_bound), offset


class BoundKL:
    """The divergence bound to memory: :meth:`value` and then :meth:`differentiate` read the tensors where they are.

    ``tensors`` are M, log σ_r, log σ_c and the two logarithms of √α, None where there is none. :meth:`differentiate`
    reads ``g`` and rewrites ``gradients``, which belong to them.
    """

    def __init__(
        self,
        native: Any,
        scalars: tuple[Any, ...],
        offset: Tensor | None,
        tensors: Sequence[Tensor | None],
        g: Tensor | None = None,
        gradients: Sequence[Tensor | None] = (None,) * 5,
        results: Tensor | None = None,
    ) -> None:
        log_row = tensors[1]
        assert log_row is not None
        lead = log_row.shape[:-1]
        if results is None:  # a first use; the divergence, and the precision, tr U and tr V, which its gradient needs
            results = log_row.new_empty(4, *lead)
            _require("", scalars, tensors, log_row)
        if g is not None:
            library.require("g", g, lead, log_row.dtype)
            library.require("results", results, (4, *lead), log_row.dtype)
            _require("the gradient of ", scalars, gradients, log_row)
        self._native, self._offset, self.results = native, offset, results
        self._memory = tensors, g, gradients  # the record has addresses only
        first, step = results.data_ptr(), results.element_size() * (results.numel() // 4)
        before, after = ([library.address(t) for t in part] for part in (tensors, (g, *gradients)))
        self._record = library.DIVERGENCE.pack(*scalars, *before, *range(first, first + 4 * step, step), *after)

    def value(self) -> Tensor:
        """The divergence, [*batch_shape]."""
        self._native.divergence(self._record)
        return self.results[0] if self._offset is None else self.results[0] + self._offset

    def differentiate(self) -> None:
        """Write the gradients."""
        self._native.divergence_backward(self._record)


def _require(kind: str, scalars: tuple[Any, ...], tensors: Sequence[Tensor | None], log_row: Tensor) -> None:
    """Refuse what the kernels would misread."""
    lead, (_, R, C, P, factored, *_) = log_row.shape[:-1], scalars
    own = ((R, C), (R,), (C,), (R + C if factored else 2,), (P,))
    for name, tensor, shape in zip(_NAMES, tensors, own, strict=True):
        if tensor is not None:
            library.require(kind + name, tensor, (*lead, *shape), log_row.dtype)


_NAMES = ("M", "log_row", "log_column", "log_noise", "log_point_noise")


class LearnedPrecisions(Protocol):
    """A prior whose precisions have posteriors of their own, with parameters that are learned."""

    def kl_of_energy(self, energy: Tensor, size: int) -> Tensor:
        """The divergence, all but its −½ log|V ⊗ U|, at E‖W‖² = ``energy``."""

    def differentiate(self, energy: Tensor, size: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Twice its slope in ``energy``, and its gradients by the prior's parameters."""


class BoundLearnedKL(BoundKL):
    """The same where the precisions' posteriors are learned.

    The kernels take the divergence with a precision of one. What it really is depends on E‖W‖² alone.
    """

    COEFFICIENTS = Coefficients(1.0, 0.0, 0.0, 0.0)

    def __init__(
        self,
        prior: LearnedPrecisions,
        own_gradients: Sequence[Tensor],
        native: Any,
        scalars: tuple[Any, ...],
        offset: Tensor | None,
        tensors: Sequence[Tensor | None],
        g: Tensor,
        gradients: Sequence[Tensor | None],
    ) -> None:
        super().__init__(native, scalars, offset, tensors, g, gradients)
        self._prior, self._own_gradients = prior, own_gradients
        self._M, self._g, self._size = tensors[0], g, scalars[1] * scalars[2]

    def value(self) -> Tensor:
        of_one = super().value()
        energy = self.results[2] * self.results[3]
        if self._M is not None:
            energy = energy + self._M.square().sum((-2, -1))
        self._energy = energy
        return of_one + self._prior.kl_of_energy(energy, self._size) - 0.5 * energy

    def differentiate(self) -> None:
        precision, found = self._prior.differentiate(self._energy, self._size)
        self.results[1] = precision  # which the kernels' gradient reads there
        for target, gradient in zip(self._own_gradients, found, strict=True):
            torch.mul(gradient, self._g.unsqueeze(-1), out=target)
        super().differentiate()


class _CompiledKL(Function):
    """:class:`BoundKL` as one node; ``plain`` states the same in PyTorch, for gradients of gradients."""

    @staticmethod
    def forward(
        ctx: Any, plain: Any, native: Any, scalars: tuple[Any, ...], offset: Any, *tensors: Tensor | None
    ) -> Tensor:
        divergence = BoundKL(native, scalars, offset, library.packed(tensors))
        ctx.plain, ctx.native, ctx.scalars = plain, native, scalars
        ctx.save_for_backward(*tensors, divergence.results)
        return divergence.value()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, results = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            wanted = [t for t, need in zip(inputs, needed[4:], strict=True) if need]
            kl = ctx.plain(*inputs)
            found = iter(torch.autograd.grad(kl, wanted, g, create_graph=True, materialize_grads=True))
            return tuple(next(found) if need else None for need in needed)
        tensors = library.packed(inputs)
        gradients = tuple(None if t is None else torch.empty_like(t) for t in tensors)
        BoundKL(ctx.native, ctx.scalars, None, tensors, g.contiguous(), gradients, results).differentiate()
        return (None, None, None, None, *gradients)


def compiled_kl(
    plain: Callable[..., Tensor],
    coefficients: Coefficients,
    M: Tensor | None,
    log_row: Tensor,
    log_column: Tensor,
    pseudo: PseudoNoise | None,
) -> Tensor | None:
    """KL of a diagonal layer [*batch_shape]; None where there are no kernels for these tensors.

    ``plain`` takes M, log σ_r, log σ_c, ``log_noise`` and ``log_point_noise`` and gives the same by autograd.
    """
    noises = (None, None) if pseudo is None else (pseudo.log_noise, pseudo.log_point_noise)
    native = library.native(M, log_row, log_column, *noises)
    if native is None:
        return None
    scalars, offset = kl_scalars(coefficients, log_row, log_column, pseudo)
    return _CompiledKL.apply(plain, native, scalars, offset, M, log_row, log_column, *noises)
