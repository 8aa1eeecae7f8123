"""Several networks of one kind in one module, trained in one step: an ensemble for hardly more than one network."""

from __future__ import annotations

import copy
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vmg.nn.bayesian import BayesianModule, has_hooks
from vmg.nn.draws import output_tensor

__all__ = ["Replicas", "replicate"]


class Replicas(nn.Module):
    """E networks of the same structure, each with weights of its own, as one model.

    All trained weights are one parameter ``weights`` [E, n]. A step of a small network is mostly the work of calling:
    of layers, of autograd, of the optimiser for each tensor. Here each is called once for all members: linear layers
    of an ``nn.Sequential`` as one batched product, other modules by ``torch.func.vmap``. Modules with batch norms or
    hooks are called member by member. Rows are dimension 0 of inputs and of the output.

    Args:
        models: models that differ in their tensors only, each a start of its own; they are copied. :func:`replicate`
            makes them from one. Frozen parameters stay frozen.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.n_members = len(models)
        if not models:
            raise ValueError("models must be at least one module; got none")
        if any(isinstance(part, BayesianModule) for part in models[0].modules()):
            raise ValueError("models must be plain ones, without Bayesian layers; got some with")
        tensors = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
        shapes = [{name: tuple(tensor.shape) for name, tensor in own.items()} for own in tensors]
        if any(own != shapes[0] for own in shapes):
            raise ValueError(f"models must have tensors of the same names and shapes; got {shapes}")
        first, is_trained = tensors[0], {name: tensor.requires_grad for name, tensor in tensors[0].items()}
        kinds = {(tensor.dtype, tensor.device) for name, tensor in first.items() if is_trained[name]}
        if len(kinds) != 1:
            raise ValueError(f"models must have weights to train, of one dtype on one device; got {kinds}")
        self.model = copy.deepcopy(models[0])  # its structure; its tensors are below
        for part in self.model.modules():
            for held in (part._parameters, part._buffers):
                held.update(dict.fromkeys(held))
        named = (models[0].named_parameters, models[0].named_buffers)
        seen: dict[int, str] = {}  # tied weights and repeated modules have several names; the first stands for all
        self._first_name = {k: seen.setdefault(id(t), k) for own in named for k, t in own(remove_duplicate=False)}
        self._steps = list(_steps(self.model, self._first_name))
        self._trained = {name: (len(models), *first[name].shape) for name in first if is_trained[name]}
        kept = [name for name in first if not is_trained[name]]
        self._kept = {name: f"kept_{number}" for number, name in enumerate(kept)}
        self._frozen = {name for name in kept if isinstance(first[name], nn.Parameter)}
        rows = [torch.cat([own[name].detach().flatten() for name in self._trained]) for own in tensors]
        self.weights = nn.Parameter(torch.stack(rows))  # [E, n]
        for name, attribute in self._kept.items():
            self.register_buffer(attribute, torch.stack([own[name].detach() for own in tensors]))

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
        arguments = {**{str(position): value for position, value in enumerate(inputs)}, **keywords}
        with_rows = [value for value in arguments.values() if isinstance(value, Tensor) and value.dim()]
        if not with_rows:
            raise ValueError("inputs must hold a tensor with rows; got none")
        n_rows = len(with_rows[0])
        dealt = {key for key, value in arguments.items() if isinstance(value, Tensor) and value.shape[:1] == (n_rows,)}
        arguments |= {key: self._deal(arguments[key], n_seen) for key in dealt}
        tensors = self._stacked()
        first, *rest = self._steps
        h = first(tensors, arguments, dealt)
        for step in rest:
            h = step(tensors, {"0": h}, {"0"})
        if h.shape[:2] == (n_seen, n_rows):
            return h
        return h.flatten(0, 1)[: n_seen * n_rows].unflatten(0, (n_seen, n_rows))

    def _deal(self, rows: Tensor, n_seen: int) -> Tensor:
        """Rows [N, ...] as [E, rows of a member, ...]; the first rows come again where the division leaves a rest."""
        if n_seen == self.n_members:
            return rows.expand(self.n_members, *rows.shape)
        many = rows.expand(n_seen, *rows.shape).flatten(0, 1)
        n_own = -(-len(many) // self.n_members)
        if n_own * self.n_members > len(many):
            many = rows[torch.arange(n_own * self.n_members, device=rows.device) % len(rows)]
        return many.unflatten(0, (self.n_members, n_own))

    def _stacked(self) -> dict[str, Tensor]:
        """All tensors of the members, [E, ...], by their names in the model."""
        parts = self.weights.split([math.prod(shape[1:]) for shape in self._trained.values()], 1)
        own = {name: part.view(shape) for (name, shape), part in zip(self._trained.items(), parts, strict=True)}
        own |= {name: self.get_buffer(attribute) for name, attribute in self._kept.items()}
        return {name: own[same] for name, same in self._first_name.items()}

    @torch.no_grad()
    def members(self) -> list[nn.Module]:
        """The members as models of their own, copied: for Bayesian heads, for export."""
        stacked, models = self._stacked(), []
        for k in range(self.n_members):
            model, tensors = copy.deepcopy(self.model), {name: own[k].clone() for name, own in stacked.items()}
            for name in (*self._trained, *self._frozen):
                tensors[name] = nn.Parameter(tensors[name], requires_grad=name in self._trained)
            for name, same in self._first_name.items():
                holder, _, last = name.rpartition(".")
                setattr(model.get_submodule(holder), last, tensors[same])
            models.append(model)
        return models

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


# -- the steps of a model for all members: tensors are [E, ...], arguments that were dealt [E, rows, ...] --------------

ELEMENTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh),
    *(nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Dropout),
)


@dataclass
class _Step:
    """A module, and the names of its tensors inside it and in the whole model; a call is one of all members."""

    module: nn.Module
    names: dict[str, str]
    one_by_one: bool  # members: a call changes statistics, a user has put hooks on it, or ``vmap`` cannot transform it

    def __call__(self, tensors: dict[str, Tensor], arguments: dict[str, Any], dealt: set[str]) -> Tensor:
        own = {inner: tensors[name] for inner, name in self.names.items()}
        if not self.one_by_one and type(self.module) in ELEMENTWISE:
            return self.module(arguments["0"])
        if not self.one_by_one and type(self.module) is nn.Linear:
            return _batched_linear(arguments["0"], own["weight"].mT, own.get("bias"))
        if not self.one_by_one:
            dims = 0, {key: 0 if key in dealt else None for key in arguments}
            try:
                return vmap(self._call_member, dims, randomness="different")(own, arguments)
            except RuntimeError:  # such as a branch that depends on the data
                pass
        outputs = []
        for k in range(len(arguments[min(dealt)])):
            mine = {key: value[k] if key in dealt else value for key, value in arguments.items()}
            outputs.append(self._call_member({name: tensor[k] for name, tensor in own.items()}, mine))
        self.one_by_one = True
        return torch.stack(outputs)

    def _call_member(self, own: dict[str, Tensor], arguments: dict[str, Any]) -> Tensor:
        positional = tuple(value for key, value in arguments.items() if key.isdecimal())
        keywords = {key: value for key, value in arguments.items() if not key.isdecimal()}
        return output_tensor(functional_call(self.module, own, positional, keywords))


def _batched_linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer as one product of [E, in, out]: small networks take two to nine times as long with ``vmap``."""
    rows = h if h.dim() == 3 else h.flatten(1, -2)
    product = torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return product if h.dim() == 3 else product.unflatten(1, h.shape[1:-1])


def _steps(module: nn.Module, names: Container[str], prefix: str = "") -> Iterator[_Step]:
    """The steps of a model: the layers of an ``nn.Sequential`` in turn; any other module is one step."""
    if type(module) is nn.Sequential and not has_hooks(module):
        for name, part in module._modules.items():
            assert part is not None
            yield from _steps(part, names, f"{prefix}{name}.")
        return
    held = [(part, name) for part, inside in module.named_modules() for name in (*inside._parameters, *inside._buffers)]
    inner = [f"{part}.{name}".removeprefix(".") for part, name in held]
    own = {name: f"{prefix}{name}" for name in inner if f"{prefix}{name}" in names}
    with_statistics = nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm
    one_by_one = any(isinstance(part, with_statistics) or has_hooks(part) for part in module.modules())
    yield _Step(module, own, one_by_one)
