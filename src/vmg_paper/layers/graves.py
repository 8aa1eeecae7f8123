"""Practical variational inference of Graves (2011): the variance learns from squared gradients of single rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from vmg_paper.layers.factorised import FactorisedLinear

__all__ = ["GravesLinear", "empirical_kl"]


class _GravesProduct(Function):
    """x̂W at W = M + S ⊙ E, with Graves's gradient of the variances in place of the exact one.

    ∂L/∂M is that of the weights that were drawn (eq. 16). ∂L/∂S² = ½ E ∂²L/∂W² is replaced by half the mean over
    rows of (∂ log p(y|x, W)/∂W)², the diagonal of the empirical Gauss-Newton matrix (eq. 17). A linear layer has it
    as one product: the gradient of row n is x̂_nᵀ g_n, so its square is (x̂_n²)ᵀ g_n².
    """

    @staticmethod
    def forward(ctx: Any, n_terms: int, x: Tensor, M: Tensor, log_S: Tensor, noise: Tensor) -> Tensor:
        S = log_S.exp()
        W = M + S * noise
        ctx.n_terms = n_terms
        ctx.save_for_backward(x, S, W)
        return x @ W

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, S, W = ctx.saved_tensors
        # the objective is a mean of n terms, so g holds a term's gradient over n: n Σ g² is the mean of the squares
        squares = ctx.n_terms * (x.square().mT @ g.square())
        g_log_S = S.square() * squares  # ½ squares for S², and dS²/d log S = 2S²
        return None, g @ W.mT, x.mT @ g, g_log_S, None


def empirical_kl(M: Tensor, log_S: Tensor) -> Tensor:
    """KL to the Gaussian prior of all weights of the layer that makes it smallest (Graves 2011, eq. 20).

    Its mean is μ = mean(M) and its variance σ² = mean(S² + (M − μ)²); what is left is Σ log(σ/S).
    """
    centred = M - M.mean((-2, -1), keepdim=True)
    variance = ((2 * log_S).exp() + centred.square()).mean((-2, -1))
    size = M.shape[-2] * M.shape[-1]
    return 0.5 * size * variance.log() - log_S.sum((-2, -1))


class GravesLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²) with one draw of W for all rows of a batch and the biased estimator of Graves (2011).

    The objective must be a mean over the rows of the batch, as :func:`vmg.elbo` is, and over samples.
    Differs from Graves: each layer has a prior of its own.
    """

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        leading = (*sample_shape, *self.batch_shape)
        shape = (*leading, *self.loc.shape[-2:])
        x = x.expand(*leading, *x.shape[-2:])
        n_terms = math.prod(sample_shape) * x.shape[-2]
        return _GravesProduct.apply(
            n_terms, x, self.loc.expand(shape), self.log_scale.expand(shape), self.draw_noise(*shape)
        )

    def kl_divergence(self) -> Tensor:
        return empirical_kl(self.loc, self.log_scale)

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weights from the Gaussian that :func:`empirical_kl` measures against."""
        with torch.no_grad():
            mean = self.loc.mean((-2, -1), keepdim=True)
            variance = ((2 * self.log_scale).exp() + (self.loc - mean).square()).mean((-2, -1), keepdim=True)
            return mean + variance.sqrt() * self.draw_noise(*sample_shape, *self.loc.shape)
