"""The KL divergence of a whole diagonal layer, of its weights and its pseudo-data, in one compiled operation.

:mod:`vmg.priors` and :func:`vmg.math.preactivations.pseudo_data_kl` state it. A layer's draw takes it along
(:mod:`vmg.fused.stack`), so that each parameter has one gradient; :func:`compiled_kl` takes it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from vmg.fused import library
from vmg.math.preactivations import PseudoNoise, log_uniform_at_bound

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
    """The divergence of a layer: :meth:`bind` and :meth:`value`, and then :meth:`add_gradients`.

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

    def bind(self, native: Any, tensors: Sequence[Tensor | None], *, checked: bool = False) -> DiagonalKL:
        """Take the tensors' addresses, at which :meth:`value` reads them, as often as it is called.

        ``checked`` says that the tensors are known to have the layer's shapes, one type, and no gaps.
        """
        log_row = tensors[1]
        assert log_row is not None
        (R, C), pseudo, lead = self._sizes, self._pseudo, log_row.shape[:-1]
        n_points, factored, at_bound, self._offset = 0, False, 0.0, None
        if pseudo is not None:
            n_points, factored = pseudo.n_points, pseudo.log_point_noise is not None
            if isinstance(pseudo.max_noise, Tensor):
                self._offset = n_points * (R + C) * log_uniform_at_bound(pseudo.max_noise.to(log_row))
            else:
                at_bound = log_uniform_at_bound(pseudo.max_noise)
        n, self._shapes = _layout(lead, R, C, n_points, factored)
        self._scalars = (n, R, C, n_points, factored, *self._coefficients, at_bound)
        if not checked:
            tensors = library.packed(tensors)
            _require("", self._shapes, tensors, log_row.dtype)
        self._native, self._tensors = native, tensors
        self._results = log_row.new_empty((4, *lead))  # the divergence; the precision, tr U and tr V, for its gradient
        self._bound_operands = self._operands(tensors)
        self._bound = _record(self._bound_operands, (None,) * 6)
        return self

    def value(self) -> Tensor:
        """The divergence, [*batch_shape], where :meth:`bind` has taken the tensors; in memory of its own."""
        self._native.divergence(self._bound)
        found = self._results[0].clone() if self._offset is None else self._results[0] + self._offset
        if self._learned is None:
            return found
        energy, M = self._results[2] * self._results[3], self._tensors[0]
        if M is not None:
            energy = energy + M.square().sum((-2, -1))
        self._energy = energy
        return found + self._learned.kl_of_energy(energy, self._sizes[0] * self._sizes[1]) - 0.5 * energy

    def add_gradients(self, tensors: Sequence[Tensor | None], g: Tensor, to: Sequence[Tensor | None]) -> list[Tensor]:
        """Add the gradients by the tensors to what stands in ``to``; give those by the prior's parameters.

        ``g`` is the gradient of the value.
        """
        return self.bind_gradients(tensors, g.contiguous(), to)()

    def bind_gradients(
        self, tensors: Sequence[Tensor | None], g: Tensor, to: Sequence[Tensor | None], *, checked: bool = False
    ) -> Callable[[], list[Tensor]]:
        """The same as a function that reads ``g`` and adds to the same memory as often as it is called.

        ``checked`` says that the tensors are those bound, and that ``g`` and ``to`` are known to fit.
        """
        operands = self._bound_operands
        if not checked:
            library.require("g", g, self._results.shape[1:], self._results.dtype)
            tensors = library.packed(tensors)
            _require("the gradient of ", self._shapes, to, self._results.dtype)
            operands = self._operands(tensors)
        memory = tensors, to  # the record has addresses only
        return partial(self._add_gradients, _record(operands, (g, *to)), g, memory)

    def _add_gradients(self, record: bytes, g: Tensor, memory: object) -> list[Tensor]:
        own: list[Tensor] = []
        if self._learned is not None:
            precision, by_parameters = self._learned.differentiate(self._energy, self._sizes[0] * self._sizes[1])
            self._results[1] = precision  # which the kernels' gradient reads there
            own = [gradient * g.unsqueeze(-1) for gradient in by_parameters]
        self._native.add_divergence_gradient(record)
        return own

    def _operands(self, tensors: Sequence[Tensor | None]) -> tuple[float, ...]:
        """Numbers and addresses with which all records begin."""
        results = self._results
        first, step = results.data_ptr(), results.element_size() * self._scalars[0]
        rows = range(first, first + 4 * step, step)
        return *self._scalars, *[0 if t is None else t.data_ptr() for t in tensors], *rows


def _record(operands: tuple[float, ...], gradients: Sequence[Tensor | None]) -> bytes:
    """The arguments of the kernels; the gradients are that of the value, and then those by the tensors."""
    return library.DIVERGENCE.pack(*operands, *[0 if t is None else t.data_ptr() for t in gradients])


@lru_cache(maxsize=256)
def _layout(
    lead: tuple[int, ...], R: int, C: int, n_points: int, factored: bool
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """The number of replicas, and the shapes that the tensors must have."""
    own = ((R, C), (R,), (C,), (R + C if factored else 2,), (n_points,))
    return math.prod(lead), tuple((*lead, *shape) for shape in own)


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
        ctx.kl = kl
        ctx.save_for_backward(*tensors)
        return kl.bind(native, tensors[:5]).value()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            wanted = [t for t, need in zip(inputs, needed[2:], strict=True) if need]
            kl = ctx.kl.plain(*inputs[:5])
            found = iter(torch.autograd.grad(kl, wanted, g, create_graph=True, materialize_grads=True))
            return tuple(next(found) if need else None for need in needed)
        gradients = [None if t is None else torch.zeros(t.shape, dtype=t.dtype) for t in inputs[:5]]
        own = ctx.kl.add_gradients(inputs[:5], g, gradients)
        return (None, None, *gradients, *own)


def compiled_kl(kl: DiagonalKL, tensors: Sequence[Tensor | None]) -> Tensor | None:
    """KL of a diagonal layer [*batch_shape]; None where there are no kernels for these tensors."""
    native = library.native(*tensors)
    return None if native is None else _CompiledKL.apply(kl, native, *tensors, *kl.parameters)
