"""Make any PyTorch model Bayesian and report what was converted, or plain again for serving.

Modules are found by name and replaced in place; ``layer_conversion.py`` makes the Bayesian counterpart of one module.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vmg.nn.bayesian import BayesianLinear, BayesianModule
from vmg.nn.layer_conversion import Refusal, counterpart
from vmg.nn.mlp import MLP, as_module
from vmg.priors import GammaPrior

__all__ = [
    "ATTRIBUTE",
    "Conversion",
    "bayesianize",
    "conversion",
    "keep_from_fast_paths",
    "layer_settings",
    "replace_in_place",
    "select",
    "to_plain",
]

ATTRIBUTE = "_vmg_conversion"  # of a converted model, with its Conversion
MOST_POINTS = 50  # the paper's number for its widest layers [LW16, §4.2]
# Of 0.05, 0.1 and 0.25 the first fitted a surface of 700 rows best by far. On validation rows of 900 digits and 5,000
# images 0.15 was better than 0.05 in five of six pairs, with one seed each (results/own_loop_quality.jsonl)
MAX_NOISE = 0.05
FEWEST, MOST = math.exp(-6), 0.1  # standard deviations of the weights at the start

_KEPT = (  # attributes that a module keeps when its class changes
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
    """Report of :func:`bayesianize`: the modules that it converted and those that it left, by name, with the reason."""

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
    :func:`conversion` reports what became of each module. A warning names modules that look convertible and were left.

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
        return layer_settings(n_rows, n_data) | own | given

    model = copy.deepcopy(module)
    owners = _owners(model)
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    surprising: list[str] = []
    for name, old, is_chosen in select(model, only, skip):
        if not is_chosen:
            left[name] = "not chosen"
            continue
        made = counterpart(old, owners, settings, named=only is not None)
        if isinstance(made, Refusal):
            if only is not None and made.is_surprising:
                raise ValueError(f"{name or type(old).__name__} cannot be converted faithfully: {made.reason}")
            left[name] = made.reason
            if made.is_surprising:
                surprising.append(f"{name} ({made.reason})")
            continue
        replace_in_place(old, made)
        done[name] = f"{type(made).__name__}({made.extra_repr()})"
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
    """The report of the :func:`bayesianize` call that made this model."""
    report = model.__dict__.get(ATTRIBUTE)
    if not isinstance(report, Conversion):
        raise ValueError(f"{type(model).__name__} was not made by vmg.nn.bayesianize")
    return report


@torch.no_grad()
def to_plain(model: nn.Module, *, centre: bool = True) -> nn.Module:
    """A copy of ``model`` whose Bayesian modules are plain ones of PyTorch; an ``MLP`` becomes an ``nn.Sequential``.

    They have the weights at the mean pseudo-data, so that a model which was converted and not trained comes back as it
    was; with ``centre=False`` the mean weights E[W], which the noise of pseudo-inputs moves away from these.
    Inside :func:`~vmg.nn.fixed_draw` they have the weights of the draw in use, so that what is exported is one function
    from the posterior. The copy can be scripted, exported and converted as any model of PyTorch.
    """
    drawn = [part.drawn for part in model.modules() if isinstance(part, BayesianLinear)]
    copied = copy.deepcopy(model, {id(weight): weight.detach() for weight in drawn if weight is not None})
    inside: set[nn.Module] = set()
    for part in list(copied.modules()):
        if type(part) is MLP:
            modules = [module for layer in part.layers for module in (as_module(part.activation), layer)]
            replace_in_place(part, nn.Sequential(*modules[1:]), forget=True)  # its layers come later in this loop
        elif isinstance(part, BayesianModule) and part not in inside:
            inside.update(part.modules())
            replace_in_place(part, part.as_plain(centre=centre), forget=True)
    copied.__dict__.pop(ATTRIBUTE, None)
    return copied


def layer_settings(n_rows: int, n_data: float | None) -> dict[str, Any]:
    """Options of :class:`~vmg.nn.MatrixGaussianLinear` for a layer with ``n_rows`` inputs, bias included.

    Without pseudo-points the divergence of small data sets switches units off until nothing is left, so there are
    always some: 2.5√R, fewer than R and at most 50. The prior learns its own scale, as trained weights have any.
    Weights start with the standard deviation 1/√N, which is about what N data leave of a unit prior.
    """
    scale = FEWEST if n_data is None else min(max(n_data**-0.5, FEWEST), MOST)
    return {
        "n_pseudo": max(0, min(n_rows - 1, round(2.5 * math.sqrt(n_rows)), MOST_POINTS)),
        "max_noise": MAX_NOISE,
        "initial_scale": scale,
        "prior": GammaPrior(),
    }


def _owners(model: nn.Module) -> Callable[[nn.Parameter], int]:
    """A function that gives the number of modules which hold a parameter."""
    count: dict[nn.Parameter, int] = {}
    for part in model.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                count[parameter] = count.get(parameter, 0) + 1
    return lambda parameter: count.get(parameter, 0)


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
        if isinstance(part, BayesianModule | nn.MultiheadAttention) or nn.utils.parametrize.is_parametrized(part):
            inside.update(part.modules())
        elif not part._parameters:
            continue
        wanted = only is None or any(_covers(only, name) for name in own)
        yield own[0], part, wanted and not (skip is not None and any(_covers(skip, name) for name in own))


def _covers(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, or that of a module around it."""
    parts = name.split(".")
    return any(re.fullmatch(pattern, ".".join(parts[:n])) for n in range(1, len(parts) + 1))


def replace_in_place(module: nn.Module, layer: nn.Module, *, forget: bool = False) -> None:
    """Turn ``module`` into ``layer`` without changing its identity: references to it, its hooks and its mode stay.

    With ``forget`` its other attributes are removed.
    """
    layer.train(module.training)
    old, new = module.__dict__, layer.__dict__
    kept = {name: old[name] for name in old if name in _KEPT or not (forget or name in new)}
    module.__dict__ = {**new, **kept}
    module.__class__ = type(layer)


def keep_from_fast_paths(model: nn.Module) -> None:
    """Switch off the fast paths of PyTorch's encoders, which in eval mode read the weights of layers directly."""
    for part in model.modules():
        if not any(isinstance(inner, BayesianModule) for inner in part.modules()):
            continue
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # "not one that the fused kernel knows"
        elif isinstance(part, nn.TransformerEncoder):
            part.enable_nested_tensor = part.use_nested_tensor = False
