"""Make any PyTorch model Bayesian and report what was converted, or plain again for serving.

Modules are found by name and replaced in place; the second half makes the Bayesian counterpart of one module.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vmg.math.preactivations import input_divisor
from vmg.nn.attention import MatrixGaussianMultiheadAttention
from vmg.nn.bayesian import BayesianLinear, BayesianModule
from vmg.nn.convolution import MatrixGaussianConv1d, MatrixGaussianConv2d
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP, as_module
from vmg.priors import GammaPrior, IsotropicPrior

__all__ = [
    "ATTRIBUTE",
    "Conversion",
    "bayesianize",
    "conversion",
    "is_linear",
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
        made = _counterpart(old, owners, settings, named=only is not None)
        if isinstance(made, _Refusal):
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


# -- the counterpart of one module ------------------------------------------------------------------------------------

_MATRICES = (  # modules that are mostly weight matrices: a user expects these to be random too
    nn.RNNBase,
    nn.RNNCellBase,
    nn.Bilinear,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.EmbeddingBag,
)

Settings = Callable[..., dict[str, Any]]
"""Options of a layer from its number of inputs, bias included, and what this kind of layer would have otherwise."""


@dataclass(frozen=True)
class _Refusal:
    """The reason why a module is left as it is, and whether that would surprise its user."""

    reason: str
    is_surprising: bool = True


def _counterpart(
    module: nn.Module, owners: Callable[[nn.Parameter], int], settings: Settings, *, named: bool
) -> BayesianModule | _Refusal:
    """A new module that starts at the weights of ``module``.

    Args:
        module: one of those that :func:`select` gives.
        owners: how many modules hold a parameter.
        settings: options of the layers.
        named: asked for by name: then frozen weights become a frozen mean.
    """
    if isinstance(module, BayesianModule):
        return _Refusal("Bayesian already", is_surprising=False)
    make = _maker(module)
    if isinstance(make, _Refusal):
        return make
    parameters = [p for p in module.parameters() if p is not None]
    if any(owners(p) > 1 for p in parameters):
        return _Refusal("it shares weights with another module")
    trained = {p.requires_grad for p in parameters}
    if len(trained) > 1:
        return _Refusal("some of its parameters are frozen and others are not")
    frozen = trained == {False}
    if frozen and not named:
        return _Refusal("frozen", is_surprising=False)

    def options(n_rows: int, **own: Any) -> dict[str, Any]:
        return settings(n_rows, **own) | ({"n_pseudo": 0} if frozen else {})  # pseudo-data would move the mean

    with parameters[0].device:
        made = make(module, options)
    if next(made.parameters()).dtype is not parameters[0].dtype:
        made.to(parameters[0].dtype)
    for matrix, weight, bias in _weights(module, made):
        _start_at(matrix, weight, bias, frozen=frozen)
    return made


def _maker(module: nn.Module) -> Callable[[Any, Settings], BayesianModule] | _Refusal:
    """The function that makes the counterpart of a module of this kind, or why there is none."""
    kind = type(module)
    if nn.utils.parametrize.is_parametrized(module):
        return _Refusal("its weight is parametrised")
    makers: dict[type[nn.Module], Callable[[Any, Settings], BayesianModule]] = {
        nn.Linear: _make_linear,
        nn.Conv1d: _make_convolution,
        nn.Conv2d: _make_convolution,
        nn.Embedding: _make_embedding,
        nn.MultiheadAttention: _make_attention,
    }
    transposed = _transposed_linear()
    if transposed is not None:
        makers[transposed] = _make_transposed
    if kind not in makers:
        like = next((base.__name__ for base in makers if isinstance(module, base)), None)
        if like is not None:
            return _Refusal(f"a subclass of {like}, which may compute something else")
        return _Refusal(f"{kind.__name__} has no Bayesian counterpart", is_surprising=isinstance(module, _MATRICES))
    if "forward" in module.__dict__:
        return _Refusal("its forward was replaced")
    if kind is not nn.MultiheadAttention and "weight" not in module._parameters:
        return _Refusal("its weight is computed before each call")
    reason = _obstacle(module)
    return makers[kind] if reason is None else _Refusal(reason)


def _obstacle(module: Any) -> str | None:
    """An option of a convertible module that the counterpart does not support; None if there is none."""
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups > 1:
        return f"its channels are in {module.groups} groups"
    if isinstance(module, nn.Embedding) and (module.max_norm or module.scale_grad_by_freq or module.sparse):
        return "max_norm, scale_grad_by_freq and sparse gradients are not supported"
    if isinstance(module, nn.MultiheadAttention):
        if not module._qkv_same_embed_dim:
            return "its keys or values have sizes of their own"
        if module.bias_k is not None or module.add_zero_attn:
            return "bias_kv and zero attention are not supported"
    return None


def _transposed_linear() -> type[nn.Module] | None:
    """``Conv1D`` of Hugging Face, a linear layer with a transposed weight; None where that library is not in use."""
    library = sys.modules.get("transformers.pytorch_utils")
    return None if library is None else library.Conv1D


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer, of PyTorch or Hugging Face."""
    return type(module) is nn.Linear or type(module) is _transposed_linear()


