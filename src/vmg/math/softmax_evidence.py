"""A softmax output layer with Gaussian weights W [D, K], at the optimum of its variational bound.

No closed form integrates a softmax layer out, so its weights keep a variational posterior whose natural parameters are
sums over rows (conjugate-computation VI, Khan & Lin 2017). With p = E_q softmax(φᵀW) there are two families:

*One row covariance*, q(W) = MN(M, S, I) under the prior MN(0, diag(a)⁻¹, I): with h the mean over classes of p(1 − p),

    S⁻¹ = A = diag(a) + Σ ω h φφᵀ,        M = diag(a)⁻¹ Σ ω φ (y − p)ᵀ.

The first equation is exact for a given p. The second is solved by steps that cannot overshoot (Böhning's bound on the
curvature, 1992). Given q, hidden layers get the gradient of the bound at a fixed q: ω(y − p)Mᵀ − ω K h ΦS. This family
is cheap enough for every step of a training loop.

*One covariance a class*, w_k ~ N(m_k, S_k) under the prior N(m⁰_k, P_k⁻¹):

    S_k⁻¹ = P_k + Σ ω p_k(1 − p_k) φφᵀ,        P_k(m_k − m⁰_k) = Σ ω φ(y_k − p_k).

It costs K times as much. A shared covariance averages p_k(1 − p_k) over the classes, which loses the uncertainty of
directions in which few rows of *one* class decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.math.evidence import GaussianWeights
from vmg.math.linalg import cholesky

__all__ = [
    "ClassRows",
    "ClassWeights",
    "SoftmaxPosterior",
    "class_probabilities",
    "improve",
    "improve_classes",
    "mean_probabilities",
    "softmax_objective",
    "step_mean",
]


@dataclass(frozen=True)
class SoftmaxPosterior(GaussianWeights):
    """q(W) = MN(M, S, I): ``mean`` M [..., D, K] and ``root``, the lower Cholesky factor of A = S⁻¹ [..., D, D].

    ``majorant`` is the factor of the bound on the curvature that steps of the mean were taken with.
    """

    majorant: Tensor | None = None

    def variance(self, features: Tensor) -> Tensor:
        """φᵀSφ of each row, [..., N]: the variance of every logit."""
        return ((features @ self.covariance) * features).sum(-1).clamp_min(0.0)


def mean_probabilities(logits: Tensor, variance: Tensor) -> Tensor:
    """E softmax of Gaussian logits [..., N, K] with one variance a row [..., N], by the probit approximation.

    softmax(f/√(1 + πv/4)): for two classes the probit approximation of MacKay (1992), their difference having twice the
    variance; off by a few hundredths at most.
    """
    return torch.softmax(logits / _logit_divisor(variance).unsqueeze(-1), -1)


def _logit_divisor(variance: Tensor) -> Tensor:
    """√(1 + πv/4), by which the probit approximation divides a logit of variance v."""
    return (1 + math.pi / 4 * variance).sqrt()


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
    variance: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    weight: Tensor,
) -> SoftmaxPosterior:
    """Take one step of the mean M and leave S as it is: right while features have moved little.

    ``variance`` [..., N] of the logits costs more than all the rest, and may be that of a step before.
    """
    assert posterior.majorant is not None
    p = mean_probabilities(features @ posterior.mean, variance)
    pull = features.mT @ ((labels - p) * weight.unsqueeze(-1)) - prior_precision.unsqueeze(-1) * posterior.mean
    moved = replace(posterior, mean=posterior.mean + torch.cholesky_solve(pull, posterior.majorant))
    moved.__dict__["covariance"] = posterior.covariance  # the same S
    return moved


class _SoftmaxObjective(torch.autograd.Function):
    """The objective of one set of rows at a fixed q, with its gradient written out."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        prior_precision: Tensor,
        posterior: SoftmaxPosterior,
        variance: Tensor,
        labels: Tensor,
        weight: Tensor,
        some: slice,
    ) -> Tensor:
        mean, covariance = posterior.mean, posterior.covariance
        n_classes = labels.shape[-1]
        p = mean_probabilities(features @ mean, variance)
        fit = (weight * (labels * p.clamp_min(1e-30).log()).sum(-1)).sum(-1)
        diagonal = covariance.diagonal(dim1=-2, dim2=-1)
        logdet = prior_precision.log().sum(-1) - 2 * posterior.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        trace = (prior_precision * diagonal).sum(-1) - prior_precision.shape[-1]
        mahalanobis = (prior_precision.unsqueeze(-1) * mean.square()).sum((-2, -1))
        kl = 0.5 * (n_classes * (trace - logdet) + mahalanobis)
        pull = ((labels - p) * weight.unsqueeze(-1)) @ mean.mT
        part = p[..., some, :]
        curvature = (part * (1 - part)).sum(-1) * weight[..., some] * (p.shape[-2] / part.shape[-2])
        pull[..., some, :] -= curvature.unsqueeze(-1) * (features[..., some, :] @ covariance)
        of_precision = 0.5 * (n_classes * (1 / prior_precision - diagonal) - mean.square().sum(-1))
        ctx.save_for_backward(pull, of_precision)
        return fit - kl

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_features, of_precision = ctx.saved_tensors
        (outer,) = gradients
        return of_features * outer[..., None, None], of_precision * outer[..., None], *(None,) * 5


