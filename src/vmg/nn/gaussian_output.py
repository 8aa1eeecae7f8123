"""A linear output layer with Gaussian noise, integrated out: exact on rows seen, exact updates for new ones."""

from __future__ import annotations

from collections.abc import Sequence

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
    row_statistics,
)

__all__ = ["GaussianOutput"]

PRECISION_STEPS = 60  # of L-BFGS over a few log precisions: far more than it takes


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
        """What the rows seen so far tell of the output weights and of the noise, in double precision."""
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