def _make_linear(module: nn.Linear, options: Settings) -> BayesianModule:
    bias = module.bias is not None
    return MatrixGaussianLinear(module.in_features, module.out_features, bias, **options(module.in_features + bias))


def _make_transposed(module: Any, options: Settings) -> BayesianModule:
    n_in, n_out = module.weight.shape
    return MatrixGaussianLinear(n_in, n_out, True, **options(n_in + 1))


def _make_convolution(module: nn.Conv1d | nn.Conv2d, options: Settings) -> BayesianModule:
    bias = module.bias is not None
    kind = MatrixGaussianConv1d if isinstance(module, nn.Conv1d) else MatrixGaussianConv2d
    return kind(
        module.in_channels,
        module.out_channels,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        bias,
        padding_mode=module.padding_mode,
        **options(module.weight[0].numel() + bias),
    )


def _make_embedding(module: nn.Embedding, options: Settings) -> BayesianModule:
    prior = IsotropicPrior(input_divisor(module.num_embeddings))  # the layer's own, which knows the table's scale
    chosen = options(module.num_embeddings, prior=prior) | {"n_pseudo": 0}
    return MatrixGaussianEmbedding(module.num_embeddings, module.embedding_dim, module.padding_idx, **chosen)


def _make_attention(module: nn.MultiheadAttention, options: Settings) -> BayesianModule:
    bias = module.in_proj_bias is not None
    chosen = options(module.embed_dim + bias)
    sizes = module.embed_dim, module.num_heads, module.dropout, bias
    return MatrixGaussianMultiheadAttention(*sizes, batch_first=module.batch_first, **chosen)


def _weights(module: Any, made: BayesianModule) -> list[tuple[MatrixGaussianLinear, Tensor, Tensor | None]]:
    """Each matrix of the counterpart, and the weight [out, in] and bias that it starts at."""
    if isinstance(made, MatrixGaussianMultiheadAttention):
        out = module.out_proj
        return [
            (made.in_proj, module.in_proj_weight, module.in_proj_bias),
            (made.out_proj, out.weight, out.bias),
        ]
    if isinstance(made, MatrixGaussianEmbedding):
        return [(made.matrix, module.weight.mT, None)]
    if isinstance(made, MatrixGaussianConv1d | MatrixGaussianConv2d):
        return [(made.matrix, module.weight.flatten(1), module.bias)]
    assert isinstance(made, MatrixGaussianLinear)
    return [(made, module.weight if isinstance(module, nn.Linear) else module.weight.mT, module.bias)]


@torch.no_grad()
def _start_at(matrix: MatrixGaussianLinear, weight: Tensor, bias: Tensor | None, *, frozen: bool) -> None:
    """Let these weights be the mean M and, with pseudo-data, the centre too."""
    if matrix.loc is None:
        return
    root = input_divisor(matrix.n_rows)
    matrix.loc[..., : matrix.in_features, :] = root * weight.mT
    if bias is not None:
        matrix.loc[..., matrix.in_features, :] = root * bias
    if matrix.pseudo_data is not None:  # B̃ = ÃM: the pseudo-data agree with the mean and leave it as it is
        data = matrix.pseudo_data
        data.points[..., matrix.n_rows :] = data.points[..., : matrix.n_rows] / root @ matrix.loc
    matrix.loc.requires_grad_(not frozen)
