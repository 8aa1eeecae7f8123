"""A softmax output layer with a matrix Gaussian posterior MN(M, S, I) over its weights, at its optimum.

No closed form integrates a softmax layer out, so its weights W [D, K] keep a variational posterior q(W) = MN(M, S, I)
with a dense row covariance S, under the prior MN(0, diag(a)⁻¹, I). Natural parameters are sums over rows (conjugate
computation, Khan & Lin 2017): with p = E_q softmax(φᵀW) and h the mean over classes of E_q[p(1 − p)],

    S⁻¹ = A = diag(a) + Σ ω h φφᵀ,        M = diag(a)⁻¹ Σ ω φ (y − p)ᵀ.

The first line is exact for a given p. The second is solved by steps that cannot overshoot (Böhning's bound on the
curvature, 1992). Given q, hidden layers get the gradient of the bound at a fixed q: ω(y − p)Mᵀ − ω K h ΦS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vmg.math.linalg import cholesky

__all__ = ["SoftmaxPosterior", "improve", "mean_probabilities", "softmax_bound", "step_mean"]


@dataclass(frozen=True)
class SoftmaxPosterior:
    """q(W) = MN(M, S, I): ``mean`` M [..., D, K] and ``root``, the lower Cholesky factor of A = S⁻¹ [..., D, D].

    ``majorant`` is the factor of the bound on the curvature that steps of the mean were taken with.
    """

    mean: Tensor
    root: Tensor
    majorant: Tensor | None = None

    @cached_property
    def covariance(self) -> Tensor:
        """S, [..., D, D]."""
        return torch.cholesky_inverse(self.root)

    def variance(self, features: Tensor) -> Tensor:
        """φᵀSφ of each row, [..., N]: the variance of every logit."""
        return ((features @ self.covariance) * features).sum(-1).clamp_min(0.0)

    def weight_noise(self, noise: Tensor) -> Tensor:
        """S^½ times standard normal noise [..., D, K]: a draw of W around M."""
        return torch.linalg.solve_triangular(self.root.mT, noise, upper=True)


def mean_probabilities(logits: Tensor, variance: Tensor) -> Tensor:
    """E softmax of Gaussian logits [..., N, K] with one variance a row [..., N], by the probit approximation.

    softmax(f/√(1 + πv/4)): for two classes the probit approximation of MacKay (1992), their difference having twice the
    variance; off by a few hundredths at most.
    """
    return torch.softmax(logits / (1 + math.pi / 4 * variance.unsqueeze(-1)).sqrt(), -1)


def improve(
    posterior: SoftmaxPosterior | None,
    features: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    weight: Tensor,
    n_steps: int,
    *,
    offset: Tensor | float = 0.0,
) -> SoftmaxPosterior:
    """Take ``n_steps`` of the mean M, then set S for it; from None it starts at M = 0.

    Args:
        features: Φ [..., N, D]; labels: one-hot [N, K]; prior_precision: a [..., D]; weight: ω [..., N].
        offset: added to the logits, [..., N, K].
    """
    weighted = features * weight.unsqueeze(-1)
    diagonal = torch.diag_embed(prior_precision)
    majorant = cholesky(diagonal + 0.5 * (weighted.mT @ features))  # ½ bounds the curvature of every logit
    if posterior is None:
        mean = features.new_zeros(*features.shape[:-2], features.shape[-1], labels.shape[-1])
        variance = features.new_zeros(features.shape[:-1])
    else:
        mean, variance = posterior.mean, posterior.variance(features)
    shrink = prior_precision.unsqueeze(-1)
    p = mean_probabilities(features @ mean + offset, variance)
    for _ in range(n_steps):
        mean = mean + torch.cholesky_solve(weighted.mT @ (labels - p) - shrink * mean, majorant)
        p = mean_probabilities(features @ mean + offset, variance)
    curvature = (p * (1 - p)).mean(-1)
    root = cholesky(diagonal + (weighted * curvature.unsqueeze(-1)).mT @ features)
    return SoftmaxPosterior(mean, root, majorant)


def step_mean(
    posterior: SoftmaxPosterior,
    features: Tensor,
    spread: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    weight: Tensor,
) -> SoftmaxPosterior:
    """Take one step of the mean M and leave S as it is: right while features have moved little.

    ``spread`` is ΦS, which costs more than all the rest.
    """
    assert posterior.majorant is not None
    p = mean_probabilities(features @ posterior.mean, (spread * features).sum(-1))
    pull = (features * weight.unsqueeze(-1)).mT @ (labels - p) - prior_precision.unsqueeze(-1) * posterior.mean
    moved = replace(posterior, mean=posterior.mean + torch.cholesky_solve(pull, posterior.majorant))
    moved.__dict__["covariance"] = posterior.covariance  # the same S
    return moved


class _SoftmaxBound(torch.autograd.Function):
    """The bound of one set of rows at a fixed q, with its gradient written out."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        prior_precision: Tensor,
        posterior: SoftmaxPosterior,
        spread: Tensor,
        labels: Tensor,
        weight: Tensor,
    ) -> Tensor:
        mean, covariance = posterior.mean, posterior.covariance
        n_classes = labels.shape[-1]
        p = mean_probabilities(features @ mean, (spread * features).sum(-1))
        fit = (weight * (labels * p.clamp_min(1e-30).log()).sum(-1)).sum(-1)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        logdet = prior_precision.log().sum(-1) - 2 * posterior.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        trace = (prior_precision * diagonal).sum(-1) - prior_precision.shape[-1]
        mahalanobis = (prior_precision.unsqueeze(-1) * mean.square()).sum((-2, -1))
        kl = 0.5 * (n_classes * (trace - logdet) + mahalanobis)
        curvature = (p * (1 - p)).sum(-1)
        pull = (labels - p) @ mean.mT - curvature.unsqueeze(-1) * spread
        of_precision = 0.5 * (n_classes * (1 / prior_precision - diagonal) - mean.square().sum(-1))
        ctx.save_for_backward(pull * weight.unsqueeze(-1), of_precision)
        return fit - kl

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_features, of_precision = ctx.saved_tensors
        (outer,) = gradients
        return of_features * outer[..., None, None], of_precision * outer[..., None], None, None, None, None


def softmax_bound(
    features: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    posterior: SoftmaxPosterior,
    weight: Tensor,
    spread: Tensor | None = None,
) -> Tensor:
    """Σ ω log E_q softmax(φᵀW)_y − KL(q ‖ prior), [...]; see the module for the gradient it passes on.

    The first term is the log of a mean, which lies above the bound's mean of a log; the gradient is the bound's.
    ``spread`` is ΦS where the caller has it already.
    """
    if spread is None:
        spread = features.detach() @ posterior.covariance
    return _SoftmaxBound.apply(features, prior_precision, posterior, spread, labels, weight)
