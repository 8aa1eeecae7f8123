"""Make any PyTorch model Bayesian and report what was converted, or plain again for serving.

Modules are found by name and replaced in place; the second half makes the Bayesian counterpart of one module.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vmg.math.preactivations import input_divisor
from vmg.nn.bayesian import BayesianLinear, BayesianModule, outermost
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP, as_module
from vmg.nn.modules import TRANSPOSED, MatrixGaussianModule, weight_names
from vmg.priors import GammaPrior, IsotropicPrior

__all__ = [
    *("ATTRIBUTE", "Conversion", "bayesianize", "conversion", "initial_scale", "keep_from_fast_paths"),
    *("layer_settings", "linear_weight", "replace_in_place", "select", "to_plain"),
]

ATTRIBUTE = "_vmg_conversion"  # of a converted model, with its Conversion
MOST_POINTS = 50  # the paper's number for its widest layers [LW16, §4.2]
# Of 0.05, 0.1 and 0.25 the first fitted a surface of 700 rows best by far. On validation rows of 900 digits and 5,000
# images 0.15 was better than 0.05 in five of six pairs, with one seed each (results/own_loop_quality.jsonl)
MAX_NOISE = 0.05
FEWEST, MOST = math.exp(-6), 0.1  # standard deviations of the weights at the start

_CACHES = ("_flat_weights", "_flat_weight_refs")  # of recurrent layers, with their old weights


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

    Converted are ``nn.Linear``, convolutions of all kinds, recurrent layers and their cells, ``nn.Embedding``,
    ``nn.MultiheadAttention``, ``nn.Bilinear`` and the ``Conv1D`` of Hugging Face. A converted module stays the same
    object within the copy, so whatever refers to it, its hooks, its mode and its name stay. Weights that are frozen or
    shared with other modules are left as they are.
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
    owners = Counter(p for part in model.modules() for p in part._parameters.values() if p is not None)
    done: dict[str, str] = {}
    left: dict[str, str] = {}
    surprising: list[str] = []
    for name, old, is_chosen in select(model, only, skip):
        reason, is_surprising = _why_left(old, owners, named=only is not None) if is_chosen else ("not chosen", False)
        if is_surprising and only is not None:
            raise ValueError(f"{name or type(old).__name__} cannot be converted faithfully: {reason}")
        if reason:
            left[name] = reason
            surprising += [f"{name} ({reason})"] if is_surprising else []
            continue
        made = _counterpart(old, settings)
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
def to_plain(model: nn.Module) -> nn.Module:
    """A copy of ``model`` whose Bayesian modules are plain ones of PyTorch; an ``MLP`` becomes an ``nn.Sequential``.

    They have the weights at the mean pseudo-data, so that a model which was converted and not trained comes back as it
    was. (The noise of pseudo-inputs moves E[W] away from these.)
    Inside :func:`~vmg.nn.fixed_draw` they have the weights of the draw in use, so that what is exported is one function
    from the posterior. The copy can be scripted, exported and converted as any model of PyTorch.
    """
    drawn = [part.drawn for part in model.modules() if isinstance(part, BayesianLinear)]
    copied = copy.deepcopy(model, {id(weight): weight.detach() for weight in drawn if weight is not None})
    for layer in list(outermost(copied)):
        replace_in_place(layer, layer.as_plain(), forget=True)
    for part in list(copied.modules()):
        if type(part) is MLP:
            modules = [module for layer in part.layers for module in (as_module(part.activation), layer)]
            replace_in_place(part, nn.Sequential(*modules[1:]), forget=True)
    copied.__dict__.pop(ATTRIBUTE, None)
    return copied


def layer_settings(n_rows: int, n_data: float | None) -> dict[str, Any]:
    """Options of :class:`~vmg.nn.MatrixGaussianLinear` for a layer with ``n_rows`` inputs, bias included.

    Without pseudo-points the divergence of small data sets switches units off until nothing is left, so there are
    always some: 2.5√R, fewer than R and at most 50. The prior learns its own scale, as trained weights have any.
    """
    return {
        "n_pseudo": max(0, min(n_rows - 1, round(2.5 * math.sqrt(n_rows)), MOST_POINTS)),
        "max_noise": MAX_NOISE,
        "initial_scale": initial_scale(n_data),
        "prior": GammaPrior(),
    }


def initial_scale(n_data: float | None) -> float:
    """Standard deviation of the weights at the start: 1/√N, about what N data leave of a unit prior."""
    return FEWEST if n_data is None else min(max(n_data**-0.5, FEWEST), MOST)


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
    hooks = [name for name in old if name.startswith(("_forward_", "_backward_")) or name == "_is_full_backward_hook"]
    others = [] if forget else [name for name in old if name not in new and name not in _CACHES]
    kept = {name: old[name] for name in (*hooks, *others)}
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


# -- the counterpart of one module ------------------------------------------------------------------------------------

_MODULES = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.Bilinear, nn.MultiheadAttention),
    *(nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell),
)


def _why_left(module: nn.Module, owners: Mapping[nn.Parameter, int], *, named: bool) -> tuple[str, bool]:
    """The reason why a module is left as it is, and whether it would surprise its user; no text if it is converted.

    ``owners`` has the number of modules that hold each parameter. A module may be frozen where the user has ``named``
    it.
    """
    kind: type[nn.Module] = type(module)
    convertible: list[type[nn.Module]] = [nn.Linear, *_transposed_linear(), nn.Embedding, *_MODULES]
    base = next((known.__name__ for known in convertible if isinstance(module, known)), None)
    shares = any(owners[p] > 1 for p in module.parameters())
    trained = {p.requires_grad for p in module.parameters()}
    special = kind is nn.Embedding and any(
        getattr(module, name) for name in ("max_norm", "scale_grad_by_freq", "sparse")
    )
    reasons = (
        (isinstance(module, BayesianModule), "Bayesian already", False),
        (nn.utils.parametrize.is_parametrized(module), "its weight is parametrised", True),
        (kind not in convertible and base, f"a subclass of {base}, which may compute something else", True),
        (kind not in convertible, f"{kind.__name__} has no Bayesian counterpart", isinstance(module, nn.EmbeddingBag)),
        ("forward" in module.__dict__, "its forward was replaced", True),
        ("weight" in module.__dict__, "its weight is computed before each call", True),
        (special, "max_norm, scale_grad_by_freq and sparse gradients are not supported", True),
        (shares, "it shares weights with another module", True),
        (len(trained) > 1, "some of its parameters are frozen and others are not", True),
        (trained == {False} and not named, "frozen", False),
    )
    for applies, reason, is_surprising in reasons:
        if applies:
            return reason, is_surprising
    try:
        weight_names(module)
    except ValueError as error:
        return str(error), True
    return "", False


def _counterpart(module: Any, settings: Callable[..., dict[str, Any]]) -> BayesianModule:
    """A new module that starts at the weights of ``module``; the mean of a frozen one is frozen.

    ``settings`` gives the options of a layer from its number of inputs, bias included, and its own defaults.
    """
    first, weight = next(module.parameters()), linear_weight(module)
    frozen = not first.requires_grad

    def options(n_rows: int, **own: Any) -> dict[str, Any]:
        return settings(n_rows, **own) | ({"n_pseudo": 0} if frozen else {})  # pseudo-data would move the mean

    made: BayesianModule
    with first.device:
        if weight is not None:
            n_out, n_in = weight.shape
            has_bias = module.bias is not None
            made = MatrixGaussianLinear(n_in, n_out, has_bias, **options(n_in + has_bias)).to(weight)
            made.start_at(weight, module.bias)
        elif isinstance(module, nn.Embedding):
            prior = IsotropicPrior(input_divisor(module.num_embeddings))  # the layer's own: it knows the table's scale
            chosen = options(module.num_embeddings, prior=prior) | {"n_pseudo": 0}
            made = MatrixGaussianEmbedding(module.num_embeddings, module.embedding_dim, module.padding_idx, **chosen)
            made.to(module.weight).matrix.start_at(module.weight.mT, None)
        else:
            made = MatrixGaussianModule(module, options)
    for part in made.modules():
        if isinstance(part, MatrixGaussianLinear) and part.loc is not None:
            part.loc.requires_grad_(not frozen)
    return made


def _transposed_linear() -> list[type[nn.Module]]:
    """``Conv1D`` of Hugging Face, a linear layer with a transposed weight, where that library is in use."""
    library = sys.modules.get("transformers.pytorch_utils")
    return [] if library is None else [library.Conv1D]


def linear_weight(module: nn.Module) -> Tensor | None:
    """The weight [out, in] of a plain linear layer, of PyTorch or Hugging Face; None of any other module."""
    if type(module) is nn.Linear:
        return module.weight
    return module.get_parameter("weight").mT if type(module) in _transposed_linear() else None
