"""A softmax output layer with Gaussian weights W [D, K], at the optimum of its variational bound.

No closed form integrates a softmax layer out, so its weights keep a variational posterior whose natural parameters are
sums over rows (conjugate-computation VI, Khan & Lin 2017). With p = E_q softmax(φᵀW) there are two families:

*One row covariance*, q(W) = MN(M, S, I) under the prior MN(0, diag(a)⁻¹, I): with h the mean over classes of p(1 − p),

    S⁻¹ = A = diag(a) + Σ ω h φφᵀ,        M = diag(a)⁻¹ Σ ω φ (y − p)ᵀ.

The first equation is exact for a given p. The second is solved by steps that cannot overshoot (Böhning's bound on the
curvature, 1992). Given q, hidden layers get the gradient of the bound at a fixed q: ω(y − p)Mᵀ − ω K h ΦS. This family
is cheap enough for every step of a training loop.

*One covariance of all weights*, vec W ~ N(vec M, Σ) under the prior N(0, I ⊗ diag(a)⁻¹): with means over q,

    Σ⁻¹ = I ⊗ diag(a) + Σ ω E[diag p − ppᵀ] ⊗ φφᵀ,        diag(a) M = Σ ω φ E[y − p]ᵀ.

Means over q come from draws of W. Beside Hamiltonian Monte Carlo, standard deviations of logits are 3 to 6 % too small.
For many weights the sum over rows is replaced by a Kronecker product with the same partial traces over features and
over classes: q is then the matrix Gaussian MN(M, U, V) in the eigenbasis of its factors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vmg.math.evidence import GaussianWeights
from vmg.math.linalg import cholesky

__all__ = [
    "ClassRows",
    "Curvature",
    "JointCurvature",
    "JointWeights",
    "KroneckerCurvature",
    "KroneckerWeights",
    "SoftmaxPosterior",
    "class_posterior",
    "expected_curvature",
    "expected_log_likelihood",
    "improve",
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
    variance. Off by a few hundredths for two classes, but by 0.1 to 0.3 for ten to fifty classes at the variance 4.
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


class _SoftmaxObjective(torch.autograd.Function):
    """The objective of one set of rows at a fixed q, with its gradient written out."""

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


def softmax_objective(
    features: Tensor,
    labels: Tensor,
    prior_precision: Tensor,
    posterior: SoftmaxPosterior,
    weight: Tensor,
    spread: Tensor | None = None,
) -> Tensor:
    """Σ ω log E_q softmax(φᵀW)_y − KL(q ‖ prior), [...]; see the module for the gradient it passes on.

    This is no bound: its first term is the log of a mean, which lies above the bound's mean of a log. The gradient is
    the bound's.
    ``spread`` is ΦS where the caller has it already.
    """
    if spread is None:
        spread = features.detach() @ posterior.covariance
    return _SoftmaxObjective.apply(features, prior_precision, posterior, spread, labels, weight)


MOST_JOINT = 1_500  # D·K up to which one covariance of all weights is kept: 18 MB, and a Cholesky factor in 0.1 s
MOST_CLASSES = 2_048  # up to which classes correlate in the Kronecker form: K×K numbers
CHUNK = 2**22  # probabilities in memory at once, of all draws and classes


class ClassRows(NamedTuple):
    """Rows to condition on: features Φ [N, D], classes y [N], and weights ω [N] in the precision of the features."""

    features: Tensor
    y: Tensor
    weight: Tensor


class JointCurvature(NamedTuple):
    """Σ ω E[diag p − ppᵀ] ⊗ φφᵀ as it is, [K, D, K, D]; sums of two sets of rows add up."""

    matrix: Tensor

    def times(self, weights: Tensor) -> Tensor:
        """The curvature times weights [D, K]."""
        return torch.tensordot(self.matrix, weights.mT, 2).mT

    def traces(self) -> KroneckerCurvature:
        """The Kronecker form with the same two partial traces."""
        rows = self.matrix.diagonal(dim1=0, dim2=2).sum(-1)
        return KroneckerCurvature(rows, self.matrix.diagonal(dim1=1, dim2=3).sum(-1))


class KroneckerCurvature(NamedTuple):
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

    def traces(self) -> KroneckerCurvature:
        """Itself."""
        return self


Curvature = JointCurvature | KroneckerCurvature


@dataclass(frozen=True)
class JointWeights:
    """W ~ N(M, Σ) with one covariance of all weights: ``root``, the lower Cholesky factor of Σ⁻¹ [KD, KD]."""

    mean: Tensor
    root: Tensor

    def deviations(self, noise: Tensor) -> Tensor:
        """Σ^½ times standard normal noise [S, D, K]: draws of W around M."""
        flat = noise.mT.flatten(1).mT  # [KD, S]
        drawn = torch.linalg.solve_triangular(self.root.mT, flat, upper=True)
        return drawn.mT.unflatten(1, self.mean.mT.shape).mT

    def class_covariances(self) -> Tensor:
        """The covariance of each class's weights, [K, D, D]."""
        n_features, n_classes = self.mean.shape
        whole = torch.cholesky_inverse(self.root).view(n_classes, n_features, n_classes, n_features)
        return whole.diagonal(dim1=0, dim2=2).movedim(-1, 0)

    def feature_variances(self) -> Tensor:
        """Variances of a feature's weights, summed over classes, [D]."""
        return torch.cholesky_inverse(self.root).diagonal().view(self.mean.mT.shape).sum(0)

    def sample_logits(self, features: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draws of the logits [S, N, K] at rows; each has one set of weights."""
        noise = _noise((n_samples, *self.mean.shape), self.mean, generator)
        return features @ (self.mean + self.deviations(noise)).to(features.dtype)


@dataclass(frozen=True)
class KroneckerWeights:
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
        directions = self.scale * self.directions
        return (directions * self._class_variances().mT.unsqueeze(-2)) @ directions.mT

    def _class_variances(self) -> Tensor:
        """Variances [D, K] of each class in each direction."""
        return self.variance if self.class_directions is None else self.variance @ self.class_directions.mT.square()

    def feature_variances(self) -> Tensor:
        """Variances of a feature's weights, summed over classes, [D]."""
        return (self.scale * self.directions).square() @ self.variance.sum(-1)

    def sample_logits(self, features: Tensor, n_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draws of the logits [S, N, K] at rows, each row with noise of its own: no set of weights is kept."""
        inside = features @ (self.scale * self.directions).to(features.dtype)
        spread = inside.square() @ self.variance.to(features.dtype)
        noise = _noise((n_samples, len(features), self.mean.shape[1]), features, generator)
        return features @ self.mean.to(features.dtype) + self._to_classes(noise * spread.sqrt())


def _noise(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=like.device)


def class_posterior(mean: Tensor, prior_precision: Tensor, curvature: Curvature) -> JointWeights | KroneckerWeights:
    """q(W) around M [D, K] from the prior's precisions a [D] and the curvature of rows."""
    if isinstance(curvature, JointCurvature):
        size = mean.numel()
        precision = curvature.matrix.reshape(size, size) + torch.diag(prior_precision.repeat(mean.shape[1]))
        return JointWeights(mean, cholesky(precision))
    inverse_root = prior_precision.rsqrt()
    scaled = inverse_root[:, None] * curvature.rows * inverse_root
    lengths, directions = torch.linalg.eigh(scaled / curvature.rows.trace().clamp_min(1e-300))
    if curvature.classes.dim() == 1:
        of_classes, class_directions = curvature.classes, None
    else:
        of_classes, class_directions = torch.linalg.eigh(curvature.classes)
    variance = 1 / (1 + torch.outer(lengths.clamp_min(0.0), of_classes.clamp_min(0.0)))
    return KroneckerWeights(mean, inverse_root[:, None], directions, class_directions, variance)


def _chunks(rows: ClassRows, draws: Tensor) -> Iterator[tuple[ClassRows, Tensor]]:
    """Rows in pieces with the log probabilities [S, n, K] of each set of weights [S, D, K]."""
    size = max(1, CHUNK // (len(draws) * draws.shape[-1]))
    for start in range(0, len(rows.y), size):
        piece = ClassRows(*(part[start : start + size] for part in rows))
        yield piece, torch.log_softmax(piece.features @ draws, -1)


def expected_log_likelihood(rows: ClassRows, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over drawn weights [S, D, K] of Σ ω log softmax(φᵀW)_y, and its gradient [D, K] by their centre."""
    value, gradient = draws.new_zeros(()), torch.zeros_like(draws[0])
    for piece, log_p in _chunks(rows, draws):
        own = log_p.mean(0).gather(-1, piece.y.unsqueeze(-1)).squeeze(-1)
        residual = -log_p.exp().mean(0)
        residual.scatter_add_(-1, piece.y.unsqueeze(-1), torch.ones_like(residual[:, :1]))
        value = value + (piece.weight * own).sum()
        gradient = gradient + (piece.features * piece.weight.unsqueeze(-1)).mT @ residual
    return value, gradient


def expected_curvature(rows: ClassRows, draws: Tensor, *, joint: bool) -> Curvature:
    """Mean over drawn weights [S, D, K] of the rows' curvature, in double precision."""
    n_features, n_classes = draws.shape[1:]
    wide = n_classes > MOST_CLASSES
    total: Curvature
    if joint:
        total = JointCurvature(draws.new_zeros(n_classes, n_features, n_classes, n_features, dtype=torch.float64))
    else:
        classes = (n_classes,) if wide else (n_classes, n_classes)
        sizes = (n_features, n_features), classes
        total = KroneckerCurvature(*(draws.new_zeros(size, dtype=torch.float64) for size in sizes))
    for piece, log_p in _chunks(rows, draws):
        p = log_p.exp()
        if isinstance(total, JointCurvature):
            _add_joint(total.matrix, piece, p)
            continue
        phi, mean = piece.features, p.mean(0)
        variance = mean - p.square().mean(0)  # of each class's indicator, less that of its probability
        norm = (piece.weight * phi.square().sum(-1)).unsqueeze(-1)
        total.rows.add_((phi * (piece.weight * variance.sum(-1)).unsqueeze(-1)).mT @ phi)
        if wide:
            total.classes.add_((norm * variance).sum(0))
        else:
            second = ((p * norm).mT @ p).mean(0)
            total.classes.add_(torch.diag((norm * mean).sum(0)) - second)
    return total


def _add_joint(total: Tensor, rows: ClassRows, p: Tensor) -> None:
    phi, weight = rows.features, rows.weight
    mean, n_classes = p.mean(0), p.shape[-1]
    for k in range(n_classes):
        for m in range(k, n_classes):
            both = (p[..., k] * p[..., m]).mean(0)
            value = mean[:, k] - both if k == m else -both
            gram = (phi * (weight * value).unsqueeze(-1)).mT @ phi
            total[k, :, m] += gram
            if k != m:
                total[m, :, k] += gram
