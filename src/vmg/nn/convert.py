"""Make any PyTorch model Bayesian, and say what was done to it."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from vmg.nn.bayesian import BayesianModule
from vmg.nn.counterparts import Refusal, counterpart
from vmg.nn.recipe import recipe

__all__ = ["ATTRIBUTE", "Conversion", "bayesianize", "become", "conversion", "keep_from_fast_paths", "select"]

ATTRIBUTE = "_vmg_conversion"  # of a converted model, with its Conversion

# what a module keeps when its kind changes
_KEPT = (
    "training",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


@dataclass(frozen=True)
class Conversion:
    """What :func:`bayesianize` did: by name, the modules it converted and those it left, with the reason."""

    converted: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        width = max(map(len, (*self.converted, *self.left)), default=0)
        lines = [f"{len(self.converted)} converted, {len(self.left)} left as they are"]
        lines += [f"  {name:<{width}}  {text}" for name, text in self.converted.items()]
        lines += [f"  {name:<{width}}  left: {text}" for name, text in self.left.items()]
        return "\n".join(lines)


def bayesianize(
    module: nn.Module,
    *,
    n_data: float | None = None,
    only: str | None = None,
    skip: str | None = None,
    n_pseudo: int | None = None,
    verbose: bool = False,
    **layer_options: Any,
) -> nn.Module:
    """A copy of ``module`` with matrix Gaussian layers, which start at the weights of the old ones.

    Converted are ``nn.Linear``, ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Embedding``, ``nn.MultiheadAttention`` and the
    ``Conv1D`` of Hugging Face. A converted module stays the same object within the copy, so whatever refers to it, its
    hooks, its mode and its name stay. Weights that are frozen or shared with other modules are left as they are.
    :func:`conversion` says what became of each module; what looks convertible and is left is warned of.

    Args:
        module: any model; it is left as it is.
        n_data: rows of the training set, from which settings are chosen that are not given.
        only: a regular expression; modules with a matching name, and those inside them, are converted, frozen ones too
            (their mean stays frozen, and what is learned is the spread around it). Where that cannot be done
            faithfully a ValueError says why.
        skip: a regular expression of modules that are left, with those inside them.
        n_pseudo: pseudo-points of each layer; chosen from its size if None.
        verbose: print what was done.
        **layer_options: further options of :class:`~vmg.nn.MatrixGaussianLinear`.
    """
    if n_data is not None and not n_data > 0:
        raise ValueError(f"n_data must be positive; got {n_data}")
    given = layer_options if n_pseudo is None else {"n_pseudo": n_pseudo, **layer_options}

    def settings(n_rows: int, **own: Any) -> dict[str, Any]:
        return recipe(n_rows, n_data) | own | given

    model = copy.deepcopy(module)
    owners = _owners(model)
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    surprising: list[str] = []
    for name, old, is_chosen in select(model, only, skip):
        if not is_chosen:
            left[name] = "not chosen"
            continue
        found = counterpart(old, owners, settings, named=only is not None)
        if isinstance(found, Refusal):
            if only is not None and found.is_surprising:
                raise ValueError(f"{name or type(old).__name__} cannot be converted faithfully: {found.reason}")
            left[name] = found.reason
            if found.is_surprising:
                surprising.append(f"{name} ({found.reason})")
            continue
        become(old, found)
        done[name] = f"{type(found).__name__}({found.extra_repr()})"
    if not done:
        why = "; ".join(f"{name or 'itself'}: {reason}" for name, reason in left.items())
        raise ValueError(f"{type(module).__name__} holds no layer to convert ({why or 'it has no parameters'})")
    keep_from_fast_paths(model)
    summary = Conversion(done, left)
    object.__setattr__(model, ATTRIBUTE, summary)
    if verbose:
        print(summary)
    if surprising and only is None:
        warnings.warn(
            f"left as they are, though they look convertible: {'; '.join(surprising)}. Name them in skip to agree.",
            stacklevel=2,
        )
    return model


def conversion(model: nn.Module) -> Conversion:
    """What :func:`bayesianize` did when it made this model."""
    found = model.__dict__.get(ATTRIBUTE)
    if not isinstance(found, Conversion):
        raise ValueError(f"{type(model).__name__} was not made by vmg.nn.bayesianize")
    return found


def select(model: nn.Module, only: str | None, skip: str | None) -> Iterator[tuple[str, nn.Module, bool]]:
    """Modules with parameters of their own, by name, outermost first, and whether they are chosen.

    What is inside a Bayesian module or an attention belongs to it. Patterns that match nothing are refused.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for option, pattern in (("only", only), ("skip", skip)):
        if pattern is not None and not any(re.fullmatch(pattern, name) for name in names):
            raise ValueError(f"{option} must match the name of a module; {pattern!r} matches none of {names[1:]}")
    by_module: dict[nn.Module, list[str]] = {}
    for name, part in model.named_modules(remove_duplicate=False):
        by_module.setdefault(part, []).append(name)
    inside: set[nn.Module] = set()
    for part, own in by_module.items():
        if part in inside:
            continue
        if isinstance(part, BayesianModule | nn.MultiheadAttention):
            inside.update(part.modules())
        elif not part._parameters and not _is_parametrised(part):
            continue
        elif _is_parametrised(part):
            inside.update(part.modules())
        wanted = only is None or any(_covers(only, name) for name in own)
        yield own[0], part, wanted and not (skip is not None and any(_covers(skip, name) for name in own))


def _is_parametrised(module: nn.Module) -> bool:
    return nn.utils.parametrize.is_parametrized(module)


def _covers(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, or that of a module around it."""
    parts = name.split(".")
    return any(re.fullmatch(pattern, ".".join(parts[:n])) for n in range(1, len(parts) + 1))


def _owners(model: nn.Module) -> Callable[[nn.Parameter], int]:
    """How many modules hold a parameter."""
    count: dict[nn.Parameter, int] = {}
    for part in model.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                count[parameter] = count.get(parameter, 0) + 1
    return lambda parameter: count.get(parameter, 0)


def become(module: nn.Module, layer: nn.Module, *, forget: bool = False) -> None:
    """Make an object another kind of module; its hooks and its mode stay, and so does all that refers to it.

    With ``forget`` all other attributes go.
    """
    layer.train(module.training)
    old, new = module.__dict__, layer.__dict__
    kept = {name: old[name] for name in old if name in _KEPT or not (forget or name in new)}
    module.__dict__ = {**new, **kept}
    module.__class__ = type(layer)


def keep_from_fast_paths(model: nn.Module) -> None:
    """In eval mode PyTorch's encoders multiply with the weights of their layers instead of calling these."""
    for part in model.modules():
        if not any(isinstance(inner, BayesianModule) for inner in part.modules()):
            continue
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # "not one that the fused kernel knows"
        elif isinstance(part, nn.TransformerEncoder):
            part.enable_nested_tensor = part.use_nested_tensor = False
