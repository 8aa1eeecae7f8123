"""Make any PyTorch model Bayesian, and say what was done to it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from vmg.nn.layer_conversion import Refusal, counterpart
from vmg.nn.layer_settings import layer_settings
from vmg.nn.module_edits import become, keep_from_fast_paths, select

__all__ = ["ATTRIBUTE", "Conversion", "bayesianize", "conversion"]

ATTRIBUTE = "_vmg_conversion"  # of a converted model, with its Conversion


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


def _owners(model: nn.Module) -> Callable[[nn.Parameter], int]:
    """How many modules hold a parameter."""
    count: dict[nn.Parameter, int] = {}
    for part in model.modules():
        for parameter in part._parameters.values():
            if parameter is not None:
                count[parameter] = count.get(parameter, 0) + 1
    return lambda parameter: count.get(parameter, 0)
