"""A softmax output layer whose weights are Gaussian class by class, w_k ~ N(m_k, S_k), at its optimum.

The prior is N(m⁰_k, P_k⁻¹) for each class. Natural parameters are sums over rows (conjugate computation, Khan & Lin
2017): with p = E_q softmax(φᵀW),

    S_k⁻¹ = P_k + Σ ω p_k(1 − p_k) φφᵀ,        P_k(m_k − m⁰_k) = Σ ω φ(y_k − p_k).

One covariance for all classes, as in :mod:`vmg.math.categorical_evidence`, averages p_k(1 − p_k) over them. It is
cheaper inside a training loop, but says too little of directions in which few rows of *one* class decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vmg.math.linalg import cholesky

__all__ = ["ClassRows", "ClassWeights", "class_probabilities", "improve_classes"]

LEAST_CURVATURE = 0.02  # the most that 2p(1 − p) can be is 0.5


@dataclass(frozen=True)
class ClassWeights:
    """q(W): ``mean`` [D, K] and ``root``, lower Cholesky factors of the precisions S_k⁻¹, [K, D, D]."""

    mean: Tensor
    root: Tensor

    @cached_property
    def covariance(self) -> Tensor:
        """S_k, [K, D, D]."""
        return torch.cholesky_inverse(self.root)

    def variance(self, features: Tensor) -> Tensor:
        """φᵀS_kφ of each row and class, [N, K], in the precision of the features."""
        covariance = self.covariance.to(features.dtype)
        return torch.stack([((features @ S) * features).sum(-1) for S in covariance], -1).clamp_min(0.0)

    def weight_noise(self, noise: Tensor) -> Tensor:
        """S_k^½ times standard normal noise [..., D, K]: a draw of W around M."""
        return torch.linalg.solve_triangular(self.root.mT, noise.mT.unsqueeze(-1), upper=True).squeeze(-1).mT


def class_probabilities(logits: Tensor, variance: Tensor) -> Tensor:
    """E softmax of independent Gaussian logits, with means and variances [N, K], by the probit approximation.

    softmax(f_k/√(1 + πv_k/4)) of centred logits, as :func:`vmg.math.categorical_evidence.mean_probabilities` has it for
    one variance a row.
    """
    centred = logits - logits.mean(-1, keepdim=True)
    return torch.softmax(centred * _flattening(variance), -1)


def _flattening(variance: Tensor) -> Tensor:
    return (1 + math.pi / 4 * variance).rsqrt()


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
    bound = (2 * p * (1 - p) * _flattening(variance)).clamp_min(LEAST_CURVATURE) * weight
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
