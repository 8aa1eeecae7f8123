"""Classes."""

from __future__ import annotations

import torch
from torch import Tensor

from vmg.likelihoods.base import Likelihood

__all__ = ["CategoricalLikelihood"]


class CategoricalLikelihood(Likelihood):
    """y ~ Categorical(softmax f) for integer classes y [..., B]."""

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        if f.shape[:-1] != y.shape:
            raise ValueError(f"y must have shape {tuple(f.shape[:-1])}, one class per row; got {tuple(y.shape)}")
        return torch.log_softmax(f, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def noise_prior(self) -> None:
        return None

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.softmax(f, -1)
        return p, p * (1 - p)
