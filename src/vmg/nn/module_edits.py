"""Find modules of a model by name, and turn one into another kind in its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from vmg.nn.bayesian import BayesianModule

__all__ = ["become", "keep_from_fast_paths", "select"]

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
    """PyTorch's encoders multiply in eval mode with the weights of their layers instead of calling these."""
    for part in model.modules():
        if not any(isinstance(inner, BayesianModule) for inner in part.modules()):
            continue
        if isinstance(part, nn.TransformerEncoderLayer):
            part.activation_relu_or_gelu = 0  # "not one that the fused kernel knows"
        elif isinstance(part, nn.TransformerEncoder):
            part.enable_nested_tensor = part.use_nested_tensor = False
