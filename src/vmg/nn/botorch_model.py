"""A head as a model of BoTorch, so that acquisition functions run on it; needs the extra ``botorch``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from vmg.nn.head import BayesianHead
from vmg.nn.outputs import GaussianOutput

__all__ = ["BotorchModel"]


class BotorchModel(Model):
    """A fitted :class:`~vmg.nn.BayesianHead` with Gaussian noise, as BoTorch asks for it.

    The posterior is the Gaussian of the function at the noise's scale √(S/ν), jointly over the q points of a batch, and
    has gradients for these. ``condition_on_observations`` gives a copy of the model that has seen more rows.
    """

    def __init__(self, head: BayesianHead) -> None:
        super().__init__()
        if not isinstance(head.output, GaussianOutput) or head.batch_shape:
            raise ValueError(
                "head must have Gaussian noise and no replicas; "
                f"got {type(head.output).__name__} with batch_shape {tuple(head.batch_shape)}"
            )
        self.head = head

    @property
    def num_outputs(self) -> int:
        return self.head.output.n_outputs

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The function at X [..., q, d], jointly over q; with ``observation_noise=True`` new targets there."""
        output = self.head.output
        assert isinstance(output, GaussianOutput)
        self.eval()
        dtype = next((p.dtype for p in self.head.features.parameters()), X.dtype)
        phi = self.head.design(X.flatten(0, -2).to(dtype)).double()
        mean, covariance = output.joint(phi.reshape(*X.shape[:-1], -1))
        mean = mean.mT  # [..., C, q]
        if isinstance(observation_noise, Tensor):  # variances [..., q, C] that the caller knows
            covariance = covariance + torch.diag_embed(observation_noise.mT.expand_as(mean))
        elif observation_noise:
            noise = output.posterior().noise_variance.unsqueeze(-1).expand_as(mean)
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
        """A model that has seen rows X [n, d] and Y [n, C], too."""
        if X.dim() != 2:
            raise ValueError(f"X must be rows [n, d]; got shape {tuple(X.shape)}")
        head = copy.deepcopy(self.head)
        dtype = next((p.dtype for p in head.features.parameters()), X.dtype)
        return BotorchModel(head.update(X.to(dtype), Y))
