"""Low-rank adapters with matrix Gaussian factors, on models that stay frozen."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from vmg.nn.bayesian import BayesianModule, plain_linear
from vmg.nn.convert import initial_scale, keep_from_fast_paths, linear_weight, replace_in_place, select
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.modules import shell

__all__ = ["MatrixGaussianLoRA", "add_lora"]


class MatrixGaussianLoRA(BayesianModule):
    """A frozen linear layer plus a random map of low rank: y = base(x) + (alpha/rank) · x̂DÛ.

    D [in, rank] and Û [rank, out] are matrix Gaussian; the mean of Û starts at zero, so the mean of the layer starts
    at the frozen one (after Hu et al. 2022, whose factors are points).

    Args:
        base: a linear layer; its parameters are frozen.
        rank, alpha: of the random map, and its scale; alpha is ``rank`` if None.
        **layer_options: options of :class:`~vmg.nn.MatrixGaussianLinear`, for both factors.
    """

    def __init__(self, base: nn.Module, rank: int = 8, alpha: float | None = None, **layer_options: Any) -> None:
        super().__init__()
        weight = linear_weight(base)
        if weight is None:
            raise TypeError(f"base must be a linear layer; got {type(base).__name__}")
        if rank < 1:
            raise ValueError(f"rank must be at least 1; got {rank}")
        self.out_features, self.in_features = weight.shape
        self.rank, self.scaling = rank, 1.0 if alpha is None else alpha / rank
        self.base = base.requires_grad_(False)
        self.down = MatrixGaussianLinear(self.in_features, rank, False, **layer_options).to(weight)
        self.up = MatrixGaussianLinear(rank, self.out_features, False, **layer_options).to(weight)
        if self.up.loc is not None:
            nn.init.zeros_(self.up.loc)

    def extra_repr(self) -> str:
        return f"rank={self.rank}, scaling={self.scaling:g}"

    def kl_divergence(self) -> Tensor:
        return self.down.kl_divergence() + self.up.kl_divergence()

    def forward(self, x: Tensor) -> Tensor:
        """One draw of the adapted output."""
        base = self.base(x)
        return base + self.scaling * self.up(self.down(x)).to(base.dtype)

    def adapted_weight(self, down: Tensor, up: Tensor) -> Tensor:
        """The weight [out, in] of the whole layer for weights of the two factors."""
        frozen = linear_weight(self.base)
        assert frozen is not None
        product = self.up.as_linear(up)[0] @ self.down.as_linear(down)[0]
        return frozen + self.scaling * product.to(frozen.dtype)

    @property
    def weight(self) -> Tensor:
        """The adapted weight at the factors' ``mean_weight``, [out, in]."""
        self.warn_of_mean("weight")
        return self.adapted_weight(self.down.mean_weight(), self.up.mean_weight())

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.base._parameters["bias"]

    def as_plain(self) -> nn.Linear:
        return plain_linear(self.adapted_weight(self.down.plain_weight(), self.up.plain_weight()), self.bias)


def add_lora(
    model: nn.Module,
    *,
    only: str | None = None,
    skip: str | None = None,
    n_data: float | None = None,
    rank: int = 8,
    alpha: float | None = None,
    **layer_options: Any,
) -> nn.Module:
    """A copy of ``model``, all frozen, whose linear layers have matrix Gaussian adapters.

    Args:
        model: any model; it is left as it is.
        only, skip: as in :func:`~vmg.nn.bayesianize`; names of linear layers to adapt, all if None.
        n_data: rows of the training set, from which the spread at the start is chosen.
        rank, alpha: see :class:`MatrixGaussianLoRA`.
        **layer_options: of :class:`~vmg.nn.MatrixGaussianLinear`.
    """
    adapted = copy.deepcopy(model).requires_grad_(False)
    chosen = [old for _, old, is_chosen in select(adapted, only, skip) if is_chosen and linear_weight(old) is not None]
    if not chosen:
        raise ValueError(f"{type(model).__name__} holds no linear layer to adapt")
    options = {"initial_scale": initial_scale(n_data), **layer_options}
    for old in chosen:  # base: the same weights in an object of their own; hooks stay outside
        replace_in_place(old, MatrixGaussianLoRA(shell(old, hooks=False), rank, alpha, **options))
    keep_from_fast_paths(adapted)
    return adapted
