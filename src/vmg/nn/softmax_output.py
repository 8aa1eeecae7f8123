"""A softmax output layer with a matrix Gaussian posterior MN(M, A⁻¹, I) over its weights, at its optimum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vmg.math.categorical_evidence import SoftmaxPosterior, improve
from vmg.math.evidence import group_precision
from vmg.math.linalg import cholesky

__all__ = ["SoftmaxOutput"]

MEAN_STEPS = 40  # of the mean, twice: first with the curvature at no variance, then at the posterior's own
PRECISION_STEPS = 15  # fixed-point steps of the prior's precisions; each is a closed form at the present posterior


class SoftmaxOutput(nn.Module):
    """y ~ Categorical(softmax ΦW) with W ~ MN(M, A⁻¹, I) given the rows seen; Φ are features of rows.

    Rows that come later are conditioned on with this posterior as their prior. That is not exact, as it is for Gaussian
    noise: what earlier rows say is kept as a Gaussian.

    Parameters
    ----------
    group_sizes : sequence of int
        Consecutive features with a prior precision of their own.
    n_outputs : int
        Number of classes.
    """

    mean: Tensor
    precision: Tensor
    count: Tensor

    def __init__(self, group_sizes: Sequence[int], n_outputs: int) -> None:
        super().__init__()
        self.group_sizes, self.n_outputs = tuple(group_sizes), n_outputs
        self.log_precision = nn.Parameter(torch.zeros(len(self.group_sizes)))
        d = sum(self.group_sizes)
        for name, shape in (("mean", (d, n_outputs)), ("precision", (d, d)), ("count", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.forget()

    def prior_precision(self) -> Tensor:
        """a [D] of the prior MN(0, diag(a)⁻¹, I)."""
        return group_precision(self.log_precision, self.group_sizes)

    @torch.no_grad()
    def forget(self) -> None:
        """Go back to before any rows were seen."""
        self.mean.zero_()
        self.precision.copy_(torch.diag(self.prior_precision()))
        self.count.zero_()

    @torch.no_grad()
    def update(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Condition on more rows, what was seen before being their prior."""
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(f"y must be integer classes, one per row; got shape {tuple(y.shape)} of {y.dtype}")
        features = features.double()
        weight = torch.ones_like(features[:, 0]) if weight is None else weight.double()
        labels = F.one_hot(y, self.n_outputs).double()
        # with A = LLᵀ the change of W is L⁻ᵀ times one whose prior is MN(0, I, I), for features ΦL⁻ᵀ
        root = cholesky(self.precision)
        white = torch.linalg.solve_triangular(root, features.mT, upper=False).mT
        ones, offset = torch.ones_like(white[0]), features @ self.mean
        found = None
        for _ in range(2):
            found = improve(found, white, labels, ones, weight, MEAN_STEPS, offset=offset)
        assert found is not None
        self.mean += torch.linalg.solve_triangular(root.mT, found.mean, upper=True)
        new_root = root @ found.root
        self.precision.copy_(new_root @ new_root.mT)
        self.count += weight.sum()

    @torch.no_grad()
    def learn_precision(self, features: Tensor, y: Tensor) -> None:
        """Choose the prior's precisions by the bound on the evidence of these rows, and condition on them.

        At the optimum the precision of a group with n features is a = (nK − aK Σ S_ii) / Σ ‖m_i‖² over its features i;
        taken as a step, this converges quickly (MacKay 1992).
        """
        sizes = list(self.group_sizes)
        for _ in range(PRECISION_STEPS):
            self.forget()
            self.update(features, y)
            spread = torch.cholesky_inverse(cholesky(self.precision)).diagonal()
            free = self.n_outputs * (1 - self.prior_precision().double() * spread)  # what the rows say of each feature
            squares = self.mean.square().sum(-1)
            groups = zip(free.split(sizes), squares.split(sizes), strict=True)
            best = torch.stack([mine.sum() / size.sum().clamp_min(1e-30) for mine, size in groups])
            self.log_precision.copy_(best.log().clamp(-20, 20))
        self.forget()
        self.update(features, y)

    def posterior(self) -> SoftmaxPosterior:
        """q(W) given the rows seen so far, in double precision."""
        return SoftmaxPosterior(self.mean, cholesky(self.precision))

    # -- predicting ---------------------------------------------------------------------------------------------------

    def joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [N, K] of the logits and their covariance between rows, [K, N, N]: the same for every class."""
        half = torch.linalg.solve_triangular(cholesky(self.precision), features.mT, upper=False)
        covariance = half.mT @ half
        return features @ self.mean, covariance.expand(self.n_outputs, *covariance.shape)

    def sample_weights(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw output weights, [n_samples, D, K]."""
        shape = (n_samples, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.posterior().weight_noise(noise)
