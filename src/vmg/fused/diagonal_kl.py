"""The KL divergence of a whole diagonal layer, of its weights and its pseudo-data, in one compiled operation.

:mod:`vmg.priors` and :func:`vmg.math.log_uniform.pseudo_data_kl` state it. A layer's draw takes it along
(:mod:`vmg.fused.diagonal_draw`), so that each parameter has one gradient; :func:`compiled_kl` takes it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.math.log_uniform import PseudoNoise, log_uniform_at_bound

__all__ = ["OF_ONE", "Coefficients", "DiagonalKL", "LearnedPrecisions", "compiled_kl"]


class Coefficients(NamedTuple):
    """A prior whose KL divergence from a diagonal posterior depends on E = E‖W‖² and the log-determinant only.

    KL = ½τE − ½ log|V ⊗ U| + constant, with τ = ``precision``; or, where ``concentration`` a > 0, with the conjugate
    posterior of both precisions, τ = (a/b)² and 2a(log b + rate/b) added, b the root of b² − rate·b − ½aE = 0.
    """

    precision: float
    concentration: float
    rate: float
    constant: float


OF_ONE = Coefficients(1.0, 0.0, 0.0, 0.0)
"""A precision of one, which is what the kernels take where the precisions' posteriors are learned."""


class LearnedPrecisions(Protocol):
    """A prior whose precisions have posteriors of their own, with parameters that are learned."""

    def kl_of_energy(self, energy: Tensor, size: int) -> Tensor:
        """The divergence, all but its −½ log|V ⊗ U|, at E‖W‖² = ``energy``."""

    def differentiate(self, energy: Tensor, size: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Twice its slope in ``energy``, and its gradients by the prior's parameters."""


class DiagonalKL:
    """The divergence of a layer, at one point: :meth:`value`, and then :meth:`differentiate` as often as is wanted.

    The tensors that it depends on are M, log σ_r, log σ_c and the two logarithms of √α, None where there is none; and
    ``parameters``, those of a prior that is learned.

    Args:
        plain: takes the tensors and gives the same divergence by autograd.
        coefficients: of the prior; :data:`OF_ONE` for one that is learned.
        sizes: R and C of the layer.
        pseudo: noise of its pseudo-data.
        learned: the prior, where its precisions' posteriors are learned, with its parameters.
    """

    def __init__(
        self,
        plain: Callable[..., Tensor],
        coefficients: Coefficients,
        sizes: tuple[int, int],
        pseudo: PseudoNoise | None,
        learned: LearnedPrecisions | None = None,
        parameters: tuple[Tensor, ...] = (),
    ) -> None:
        self.plain, self.parameters = plain, parameters
        self._coefficients, self._sizes, self._pseudo, self._learned = coefficients, sizes, pseudo, learned

    def value(self, native: Any, tensors: Sequence[Tensor | None]) -> Tensor:
        """The divergence, [*batch_shape]."""
        log_row = tensors[1]
        assert log_row is not None
        R, C = self._sizes
        pseudo, lead = self._pseudo, log_row.shape[:-1]
        n_points, factored, at_bound, offset = 0, False, 0.0, None
        if pseudo is not None:
            n_points, factored = pseudo.n_points, pseudo.log_point_noise is not None
            if isinstance(pseudo.max_noise, Tensor):
                offset = n_points * (R + C) * log_uniform_at_bound(pseudo.max_noise.to(log_row))
            else:
                at_bound = log_uniform_at_bound(pseudo.max_noise)
        self._scalars = (lead.numel(), R, C, n_points, factored, *self._coefficients, at_bound)
        self._shapes = tuple(
            (*lead, *shape) for shape in ((R, C), (R,), (C,), (R + C if factored else 2,), (n_points,))
        )
        _require("", self._shapes, tensors, log_row.dtype)
        self._results = log_row.new_empty(4, *lead)  # the divergence; the precision, tr U and tr V, for its gradient
        native.divergence(self._record(tensors, None, (None,) * 5))
        found = self._results[0] if offset is None else self._results[0] + offset
        if self._learned is None:
            return found
        energy = self._results[2] * self._results[3]
        if tensors[0] is not None:
            energy = energy + tensors[0].square().sum((-2, -1))
        self._energy = energy
        return found + self._learned.kl_of_energy(energy, R * C) - 0.5 * energy

    def differentiate(
        self, native: Any, tensors: Sequence[Tensor | None], g: Tensor, gradients: Sequence[Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Write the gradients by the tensors, from that of the divergence, ``g``; those by the prior's parameters."""
        library.require("g", g, self._shapes[1][:-1], self._results.dtype)
        _require("the gradient of ", self._shapes, gradients, self._results.dtype)
        own: tuple[Tensor, ...] = ()
        if self._learned is not None:
            precision, own = self._learned.differentiate(self._energy, self._sizes[0] * self._sizes[1])
            self._results[1] = precision  # which the kernels' gradient reads there
            own = tuple(gradient * g.unsqueeze(-1) for gradient in own)
        native.divergence_backward(self._record(tensors, g, gradients))
        return own

    def _record(self, tensors: Sequence[Tensor | None], g: Tensor | None, gradients: Sequence[Tensor | None]) -> bytes:
        results, address = self._results, library.address
        first, step = results.data_ptr(), results.element_size() * self._scalars[0]
        rows = range(first, first + 4 * step, step)
        return library.DIVERGENCE.pack(
            *self._scalars, *map(address, tensors), *rows, address(g), *map(address, gradients)
        )


def _require(kind: str, shapes: Sequence[tuple[int, ...]], tensors: Sequence[Tensor | None], dtype: Any) -> None:
    """Refuse what the kernels would misread."""
    for name, tensor, shape in zip(_NAMES, tensors, shapes, strict=True):
        if tensor is not None:
            library.require(kind + name, tensor, shape, dtype)


_NAMES = ("M", "log_row", "log_column", "log_noise", "log_point_noise")


class _CompiledKL(Function):
    """:class:`DiagonalKL` as one node."""

    @staticmethod
    def forward(ctx: Any, kl: DiagonalKL, native: Any, *tensors: Tensor | None) -> Tensor:
        ctx.kl, ctx.native = kl, native
        ctx.save_for_backward(*tensors)
        return kl.value(native, library.packed(tensors[:5]))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            wanted = [t for t, need in zip(inputs, needed[2:], strict=True) if need]
            kl = ctx.kl.plain(*inputs[:5])
            found = iter(torch.autograd.grad(kl, wanted, g, create_graph=True, materialize_grads=True))
            return tuple(next(found) if need else None for need in needed)
        tensors = library.packed(inputs[:5])
        gradients = tuple(None if t is None else torch.empty_like(t) for t in tensors)
        own = ctx.kl.differentiate(ctx.native, tensors, g.contiguous(), gradients)
        return (None, None, *gradients, *own)


def compiled_kl(kl: DiagonalKL, tensors: Sequence[Tensor | None]) -> Tensor | None:
    """KL of a diagonal layer [*batch_shape]; None where there are no kernels for these tensors."""
    native = library.native(*tensors)
    return None if native is None else _CompiledKL.apply(kl, native, *tensors, *kl.parameters)
