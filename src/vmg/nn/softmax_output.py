"""A softmax output layer whose weights are Gaussian class by class, N(m_k, S_k), at its optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vmg.math.class_weights import ClassRows, ClassWeights, improve_classes
from vmg.math.evidence import group_precision
from vmg.math.linalg import cholesky, widened

__all__ = ["SoftmaxOutput"]

MEAN_STEPS = 10  # of the mean in each round
ROUNDS = 20  # of means and covariances in turn, each at the other's last value
PRECISION_ROUNDS = 60  # of the prior's precisions with them, at most: until none is off by more than a hundredth
SCALE_POWERS = range(-4, 11, 2)  # of two: scales of the prior's precisions, to choose from on held-out rows
WARM_ROUNDS = 6  # from a posterior at nearly the same precisions
SCALE_DRAWS = 64


class SoftmaxOutput(nn.Module):
    """y ~ Categorical(softmax ΦW) with columns w_k ~ N(m_k, S_k) given the rows seen; Φ are features of rows.

    Rows that come later are conditioned on with this posterior as their prior. That is not exact, as it is for Gaussian
    noise: what earlier rows say is kept as a Gaussian.

    Parameters
    ----------
    group_sizes : sequence of int
        Consecutive features with a prior precision of their own.
    n_outputs : int
        Number of classes.
    start : Tensor, optional
        Trained weights [D, K]. They stay the mean when the layer is fitted, and rows that come later move them.
    """

    mean: Tensor
    precision: Tensor
    count: Tensor
    start: Tensor

    def __init__(self, group_sizes: Sequence[int], n_outputs: int, start: Tensor | None = None) -> None:
        super().__init__()
        self.group_sizes, self.n_outputs, self.keeps_start = tuple(group_sizes), n_outputs, start is not None
        self.log_precision = nn.Parameter(torch.zeros(len(self.group_sizes)))
        d = sum(self.group_sizes)
        for name, shape in (("mean", (d, n_outputs)), ("precision", (n_outputs, d, d)), ("count", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("start", torch.zeros_like(self.mean) if start is None else start.detach().double())
        self.forget()

    def prior_precision(self) -> Tensor:
        """a [D] of the prior N(0, diag(a)⁻¹) of each class."""
        return group_precision(self.log_precision, self.group_sizes)

    @torch.no_grad()
    def forget(self) -> None:
        """Go back to before any rows were seen."""
        self.mean.copy_(self.start)
        self.precision.copy_(self._prior_precisions())
        self.count.zero_()

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Condition on more rows, what was seen before being their prior."""
        rows, prior = self._checked(features, y, weight), (self.mean.clone(), self.precision.clone())
        nothing = torch.zeros_like(self.precision)
        mean, curvature = improve_classes(self.mean, nothing, rows, *prior, n_rounds=ROUNDS, n_steps=MEAN_STEPS)
        self.mean.copy_(mean)
        self.precision += curvature
        self.count += rows.weight.sum()

    @torch.no_grad()
    def fit(self, features: Tensor, y: Tensor, *, learn_precision: bool = True) -> None:
        """Forget, and condition on these rows; with ``learn_precision`` at the prior precisions of the evidence.

        At the optimum of the bound the precision of a group with n features is a = (nK − a ΣS_k,ii) / Σ‖m_i‖² over its
        features i and the classes k; taken as a step, this converges quickly (MacKay 1992).
        """
        rows, curvature = self._checked(features, y, None), torch.zeros_like(self.precision)
        self.forget()
        if learn_precision:
            for _ in range(PRECISION_ROUNDS):
                curvature = self._settle(rows, curvature, 1)
                best = self._best_log_precision()
                missing = (best - self.log_precision).abs().max()
                self.log_precision.copy_((self.log_precision + best) / 2)  # whole steps swing where the mean is kept
                if missing < 0.01:
                    break
        self._settle(rows, curvature, WARM_ROUNDS if learn_precision else ROUNDS)
        self.count.fill_(len(y))

    @torch.no_grad()
    def rescale(self, features: Tensor, y: Tensor, other_features: Tensor, other_y: Tensor) -> None:
        """Scale the prior precisions of a fit to rows, where the log-likelihood of other rows asks for it.

        Features that have learned the very rows of the fit make them look certain. Such rows tell little of the
        weights, and the evidence leaves these too free. Of the scales whose log-likelihood is not worse than the best
        by more than a standard error, the nearest to one is taken.
        """
        rows, learned = self._checked(features, y, None), self.log_precision.detach().clone()
        scores, found, curvature = {}, {}, self.precision - self._prior_precisions()
        for power in SCALE_POWERS:
            self.log_precision.copy_(learned + power * math.log(2))
            curvature = self._settle(rows, curvature, WARM_ROUNDS)
            scores[power] = self._log_likelihood(other_features.double(), other_y)
            found[power] = self.mean.clone(), curvature
        best = max(scores.values(), key=lambda score: score.mean().item())
        losses = {power: best - score for power, score in scores.items()}
        level = [power for power, loss in losses.items() if loss.mean() <= loss.std(correction=0) / len(loss) ** 0.5]
        chosen = min(level, key=abs)
        self.log_precision.copy_(learned + chosen * math.log(2))
        mean, curvature = found[chosen]
        self.mean.copy_(mean)
        self._settle(rows, curvature, WARM_ROUNDS)

    def _best_log_precision(self) -> Tensor:
        sizes, a = list(self.group_sizes), self.prior_precision().double()
        spread = self.posterior().covariance.diagonal(dim1=-2, dim2=-1)  # [K, D]
        free = (1 - a * spread).sum(0)  # what the rows say of each feature
        groups = zip(free.split(sizes), self.mean.square().sum(-1).split(sizes), strict=True)
        best = torch.stack([mine.sum() / size.sum().clamp_min(1e-30) for mine, size in groups])
        return best.log().clamp(-20, 20)

    def _log_likelihood(self, features: Tensor, y: Tensor) -> Tensor:
        """Log of the mean probability of each row's class, [N]; the same noise at every call."""
        generator = torch.Generator(features.device).manual_seed(0)
        posterior, shape = self.posterior(), (SCALE_DRAWS, len(y), self.n_outputs)
        noise = torch.randn(shape, generator=generator, dtype=features.dtype, device=features.device)
        logits = features @ posterior.mean + posterior.variance(features).sqrt() * noise
        p = torch.softmax(logits, -1).mean(0)
        return p.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp_min(1e-300).log()

    def _checked(self, features: Tensor, y: Tensor, weight: Tensor | None) -> ClassRows:
        if y.dim() != 1 or y.is_floating_point():
            raise ValueError(f"y must be integer classes, one per row; got shape {tuple(y.shape)} of {y.dtype}")
        features = widened(features)
        weight = torch.ones_like(features[:, 0]) if weight is None else weight.to(features.dtype)
        return ClassRows(features, F.one_hot(y, self.n_outputs).to(features.dtype), weight)

    def _settle(self, rows: ClassRows, curvature: Tensor, n_rounds: int) -> Tensor:
        """Go on with a fit from the rows' curvature so far, at the present prior; trained weights stay the mean."""
        prior_precision, n_steps = self._prior_precisions(), 0 if self.keeps_start else MEAN_STEPS
        prior = torch.zeros_like(self.mean), prior_precision
        mean, curvature = improve_classes(self.mean, curvature, rows, *prior, n_rounds=n_rounds, n_steps=n_steps)
        self.mean.copy_(mean)
        self.precision.copy_(prior_precision + curvature)
        return curvature

    def _prior_precisions(self) -> Tensor:
        return torch.diag(self.prior_precision().double()).expand_as(self.precision)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def posterior(self) -> ClassWeights:
        """q(W) given the rows seen so far, in double precision."""
        return ClassWeights(self.mean, cholesky(self.precision))

    def joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [N, K] of the logits and their covariance between rows, [K, N, N]; classes are independent."""
        half = torch.linalg.solve_triangular(self.posterior().root, features.mT, upper=False)  # [K, D, N]
        return features @ self.mean, half.mT @ half

    def sample_weights(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw output weights, [n_samples, D, K]."""
        shape = (n_samples, *self.mean.shape)
        noise = torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.posterior().weight_noise(noise)
