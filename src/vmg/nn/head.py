"""A Bayesian output layer on any features: exact regression in one pass, exact updates for new rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    RowStatistics,
    condition,
    group_precision,
    log_evidence,
    log_evidence_of_statistics,
    log_precision_prior,
    row_statistics,
)

__all__ = ["BayesianHead", "HeadPrediction"]

PRECISION_STEPS = 60  # of L-BFGS over a few log precisions: far more than it takes


class HeadPrediction(NamedTuple):
    """Student t of each row and output, by its parts; variances of the noise and of the function add up."""

    mean: Tensor  # [..., N, C]
    noise_variance: Tensor  # [..., 1, C]
    epistemic_variance: Tensor  # [..., N, C]
    degrees: Tensor  # of freedom, [...]


class BayesianHead(nn.Module):
    """The output layer of a network, integrated out: its weights and its noise have closed forms.

    Parameters
    ----------
    features : nn.Module
        Makes features [*batch_shape, N, n_features] of rows; frozen, trained, or random (a stack of Bayesian layers).
    n_features : int
    n_outputs : int
    bias : bool
        Append a one to the features.
    group_sizes : sequence of int, optional
        Consecutive features with a prior precision of their own; one group of all, and the bias, without.
    noise_prior : NoisePrior
        Gamma for each output, or with ``full=True`` a Wishart over the covariance of the outputs' noise.
    batch_shape : sequence of int
        Replicas that ``features`` holds.

    Examples
    --------
    Train the features by the evidence, or leave them as they are; then condition on all rows, in one pass:

    >>> head = BayesianHead(backbone, 64).fit(loader)          # doctest: +SKIP
    >>> head.update(new_x, new_y)                              # doctest: +SKIP
    >>> mean, noise, epistemic, df = head.predict(x)           # doctest: +SKIP
    """

    gram: Tensor
    moment: Tensor
    square: Tensor
    count: Tensor

    def __init__(
        self,
        features: nn.Module,
        n_features: int,
        n_outputs: int = 1,
        *,
        bias: bool = True,
        group_sizes: Sequence[int] | None = None,
        noise_prior: NoisePrior | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        groups = tuple(group_sizes or (n_features,))
        if sum(groups) != n_features:
            raise ValueError(f"group_sizes must add up to n_features ({n_features}); got {groups}")
        self.features, self.n_outputs, self.bias = features, n_outputs, bias
        self.group_sizes = (*groups, 1) if bias else groups
        self.noise_prior = noise_prior or NoisePrior()
        self.batch_shape = torch.Size(batch_shape)
        self.log_precision = nn.Parameter(torch.zeros(*batch_shape, len(self.group_sizes)))
        d, c = sum(self.group_sizes), n_outputs
        for name, shape in (("gram", (d, d)), ("moment", (d, c)), ("square", (c, c)), ("count", ())):
            self.register_buffer(name, torch.zeros((*batch_shape, *shape), dtype=torch.float64))

    # -- the model ----------------------------------------------------------------------------------------------------

    def design(self, x: Tensor) -> Tensor:
        """Φ [*batch_shape, N, D] of rows x."""
        phi = self.features(x)
        return torch.cat([phi, torch.ones_like(phi[..., :1])], -1) if self.bias else phi

    def prior_precision(self) -> Tensor:
        """a [*batch_shape, D], in units of the noise's precision."""
        return group_precision(self.log_precision, self.group_sizes)

    def log_evidence(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """log p(y | Φ(x)) [*batch_shape] of targets [N, C], a scalar objective for the features and precisions."""
        return log_evidence(
            self.design(x), self._targets(y), self.prior_precision(), weight=weight, prior=self.noise_prior
        )

    def log_prior(self) -> Tensor:
        """Log prior of the log precisions, up to a constant; [*batch_shape]."""
        return log_precision_prior(self.log_precision)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @property
    def statistics(self) -> RowStatistics:
        """Sums over the rows that the head has seen."""
        return RowStatistics(self.gram, self.moment, self.square, self.count)

    def fit(self, batches: Iterable[tuple[Tensor, Tensor]], *, learn_precision: bool = True) -> BayesianHead:
        """Condition on all rows of ``batches`` of (x, y), in one pass; then choose precisions by the evidence."""
        self.forget()
        for x, y in batches:
            self.update(x, y)
        if learn_precision:
            self._learn_precision()
        return self

    def forget(self) -> None:
        """Go back to before any rows were seen."""
        for buffer in self.statistics:
            buffer.zero_()

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> BayesianHead:
        """Condition on more rows; the result is that of seeing all rows at once."""
        phi = self.design(x).double()
        new = row_statistics(phi, self._targets(y).double(), None if weight is None else weight.double())
        for buffer, part in zip(self.statistics, new, strict=True):
            buffer += part
        return self

    def _learn_precision(self) -> None:
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
        """What the rows seen so far tell of the output weights and of the noise, in double precision."""
        return condition(self.statistics, self.prior_precision().detach().double(), self.noise_prior)

    # -- predicting ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The posterior mean of the outputs, [*batch_shape, N, C]."""
        phi = self.design(x)
        return phi @ self.posterior().mean.to(phi.dtype)

    @torch.no_grad()
    def predict(self, x: Tensor) -> HeadPrediction:
        """The predictive Student t of each row, in double precision."""
        phi, posterior = self.design(x).double(), self.posterior()
        noise = posterior.noise_variance.unsqueeze(-2)
        epistemic = posterior.relative_variance(phi).unsqueeze(-1) * noise
        return HeadPrediction(phi @ posterior.mean, noise, epistemic, posterior.t_degrees)

    @torch.no_grad()
    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [*batch_shape, N, C] of the function and its covariance between rows, [*batch_shape, C, N, N]."""
        phi, posterior = self.design(x).double(), self.posterior()
        between = posterior.relative_covariance(phi).unsqueeze(-3)
        return phi @ posterior.mean, posterior.noise_variance[..., None, None] * between

    @torch.no_grad()
    def sample_functions(self, x: Tensor, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw functions at x, each with one set of output weights: [n_samples, *batch_shape, N, C]."""
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1; got {n_samples}")
        phi, posterior = self.design(x).double(), self.posterior()
        noise = torch.randn(n_samples, *posterior.mean.shape, generator=generator, dtype=phi.dtype)
        weights = posterior.mean + posterior.weight_noise(noise) * posterior.noise_variance.sqrt().unsqueeze(-2)
        return phi @ weights

    def _targets(self, y: Tensor) -> Tensor:
        y = y.unsqueeze(-1) if y.dim() == 1 else y
        if y.shape[-1] != self.n_outputs:
            raise ValueError(f"y must have {self.n_outputs} outputs; got shape {tuple(y.shape)}")
        return y
