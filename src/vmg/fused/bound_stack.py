"""Diagonal layers one after the other, bound to memory: forwards, their divergences, and backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vmg.fused.bound_layer import Activation, BoundLayer, Draw, Kept

__all__ = ["BoundStack"]


class BoundStack:
    """Layers with an activation between them, bound to memory.

    Args:
        draws: of the layers, which have plans. Their tensors are read where they are now, at each pass.
        x: rows of the kind that passes will see.
        activation: without parameters, between the layers.
        kept: of each layer, from a forward pass of another stack of the same layers.
        checked: all tensors are known to fit (:func:`vmg.fused.layer_passes.fits`); otherwise the stack serves for one
            pass forwards and backwards.
    """

    def __init__(
        self,
        draws: Sequence[Draw],
        x: Tensor,
        activation: Activation | None = None,
        kept: Sequence[Kept] | None = None,
        *,
        checked: bool = False,
    ) -> None:
        self.draws, self.activation, self.checked = draws, activation, checked
        self.layers: list[BoundLayer] = []
        for k, one in enumerate(draws):
            after = None if k == len(draws) - 1 else activation
            layer = BoundLayer(one, x, after, None if kept is None else kept[k], checked=checked)
            self.layers.append(layer)
            x = layer.activated
        self.parameters = [t for one in draws for t in one.parameters]
        self.of_priors = [p for one in draws if one.kl is not None for p in one.kl.parameters]
        self._addresses = _addresses(self.parameters)

    def at(self, parameters: Sequence[Tensor | None], x: Tensor) -> BoundStack:
        """This stack after its forward pass; or one in its stead, to go backwards, if parameters were moved since then.

        Processes that share a model (FSDP2) free the memory of parameters between the passes.
        """
        if _addresses(parameters) == self._addresses:
            return self
        each = iter(parameters)
        draws = [one._replace(parameters=tuple(next(each) for _ in one.parameters)) for one in self.draws]
        return BoundStack(draws, x, self.activation, [layer.kept() for layer in self.layers])

    def forward(self, x: Tensor) -> bool:
        """Draw at x, the outputs being those of the last layer; say whether x was finite."""
        first, *others = self.layers
        finite, x = first.forward(x), first.activated
        for layer in others:
            layer.forward(x)
            x = layer.activated
        return finite

    @property
    def has_divergence(self) -> bool:
        return all(one.kl is not None for one in self.draws)

    def divergence(self) -> Tensor:
        """The divergences of all layers, summed, [*batch_shape]; each must have one."""
        first, *others = self.layers
        total = first.divergence()
        for layer in others:
            total += layer.divergence()
        return total

    def bind_gradients(
        self,
        g: Tensor,
        gradients: Sequence[Sequence[Tensor | None]],
        g_x: Tensor | None,
        g_kl: Tensor | None,
        *,
        checked: bool = False,
    ) -> Callable[[], list[list[Tensor]]]:
        """The backward pass, a function that rewrites the gradients and gives those by the parameters of each prior.

        Args:
            g: gradient by the outputs of the last layer.
            gradients: memory for those by each layer's parameters.
            g_x: memory for that by x, or None where it is not wanted.
            g_kl: gradient by the divergence, or None.
            checked: these are known to fit.
        """
        passes = []
        for k, layer in reversed(list(enumerate(self.layers))):
            own = [self.layers[k - 1].g if k else g_x, *gradients[k]]
            passes.append(layer.bind_gradients(g, own, g_kl, checked=checked))
            g = self.layers[k - 1].g

        def run() -> list[list[Tensor]]:
            return [one() for one in passes][::-1]

        return run

    def empty_gradients(self) -> list[list[Tensor | None]]:
        """Memory for the gradients by each layer's parameters.

        One piece for all of them would be no faster: C's allocator gives large pieces back to the system at each step.
        """
        make = torch.empty_like if self.checked else _without_gaps
        return [[None if t is None else make(t) for t in one.parameters] for one in self.draws]


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def _without_gaps(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype)
