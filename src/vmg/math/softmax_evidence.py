"""A softmax output layer with Gaussian weights W [D, K], at the optimum of its variational bound.

No closed form integrates a softmax layer out, so its weights keep a variational posterior whose natural parameters are
sums over rows (conjugate-computation VI, Khan & Lin 2017). With p = E_q softmax(φᵀW) there are two families:

*One row covariance*, q(W) = MN(M, S, I) under the prior MN(0, diag(a)⁻¹, I): with h the mean over classes of p(1 − p),

    S⁻¹ = A = diag(a) + Σ ω h φφᵀ,        M = diag(a)⁻¹ Σ ω φ (y − p)ᵀ.

At the optimum of the bound h has E_q[p(1 − p)] of the drawn p, which is smaller than p(1 − p) at their mean: S is
somewhat too narrow. Features learned with the smaller one had a larger log loss (``lab/README.md``), and ensembles
learn a factor of their variances from held-out rows. The second equation is solved by steps that cannot overshoot
(Böhning's bound on the curvature, 1992). Given q, hidden layers get the gradient of the bound at a fixed q: ω(y − p)Mᵀ
− ω K h ΦS. This family is cheap enough for every step of a training loop.

*Two covariances*, W ~ MN(M, U, V) in the eigenbasis of its factors, under the prior N(0, I ⊗ diag(a)⁻¹). The optimum
has, with means over q,

    Σ⁻¹ = I ⊗ diag(a) + Σ ω E[diag p − ppᵀ] ⊗ φφᵀ,        diag(a) M = Σ ω φ E[y − p]ᵀ,

and the sum over rows is replaced by a Kronecker product with the same partial traces over features and over classes.
Means over q come from draws of W. Beside Hamiltonian Monte Carlo, standard deviations of logits are 5 to 8 % too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.math.evidence import GaussianWeights
from vmg.math.linalg import cholesky

__all__ = [
    "ClassRows",
    "ClassWeights",
    "Curvature",
    "SoftmaxPosterior",
    "class_posterior",
    "expected_curvature",
    "expected_log_likelihood",
    "improve",
    "mean_probabilities",
    "softmax_step",
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
    variance. Off by a few hundredths for two classes, but by 0.1 to 0.3 for ten to fifty classes at the variance 4.
    """
    return torch.softmax(logits / _logit_divisor(variance).unsqueeze(-1), -1)


def _logit_divisor(variance: Tensor) -> Tensor:
    """√(1 + πv/4), by which the probit approximation divides a logit of variance v."""
    return (1 + math.pi / 4 * variance).sqrt()


# Below, few classes of many rows are [..., K, N]: a softmax over a last axis of few numbers takes thirty times as long,
# and a product of features with few columns five times.


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
    offset = offset.mT if isinstance(offset, Tensor) else offset
    divisor, targets = _logit_divisor(variance).unsqueeze(-2), labels.mT
    for step in range(n_steps + 1):
        p = torch.softmax((mean.mT @ features.mT + offset) / divisor, -2)  # [..., K, N]
        if step < n_steps:
            pull = ((targets - p) @ weighted).mT - prior_precision.unsqueeze(-1) * mean
            mean = mean + torch.cholesky_solve(pull, majorant)
    curvature = (p * (1 - p)).mean(-2)
    root = cholesky(diagonal + (weighted * curvature.unsqueeze(-1)).mT @ features)
    return SoftmaxPosterior(mean, root, majorant)


