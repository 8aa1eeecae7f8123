"""Modules of PyTorch whose weights are matrix Gaussian: convolutions, attention, recurrent and bilinear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

from vmg.nn.bayesian import HOOKS, BayesianModule
from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["MatrixGaussianModule", "shell", "weight_names"]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)  # weights [in, out, ...]


class MatrixGaussianModule(BayesianModule):
    """A module of PyTorch with matrix Gaussian weights, which start at its own; each call draws all of them once.

    A weight [out, ...] with its bias [out] is one matrix [R, out], as that of a linear layer with R − 1 inputs. So the
    kernel of a convolution is the layer of its patches, all positions share one draw, and pseudo-data are patches. A
    recurrent layer has one draw for all its steps.

    Args:
        module: convolutions of any kind, ``nn.MultiheadAttention``, ``nn.RNN``, ``nn.GRU``, ``nn.LSTM``, their cells,
            and ``nn.Bilinear``. Its parameters must be matrices and biases of these.
        settings: options of the matrix with R rows, which may depend on R.
        **layer_options: options of :class:`~vmg.nn.MatrixGaussianLinear` for all matrices; these come first.
    """

    def __init__(
        self, module: nn.Module, settings: Callable[[int], Mapping[str, Any]] | None = None, **layer_options: Any
    ) -> None:
        super().__init__()
        if layer_options.get("batch_shape"):
            raise ValueError(f"batch_shape must be empty for {type(module).__name__}; got {layer_options}")
        own, self._pairs = dict(module.named_parameters()), weight_names(module)
        empty = {id(p): nn.Parameter(p.detach().to("meta"), requires_grad=False) for p in own.values()}
        self._plain = (shell(copy.deepcopy(module, dict(empty)), hooks=False),)  # in a tuple: not a part of this module
        self.matrices = nn.ModuleDict()
        for name, partner in self._pairs.items():
            weight, bias = self._turn(own[name].detach()).flatten(1), own.get(partner)
            n_rows = weight.shape[1] + (bias is not None)
            options = {**({} if settings is None else settings(n_rows)), **layer_options}
            matrix = MatrixGaussianLinear(weight.shape[1], weight.shape[0], bias is not None, **options)
            matrix.to(weight).start_at(weight, bias)
            self.matrices[name.replace(".", "_")] = matrix
        options = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        self.__dict__.update(options)  # such as hidden_size
        self._qkv_same_embed_dim = False  # or PyTorch's encoder layers go around forward, to the raw weights

    def _turn(self, weight: Tensor) -> Tensor:
        """A weight as [out, ...], and back."""
        return weight.transpose(0, 1) if isinstance(self._plain[0], TRANSPOSED) else weight

    def extra_repr(self) -> str:
        plain, n = self._plain[0], sum(p.numel() for p in self.parameters())
        return f"{type(plain).__name__}({plain.extra_repr()}), parameters={n}"

    def kl_divergence(self) -> Tensor:
        return torch.stack([matrix.kl_divergence() for matrix in self.matrices.values()]).sum(0)  # type: ignore[operator]

    def _tensors(self, weight: Callable[[MatrixGaussianLinear], Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """Weights and biases by their names in the plain module, from one matrix W [R, C] for each."""
        tensors: dict[str, Tensor] = {}
        for (name, partner), matrix in zip(self._pairs.items(), self.matrices.values(), strict=True):
            assert isinstance(matrix, MatrixGaussianLinear)
            flat, bias = matrix.as_linear(weight(matrix).to(dtype))
            shape = self._turn(self._plain[0].get_parameter(name)).shape
            tensors[name] = self._turn(flat.reshape(shape))
            if bias is not None:
                tensors[partner] = bias
        return tensors

    def __getattr__(self, name: str) -> Any:
        """Weights of the plain module, such as ``weight`` or ``in_proj_bias``, at the mean pseudo-data."""
        pairs = self.__dict__.get("_pairs", {})
        if name not in pairs and name not in pairs.values():
            return super().__getattr__(name)
        self.warn_of_mean(name)
        return self._tensors(MatrixGaussianLinear.mean_weight, next(self.parameters()).dtype).get(name)

    def as_plain(self) -> nn.Module:
        like = next(self.parameters())
        plain = copy.deepcopy(self._plain[0]).to_empty(device=like.device).to(like.dtype)
        plain.load_state_dict(self._tensors(MatrixGaussianLinear.plain_weight, like.dtype))
        return plain.requires_grad_()

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The output of the plain module for one posterior draw of its weights."""
        return self._call(lambda m: m.sample_weight() if m.drawn is None else m.drawn, inputs, keywords)

    def forward_mean(self, *inputs: Any, **keywords: Any) -> Any:
        """The output at the weights of the mean pseudo-data."""
        return self._call(MatrixGaussianLinear.mean_weight, inputs, keywords)

    def _call(self, weight: Callable[[MatrixGaussianLinear], Tensor], inputs: Any, keywords: Mapping[str, Any]) -> Any:
        plain = self._plain[0]
        if not torch.compiler.is_compiling():
            plain = shell(plain)  # calls in other threads put their weights elsewhere
        plain.training = self.training
        values = [x.data if isinstance(x, PackedSequence) else x for x in (*inputs, *keywords.values())]
        kinds = [x.dtype for x in values if isinstance(x, Tensor) and x.is_floating_point()]
        drawn = self._tensors(weight, kinds[0] if kinds else next(self.parameters()).dtype)
        return functional_call(plain, drawn, inputs, dict(keywords))


def weight_names(module: nn.Module) -> dict[str, str]:
    """Names of all weights of a module, each with that of its bias, which may be missing."""
    own = [name for name, _ in module.named_parameters()]
    pairs = {name: name.replace("weight", "bias") for name in own if "weight" in name.rpartition(".")[-1]}
    rest = [name for name in own if name not in pairs and name not in pairs.values()]
    if rest:
        raise ValueError(f"its {', '.join(rest)} cannot be part of a weight matrix")
    if isinstance(module, TRANSPOSED) and module.groups > 1:
        raise ValueError(f"its channels are transposed in {module.groups} groups")
    return pairs


def shell(module: nn.Module, *, hooks: bool = True) -> nn.Module:
    """The same module with dictionaries of its own, and without hooks where these are not wanted."""
    same = object.__new__(type(module))
    same.__dict__ = {
        **vars(module),
        **({} if hooks else {name: type(getattr(module, name))() for name in HOOKS}),
        "_parameters": dict(module._parameters),
        "_modules": {name: part if part is None else shell(part) for name, part in module._modules.items()},
    }
    return same
