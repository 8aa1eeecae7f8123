"""Several networks of one kind in one module, trained in one step: an ensemble for hardly more than one network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vmg.nn.bayesian import BayesianModule
from vmg.nn.member_steps import forms_of, steps_of

__all__ = ["Replicas", "replicate"]


class Replicas(nn.Module):
    """E networks of the same structure, each with weights of its own, as one model.

    All trained weights are one parameter ``weights`` [E, n]. A step of a small network is mostly the work of calling:
    of layers, of autograd, of the optimiser for each tensor. Here each is called once for all members.
    Linear layers, convolutions, layer norms, activations, pooling and dropout of an ``nn.Sequential`` are such calls.
    Other modules are called member by member, so any model is right; rows are dimension 0 of inputs and of the output.

    Parameters
    ----------
    models : sequence of nn.Module
        Models that differ in their tensors only, each a start of its own; they are copied. :func:`replicate` makes
        them from one. Frozen parameters stay frozen.

    Examples
    --------
    >>> together = vmg.nn.replicate(model, 4)                          # doctest: +SKIP
    >>> f = together(x, seen_by=2)                                     # doctest: +SKIP
    >>> F.cross_entropy(f.flatten(0, 1), y.repeat(2)).backward()       # doctest: +SKIP
    >>> vmg.predict(together.eval(), x, likelihood=likelihood).mean    # doctest: +SKIP
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.n_members = len(models)
        if not models:
            raise ValueError("models must be at least one module; got none")
        if any(isinstance(part, BayesianModule) for part in models[0].modules()):
            raise ValueError("models must be plain ones, without Bayesian layers; got some with")
        tensors = [_tensors(model) for model in models]
        first = tensors[0]
        for other in tensors[1:]:
            if _shapes(other) != _shapes(first):
                raise ValueError(
                    f"models must have tensors of the same names and shapes; got {_shapes(first)} and {_shapes(other)}"
                )
        trained = [name for name, tensor in first.items() if tensor.requires_grad]
        kinds = {(first[name].dtype, first[name].device) for name in trained}
        if len(kinds) != 1:
            raise ValueError(f"models must have weights to train, of one dtype on one device; got {kinds}")
        self.model = copy.deepcopy(models[0])  # its structure; its tensors are below
        _clear(self.model)
        self._same = _same_tensors(models[0])
        is_simple = len(self._same) == len(first)  # no tensor has two names
        self._steps = list(steps_of(self.model, list(self._same), in_form=is_simple))
        self._forms = {name: form for step in self._steps for name, form in forms_of(step).items()} if is_simple else {}
        self._trained = {name: (self.n_members, *self._in_form(name, first[name]).shape) for name in trained}
        self._sizes = [math.prod(shape[1:]) for shape in self._trained.values()]
        kept = [name for name in first if name not in self._trained]
        self._kept = {name: f"kept_{number}" for number, name in enumerate(kept)}
        self._frozen = {name for name in kept if isinstance(first[name], nn.Parameter)}
        with torch.no_grad():
            rows = [torch.cat([self._in_form(name, own[name]).flatten() for name in trained]) for own in tensors]
            self.weights = nn.Parameter(torch.stack(rows))  # [E, n]
            for name, attribute in self._kept.items():
                self.register_buffer(attribute, torch.stack([self._in_form(name, own[name]) for own in tensors]))

    def _in_form(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of a model in the form that its step takes."""
        return self._forms[name](tensor) if name in self._forms else tensor

    # -- the model ----------------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, seen_by: int | None = None, **keywords: Any) -> Tensor:
        """Functions of each row: [E, N, ...], by every member.

        With ``seen_by`` each row is dealt to as many members only: [seen_by, N, ...]. Rows are taken as often as that,
        one after the other, and the first member has the first E-th part, and so on. So rows must be in random order.
        With one member a row the arithmetic is that of one network: a member sees fewer rows, in as many steps.
        """
        n_seen = self.n_members if seen_by is None else seen_by
        if not 1 <= n_seen <= self.n_members:
            raise ValueError(f"seen_by must be between 1 and {self.n_members}, the number of members; got {seen_by}")
        n_rows = _number_of_rows((*inputs, *keywords.values()))
        deal = self._dealer(n_rows, n_seen)
        given, named = [deal(value) for value in inputs], {name: deal(value) for name, value in keywords.items()}
        tensors = self._by_name()
        start, *rest = self._steps
        h = start(tensors, *given, **named)
        for step in rest:
            h = step(tensors, h)
        if h.shape[:2] == (n_seen, n_rows):
            return h
        return h.flatten(0, 1)[: n_seen * n_rows].unflatten(0, (n_seen, n_rows))

    def _dealer(self, n_rows: int, n_seen: int) -> Callable[[Any], Any]:
        """Brings inputs with N rows to [E, rows of a member, ...]; rows come again where that is not even."""
        n_own = -(-n_seen * n_rows // self.n_members)

        def deal(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim() or len(value) != n_rows:
                return value
            if n_seen == self.n_members:
                return value.expand(self.n_members, *value.shape)
            if n_own * self.n_members == n_seen * n_rows:
                many = value if n_seen == 1 else value.expand(n_seen, *value.shape).flatten(0, 1)
            else:
                many = value[torch.arange(n_own * self.n_members, device=value.device) % n_rows]
            return many.unflatten(0, (self.n_members, n_own))

        return deal

    def _by_name(self) -> dict[str, Tensor]:
        """All tensors of the members, [E, ...], by their names in the model, in the forms that steps take."""
        parts = self.weights.split(self._sizes, 1)
        found = {name: part.view(shape) for (name, shape), part in zip(self._trained.items(), parts, strict=True)}
        for name, attribute in self._kept.items():
            found[name] = self.get_buffer(attribute)
        return found if len(self._same) == len(found) else {name: found[same] for name, same in self._same.items()}

    def members(self) -> list[nn.Module]:
        """The members as models of their own, copied: for Bayesian heads, for export."""
        return [self._member(number) for number in range(self.n_members)]

    @torch.no_grad()
    def _member(self, number: int) -> nn.Module:
        model, made = copy.deepcopy(self.model), {}
        tensors = self._by_name()
        for name, same in self._same.items():
            if same not in made:
                own = tensors[name][number]
                own = (self._forms[name].back(own) if name in self._forms else own).clone()
                is_parameter = same in self._trained or same in self._frozen
                made[same] = nn.Parameter(own, requires_grad=same in self._trained) if is_parameter else own
            holder, _, last = name.rpartition(".")
            setattr(model.get_submodule(holder), last, made[same])
        return model

    def extra_repr(self) -> str:
        return f"n_members={self.n_members}, weights={tuple(self.weights.shape)}"


def replicate(model: nn.Module, n_members: int, *, start_scale: float = 1.0) -> Replicas:
    """Several copies of a model in one module, each started anew; frozen layers stay as they are.

    Members that start apart differ most where the data say nothing, so what they start from is what they say there.
    PyTorch starts linear and convolutional layers so small that a network is nearly constant. ``start_scale``
    multiplies their weights, not biases and embeddings; 2.4 keeps the size of signals through layers with ReLU (He et
    al. 2015).
    """
    if n_members < 1:
        raise ValueError(f"n_members must be at least 1; got {n_members}")
    if not start_scale > 0:
        raise ValueError(f"start_scale must be positive; got {start_scale}")
    return Replicas([_started_anew(model, start_scale) for _ in range(n_members)])


@torch.no_grad()
def _started_anew(model: nn.Module, scale: float) -> nn.Module:
    copied = copy.deepcopy(model)
    for name, part in copied.named_modules():
        if not any(own is not None and own.requires_grad for own in part._parameters.values()):
            continue
        reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
        if reset is None:
            raise ValueError(
                f"every module with weights must have reset_parameters; got {name or 'a model'} "
                f"({type(part).__name__}) without: give models with starts of their own to vmg.nn.Replicas"
            )
        reset()
    not_scaled = {id(part.weight) for part in copied.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
    for parameter in copied.parameters():
        if parameter.requires_grad and parameter.dim() > 1 and id(parameter) not in not_scaled:
            parameter.mul_(scale)
    return copied


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _same_tensors(model: nn.Module) -> dict[str, str]:
    """Every name of a tensor, and the first of its names: tied weights have several."""
    first: dict[int, str] = {}
    everything = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in everything}


def _clear(model: nn.Module) -> None:
    """Take all tensors out of a model."""
    for part in model.modules():
        for held in (part._parameters, part._buffers):
            held.update(dict.fromkeys(held))


def _number_of_rows(values: Sequence[Any]) -> int:
    for value in values:
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    raise ValueError("inputs must hold a tensor with rows; got none")
