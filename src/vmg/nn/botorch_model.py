"""A head as a model of BoTorch, so that acquisition functions run on it; needs the extra ``botorch``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from vmg.math.evidence import row_statistics
from vmg.nn.head import BayesianHead
from vmg.nn.output_layers import GaussianOutput

__all__ = ["BotorchModel"]


class BotorchModel(Model):
    """A fitted :class:`~vmg.nn.BayesianHead` with Gaussian noise, as BoTorch asks for it.

    The posterior is the Gaussian with the mean and covariance of the function's Student t, whose noise has the variance
    S/(ν − 2), jointly over the q points of a batch; it has gradients for these. ``condition_on_observations`` and
    ``fantasize`` give models that have seen more rows.
    """

    def __init__(self, head: BayesianHead) -> None:
        super().__init__()
        if not isinstance(head.output, GaussianOutput):
            raise ValueError(f"head must have Gaussian noise; got {type(head.output).__name__}")
        self.head = head

    @property
    def num_outputs(self) -> int:
        return self.head.output.n_outputs

    @property
    def batch_shape(self) -> torch.Size:
        return self.head.output.count.shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The function at X [..., q, d], jointly over q; with ``observation_noise=True`` new targets there."""
        output: Any = self.head.output
        mean, covariance = output.joint(self._features(X))
        mean = mean.mT  # [..., C, q]
        if isinstance(observation_noise, Tensor):  # variances [..., q, C] that the caller knows
            covariance = covariance + torch.diag_embed(observation_noise.mT.expand_as(mean))
        elif observation_noise:
            noise = (output.posterior().noise_variance.unsqueeze(-1) * output.tails()).expand_as(mean)
            covariance = covariance + torch.diag_embed(noise)
        if output_indices is not None:
            mean, covariance = mean[..., output_indices, :], covariance[..., output_indices, :, :]
        mean, covariance = mean.to(X.dtype), covariance.to(X.dtype)
        # lazily: more points than features have a singular covariance, which is factored with care when drawn from
        if mean.shape[-2] == 1:
            joint: Any = MultivariateNormal(mean.squeeze(-2), to_linear_operator(covariance.squeeze(-3)))
        else:
            each = MultivariateNormal(mean, to_linear_operator(covariance))
            joint = MultitaskMultivariateNormal.from_batch_mvn(each, task_dim=-1)
        posterior = GPyTorchPosterior(joint)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> BotorchModel:
        """A model that has seen rows X [..., n, d] and Y [..., n, C], too; leading dimensions are a batch of models.

        The update is exact and has gradients for X and Y. The new model shares the network with this one.
        """
        if not torch.isfinite(Y).all() or Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise ValueError(f"Y must be finite, [..., {X.shape[-2]}, {self.num_outputs}]; got shape {tuple(Y.shape)}")
        phi = self._features(X)
        rows = row_statistics(phi.expand(*Y.shape[:-2], *phi.shape[-2:]), Y.double())
        head, output = copy.copy(self.head), copy.copy(self.head.output)
        sums = map(torch.add, output.statistics, rows)
        output._buffers = output._buffers | dict(zip(("gram", "moment", "square", "count"), sums, strict=True))
        head._modules = {**head._modules, "_output": output}
        return BotorchModel(head)

    def fantasize(
        self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **kwargs: Any
    ) -> BotorchModel:
        """A batch of models, each of which has seen one draw of ``sampler`` of new targets at X [..., n, d]."""
        posterior = self.posterior(X, observation_noise=True if observation_noise is None else observation_noise)
        return self.condition_on_observations(X, sampler(posterior), **kwargs)

    def _features(self, X: Tensor) -> Tensor:
        """Features [..., q, D] of X [..., q, d] in double precision, in evaluation mode."""
        self.eval()
        dtype = next((p.dtype for p in self.head.features.parameters()), X.dtype)
        return self.head.design(X.flatten(0, -2).to(dtype)).double().reshape(*X.shape[:-1], -1)
