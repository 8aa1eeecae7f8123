"""Output layers that are conditioned on rows instead of trained.

With Gaussian noise the layer is integrated out exactly, and updates with new rows are exact. A softmax layer has
Gaussian weights N(m_k, S_k) for each class, at the optimum of its variational bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    RowStatistics,
    condition,
    group_precision,
    log_evidence,
    log_evidence_of_statistics,
    row_statistics,
)
from vmg.math.linalg import at_least_float32, cholesky
from vmg.math.softmax_evidence import ClassRows, ClassWeights, improve_classes

__all__ = ["GaussianOutput", "SoftmaxOutput"]

PRECISION_STEPS = 60  # of L-BFGS over a few log precisions: far more than it takes
MEAN_STEPS = 10  # of the mean in each round
ROUNDS = 20  # of means and covariances in turn, each at the other's last value
PRECISION_ROUNDS = 60  # of the prior's precisions with them, at most: until none is off by more than a hundredth
SCALE_POWERS = range(-4, 11, 2)  # of two: scales of the prior's precisions, to choose from on held-out rows
WARM_ROUNDS = 6  # from a posterior at nearly the same precisions
SCALE_DRAWS = 64


class GaussianOutput(nn.Module):
    """y = Φ W + noise, with W and the noise's precision integrated out; Φ are features of rows.

    Parameters
    ----------
    group_sizes : sequence of int
        Consecutive features with a prior precision of their own.
    n_outputs : int
    noise_prior : NoisePrior, optional
        Gamma for each output, or with ``full=True`` a Wishart over the covariance of the outputs' noise.
    batch_shape : sequence of int
        Replicas: features are [*batch_shape, N, D].
    """

    gram: Tensor
    moment: Tensor
    square: Tensor
    count: Tensor

    def __init__(
        self,
        group_sizes: Sequence[int],
        n_outputs: int = 1,
        *,
        noise_prior: NoisePrior | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.group_sizes, self.n_outputs = tuple(group_sizes), n_outputs
        self.noise_prior = noise_prior or NoisePrior()
        self.log_precision = nn.Parameter(torch.zeros(*batch_shape, len(self.group_sizes)))
        d, c = sum(self.group_sizes), n_outputs
        for name, shape in (("gram", (d, d)), ("moment", (d, c)), ("square", (c, c)), ("count", ())):
            self.register_buffer(name, torch.zeros((*batch_shape, *shape), dtype=torch.float64))

    def prior_precision(self) -> Tensor:
        """a [*batch_shape, D], in units of the noise's precision."""
        return group_precision(self.log_precision, self.group_sizes)

    def log_evidence(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """log p(y | Φ) [*batch_shape] of targets [N, C]: an objective for the features and the precisions."""
        return log_evidence(features, self._targets(y), self.prior_precision(), weight=weight, prior=self.noise_prior)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @property
    def statistics(self) -> RowStatistics:
        """Sums over the rows that were seen."""
        return RowStatistics(self.gram, self.moment, self.square, self.count)

    def forget(self) -> None:
        """Go back to before any rows were seen."""
        for buffer in self.statistics:
            buffer.zero_()

    @torch.no_grad()
    def update(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Condition on more rows; the result is that of seeing all rows at once."""
        new = row_statistics(features.double(), self._targets(y).double(), None if weight is None else weight.double())
        for buffer, part in zip(self.statistics, new, strict=True):
            buffer += part

    def learn_precision(self) -> None:
        """Choose the prior's precisions by the evidence of the rows that were seen."""
        log_precision = self.log_precision.detach().double().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [log_precision], max_iter=PRECISION_STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-8
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            precision = group_precision(log_precision.clamp(-20, 20), self.group_sizes)
            value = -log_evidence_of_statistics(self.statistics, precision, self.noise_prior).sum()
            value.backward()
            return value

        with torch.enable_grad():
            optimiser.step(loss)
        with torch.no_grad():
            self.log_precision.copy_(log_precision.clamp(-20, 20))

    def posterior(self) -> LinearPosterior:
        """Posterior of the output weights and of the noise given the rows seen so far, in double precision."""
        return condition(self.statistics, self.prior_precision().detach().double(), self.noise_prior)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def functions(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [..., N, C] of the function at each row, and the noise's variance [..., 1, C]."""
        posterior = self.posterior()
        noise = posterior.noise_variance.unsqueeze(-2)
        return features @ posterior.mean, posterior.relative_variance(features).unsqueeze(-1) * noise, noise

    def joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [..., N, C] of the function and its covariance between rows, [..., C, N, N]."""
        posterior = self.posterior()
        between = posterior.relative_covariance(features).unsqueeze(-3)
        return features @ posterior.mean, posterior.noise_variance[..., None, None] * between

    def sample_weights(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw output weights, [n_samples, ..., D, C], given the noise's mean variance."""
        posterior = self.posterior()
        mean = posterior.mean
        noise = torch.randn(n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + posterior.weight_noise(noise) * posterior.noise_variance.sqrt().unsqueeze(-2)

    def _targets(self, y: Tensor) -> Tensor:
        y = y.unsqueeze(-1) if y.dim() == 1 else y
        if y.shape[-1] != self.n_outputs:
            raise ValueError(f"y must have {self.n_outputs} outputs; got shape {tuple(y.shape)}")
        return y


class SoftmaxOutput(nn.Module):
    """y ~ Categorical(softmax ΦW) with columns w_k ~ N(m_k, S_k) given the rows seen; Φ are features of rows.

    Rows that come later are conditioned on with this posterior as their prior. That is not exact, as it is for Gaussian
    noise: the posterior of earlier rows is kept as a Gaussian.

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
                curvature = self._optimise(rows, curvature, 1)
                best = self._best_log_precision()
                missing = (best - self.log_precision).abs().max()
                self.log_precision.copy_((self.log_precision + best) / 2)  # whole steps swing where the mean is kept
                if missing < 0.01:
                    break
        self._optimise(rows, curvature, WARM_ROUNDS if learn_precision else ROUNDS)
        self.count.fill_(len(y))

    @torch.no_grad()
    def rescale(self, features: Tensor, y: Tensor, other_features: Tensor, other_y: Tensor) -> None:
        """Scale the prior precisions of a fit to rows, where the log-likelihood of other rows asks for it.

        Features overfit their training rows, so these look certain, say little about the weights, and the evidence
        leaves the weights too free. Of the scales whose log-likelihood is within a standard error of the best, the one
        nearest to one is taken.
        """
        rows, learned = self._checked(features, y, None), self.log_precision.detach().clone()
        scores, fits, curvature = {}, {}, self.precision - self._prior_precisions()
        for power in SCALE_POWERS:
            self.log_precision.copy_(learned + power * math.log(2))
            curvature = self._optimise(rows, curvature, WARM_ROUNDS)
            scores[power] = self._log_likelihood(other_features.double(), other_y)
            fits[power] = self.mean.clone(), curvature
        best = max(scores.values(), key=lambda score: score.mean().item())
        losses = {power: best - score for power, score in scores.items()}
        level = [power for power, loss in losses.items() if loss.mean() <= loss.std(correction=0) / len(loss) ** 0.5]
        chosen = min(level, key=abs)
        self.log_precision.copy_(learned + chosen * math.log(2))
        mean, curvature = fits[chosen]
        self.mean.copy_(mean)
        self._optimise(rows, curvature, WARM_ROUNDS)

    def _best_log_precision(self) -> Tensor:
        sizes, a = list(self.group_sizes), self.prior_precision().double()
        spread = self.posterior().covariance.diagonal(dim1=-2, dim2=-1)  # [K, D]
        free = (1 - a * spread).sum(0)  # parameters that the rows determine, of each feature
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
        features = at_least_float32(features)
        weight = torch.ones_like(features[:, 0]) if weight is None else weight.to(features.dtype)
        return ClassRows(features, F.one_hot(y, self.n_outputs).to(features.dtype), weight)

    def _optimise(self, rows: ClassRows, curvature: Tensor, n_rounds: int) -> Tensor:
        """Continue a fit from the rows' curvature so far, at the present prior; trained weights stay the mean."""
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