def softmax_objective(
    features: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    posterior: SoftmaxPosterior,
    weight: Tensor,
    variance: Tensor | None = None,
    some: slice = slice(None),
) -> Tensor:
    """Σ ω log E_q softmax(φᵀW)_y − KL(q ‖ prior), [...]; see the module for the gradient it passes on.

    This is no bound: its first term is the log of a mean, which lies above the bound's mean of a log. The gradient is
    the bound's. ``variance`` [..., N] of the logits may be that of features that have moved little since. In the
    gradient, the term −ω K h ΦS of ``some`` rows may stand for that of all: it takes most of the time.
    """
    if variance is None:
        variance = posterior.variance(features.detach())
    return _SoftmaxObjective.apply(features, prior_precision, posterior, variance, labels, weight, some)


LEAST_CURVATURE = 0.02  # the most that 2p(1 − p) can be is 0.5


@dataclass(frozen=True)
class ClassWeights(GaussianWeights):
    """w_k ~ N(m_k, S_k): ``mean`` [D, K] and ``root``, lower Cholesky factors of the precisions S_k⁻¹, [K, D, D]."""

    def variance(self, features: Tensor) -> Tensor:
        """φᵀS_kφ of each row and class, [N, K], in the precision of the features."""
        covariance = self.covariance.to(features.dtype)
        return torch.stack([((features @ S) * features).sum(-1) for S in covariance], -1).clamp_min(0.0)

    def weight_noise(self, noise: Tensor) -> Tensor:
        """S_k^½ times standard normal noise [..., D, K]: a draw of W around M."""
        return torch.linalg.solve_triangular(self.root.mT, noise.mT.unsqueeze(-1), upper=True).squeeze(-1).mT


def class_probabilities(logits: Tensor, variance: Tensor) -> Tensor:
    """E softmax of independent Gaussian logits, with means and variances [N, K], by the probit approximation.

    softmax(f_k/√(1 + πv_k/4)) of centred logits, as :func:`mean_probabilities` has it for one variance a row.
    """
    centred = logits - logits.mean(-1, keepdim=True)
    return torch.softmax(centred / _logit_divisor(variance), -1)


class ClassRows(NamedTuple):
    """Rows to condition on: features Φ [N, D], labels [N, K] that are one-hot, and weights ω [N].

    Their precision is that of all sums over rows. Means and precisions of weights should have double precision.
    """

    features: Tensor
    labels: Tensor
    weight: Tensor


def improve_classes(
    mean: Tensor,
    curvature: Tensor,
    rows: ClassRows,
    prior_mean: Tensor,
    prior_precision: Tensor,
    *,
    n_rounds: int,
    n_steps: int,
) -> tuple[Tensor, Tensor]:
    """Go on from means M [D, K] and the rows' curvatures [K, D, D], ``n_rounds`` times; gives both.

    A round takes ``n_steps`` of the means (none keeps them), then moves the curvatures half way to what these ask for.
    Whole steps swing: wide weights flatten the probabilities, whose larger curvature makes the weights narrow.
    """
    for _ in range(n_rounds):
        variance = ClassWeights(mean, cholesky(prior_precision + curvature)).variance(rows.features)
        mean = _step_means(mean, variance, rows, prior_mean, prior_precision, n_steps) if n_steps else mean
        p = class_probabilities(rows.features @ mean.to(variance.dtype), variance)
        curvature = curvature.lerp(_weighted_grams(rows.features, rows.weight.unsqueeze(-1) * p * (1 - p)), 0.5)
    return mean, curvature


def _step_means(
    mean: Tensor, variance: Tensor, rows: ClassRows, prior_mean: Tensor, prior_precision: Tensor, n_steps: int
) -> Tensor:
    """Steps of M towards its optimum at a fixed variance [N, K] of the logits.

    They divide by P_k + Σ ω 2h_k φφᵀ, with h_k the derivative of p_k by its logit. Twice that of a class is at least
    that of all classes together (Gershgorin's circles). Rows that are certain count with ``LEAST_CURVATURE``, for
    theirs grows on the way.
    """
    features, labels, weight = rows.features, rows.labels, rows.weight.unsqueeze(-1)
    p = class_probabilities(features @ mean.to(variance.dtype), variance)
    bound = (2 * p * (1 - p) / _logit_divisor(variance)).clamp_min(LEAST_CURVATURE) * weight
    majorant = cholesky(prior_precision + _weighted_grams(features, bound))  # [K, D, D]
    for _ in range(n_steps):
        shrink = (prior_precision @ (mean - prior_mean).mT.unsqueeze(-1)).squeeze(-1)  # [K, D]
        pull = ((weight * (labels - p)).mT @ features).to(mean.dtype) - shrink
        mean = mean + torch.cholesky_solve(pull.unsqueeze(-1), majorant).squeeze(-1).mT
        p = class_probabilities(features @ mean.to(variance.dtype), variance)
    return mean


def _weighted_grams(features: Tensor, weights: Tensor) -> Tensor:
    """Σ_n w_nk φ_n φ_nᵀ of each column of weights [N, K], [K, D, D]; one at a time, for memory."""
    return torch.stack([(features * w.unsqueeze(-1)).mT @ features for w in weights.unbind(-1)]).double()