class RowSpread(NamedTuple):
    """ΦS and φᵀSφ of rows whose first H features learn: what the others add to them, and S of the first.

    ``learned`` is S [..., H, H]; ``cross`` are the other features of the rows times S [..., N, H], ``rest`` is the
    variance of their part of a logit, [..., N].
    """

    learned: Tensor
    cross: Tensor
    rest: Tensor

    @classmethod
    def of(cls, posterior: SoftmaxPosterior, features: Tensor, n_learned: int) -> RowSpread:
        """At rows with these features [..., N, D]."""
        given, covariance = features[..., n_learned:], posterior.covariance
        cross = given @ covariance[..., n_learned:, :]
        rest = (cross[..., n_learned:] * given).sum(-1)
        return cls(covariance[..., :n_learned, :n_learned], cross[..., :n_learned], rest)

    def at(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The first H columns of ΦS [..., N, H], and φᵀSφ [..., N]."""
        learned = features[..., : self.learned.shape[-1]]
        spread = torch.baddbmm(self.cross, learned, self.learned)
        return spread, (learned * (spread + self.cross)).sum(-1) + self.rest


class _Fit(torch.autograd.Function):
    """A value [...] whose gradient by the features that learn [..., N, H] is given."""

    @staticmethod
    def forward(ctx: Any, learned: Tensor, value: Tensor, pull: Tensor) -> Tensor:
        ctx.save_for_backward(pull)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (pull,) = ctx.saved_tensors
        return pull * gradients[0][..., None, None], None, None


def softmax_step(
    posterior: SoftmaxPosterior,
    features: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    weight: Tensor,
    rows: RowSpread,
) -> tuple[SoftmaxPosterior, Tensor]:
    """Take one step of the mean M, S staying as it is, and give the objective there, [...].

    Its gradient by the features that learn is the bound's at a fixed q.
    """
    assert posterior.majorant is not None
    targets, counted, n_learned = labels.mT, weight.unsqueeze(-2), rows.learned.shape[-1]
    with torch.no_grad():
        spread, variance = rows.at(features)
        divisor = _logit_divisor(variance).unsqueeze(-2)
        p = torch.softmax(posterior.mean.mT @ features.mT / divisor, -2)
        uphill = (((targets - p) * counted) @ features).mT - prior_precision.unsqueeze(-1) * posterior.mean
        moved = replace(posterior, mean=posterior.mean + torch.cholesky_solve(uphill, posterior.majorant))
        moved.__dict__["covariance"] = posterior.covariance  # the same S
        p = torch.softmax(moved.mean.mT @ features.mT / divisor, -2)  # [..., K, N]
        fit = (targets * counted * p.clamp_min(1e-30).log()).sum((-2, -1))
        curvature = (p * (1 - p)).sum(-2) * weight
        learned = moved.mean[..., :n_learned, :]
        pull = torch.baddbmm(spread * -curvature.unsqueeze(-1), ((targets - p) * counted).mT, learned.mT)
    fit = _Fit.apply(features[..., :n_learned], fit, pull)
    return moved, fit - moved.divergence(prior_precision)


MOST_CLASSES = 2_048  # up to which classes correlate in the Kronecker form: K×K numbers
CHUNK = 2**22  # probabilities in memory at once, of all draws and classes


class ClassRows(NamedTuple):
    """Rows to condition on: features Φ [N, D], classes y [N], and weights ω [N] in the precision of the features."""

    features: Tensor
    y: Tensor
    weight: Tensor


class Curvature(NamedTuple):
    """A ⊗ B/tr A, known by the partial traces A [D, D] and B [K, K] (its diagonal [K] for very many classes).

    The partial traces are sums over rows, so those of two sets of rows add up. For one row, and wherever certainty and
    features are independent, this is the exact curvature.
    """

    rows: Tensor
    classes: Tensor

    def times(self, weights: Tensor) -> Tensor:
        """The curvature times weights [D, K]."""
        left = self.rows @ weights
        right = left * self.classes if self.classes.dim() == 1 else left @ self.classes
        return right / self.rows.trace().clamp_min(1e-300)


@dataclass(frozen=True)
class ClassWeights:
    """W ~ N(M, Σ), Σ⁻¹ = a^½ (I + Ã ⊗ B) a^½, by eigenvectors of Ã = a^-½ A a^-½ and of B.

    Parameters
    ----------
    mean : M [D, K]
    scale : a^-½, [D, 1]
    directions : eigenvectors of Ã, [D, D]
    class_directions : eigenvectors of B [K, K]; None where B is diagonal
    variance : (1 + λ_i μ_j)⁻¹, [D, K]
    """

    mean: Tensor
    scale: Tensor
    directions: Tensor
    class_directions: Tensor | None
    variance: Tensor

    def deviations(self, noise: Tensor) -> Tensor:
        """Σ^½ times standard normal noise [..., D, K]: draws of W around M.

        The symmetric root between a^-½: another basis of the same eigenvectors gives the same draws.
        """
        inside = self.directions.mT @ noise
        inside = inside if self.class_directions is None else inside @ self.class_directions
        return self.scale * (self.directions @ self._to_classes(inside * self.variance.sqrt()))

    def _to_classes(self, values: Tensor) -> Tensor:
        return values if self.class_directions is None else values @ self.class_directions.to(values.dtype).mT

    def class_covariances(self) -> Tensor:
        """The covariance of each class's weights, [K, D, D]."""
        directions, variance = self.scale * self.directions, self.variance  # [D, K] of each class in each direction
        if self.class_directions is not None:
            variance = variance @ self.class_directions.mT.square()
        return (directions * variance.mT.unsqueeze(-2)) @ directions.mT

    def feature_variances(self) -> Tensor:
        """Variances of a feature's weights, summed over classes, [D]."""
        return (self.scale * self.directions).square() @ self.variance.sum(-1)

    def sample_logits(self, features: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draws of the logits [S, N, K] at rows, each row with noise of its own: no set of weights is kept."""
        inside = features @ (self.scale * self.directions).to(features.dtype)
        spread = inside.square() @ self.variance.to(features.dtype)
        shape = n_samples, len(features), self.mean.shape[1]
        noise = torch.randn(shape, generator=generator, dtype=features.dtype, device=features.device)
        return features @ self.mean.to(features.dtype) + self._to_classes(noise * spread.sqrt())


def class_posterior(mean: Tensor, prior_precision: Tensor, curvature: Curvature) -> ClassWeights:
    """q(W) around M [D, K] from the prior's precisions a [D] and the curvature of rows."""
    inverse_root = prior_precision.rsqrt()
    scaled = inverse_root[:, None] * curvature.rows * inverse_root
    lengths, directions = torch.linalg.eigh(scaled / curvature.rows.trace().clamp_min(1e-300))
    if curvature.classes.dim() == 1:
        of_classes, class_directions = curvature.classes, None
    else:
        of_classes, class_directions = torch.linalg.eigh(curvature.classes)
    variance = 1 / (1 + torch.outer(lengths.clamp_min(0.0), of_classes.clamp_min(0.0)))
    return ClassWeights(mean, inverse_root[:, None], directions, class_directions, variance)


def _chunks(rows: ClassRows, draws: Tensor) -> Iterator[tuple[ClassRows, Tensor]]:
    """Rows in pieces with the log probabilities [S, K, n] of each set of weights [S, D, K]."""
    size = max(1, CHUNK // (len(draws) * draws.shape[-1]))
    for start in range(0, len(rows.y), size):
        piece = ClassRows(*(part[start : start + size] for part in rows))
        yield piece, torch.log_softmax(draws.mT @ piece.features.mT, -2)


def expected_log_likelihood(rows: ClassRows, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over drawn weights [S, D, K] of Σ ω log softmax(φᵀW)_y, and its gradient [D, K] by their centre."""
    value, gradient = draws.new_zeros(()), torch.zeros_like(draws[0])
    for piece, log_p in _chunks(rows, draws):
        own = log_p.mean(0).gather(0, piece.y.unsqueeze(0)).squeeze(0)
        residual = -log_p.exp_().mean(0)
        residual.scatter_add_(0, piece.y.unsqueeze(0), torch.ones_like(residual[:1]))
        value = value + (piece.weight * own).sum()
        gradient = gradient + ((residual * piece.weight) @ piece.features).mT
    return value, gradient


def expected_curvature(rows: ClassRows, draws: Tensor, *, alike: bool = False) -> Curvature:
    """Mean over drawn weights [S, D, K] of the rows' curvature, in double precision.

    With ``alike`` all rows have the mean curvature over classes, Σ ω φφᵀ ⊗ mean of (diag p − ppᵀ).
    """
    n_features, n_classes = draws.shape[1:]
    wide = n_classes > MOST_CLASSES
    classes = draws.new_zeros((n_classes,) if wide else (n_classes, n_classes), dtype=torch.float64)
    total = Curvature(draws.new_zeros(n_features, n_features, dtype=torch.float64), classes)
    for piece, log_p in _chunks(rows, draws):
        p = log_p.exp_()
        phi, mean = piece.features, p.mean(0)
        variance = mean - p.square().mean(0)  # of each class's indicator, less that of its probability
        of_rows = piece.weight if alike else piece.weight * variance.sum(0)
        of_classes = piece.weight if alike else piece.weight * phi.square().sum(-1)
        total.rows.add_((phi * of_rows.unsqueeze(-1)).mT @ phi)
        if wide:
            total.classes.add_(variance @ of_classes)
        else:
            total.classes.add_(torch.diag(mean @ of_classes) - ((p * of_classes) @ p.mT).mean(0))
    return total._replace(classes=classes * total.rows.trace() / rows.weight.sum()) if alike else total
