"""What every Bayesian layer promises, and the two functions that act on all of them at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

__all__ = ["BayesianModule", "kl_divergence", "use_generator"]


class BayesianModule(nn.Module, ABC):
    """A module with a posterior over its weights: each ``forward`` is one posterior draw.

    A layer never sees the number of data, an optimiser or a likelihood. It draws its noise from ``generator``, or from
    PyTorch's default generator where that is None.
    """

    generator: torch.Generator | None = None

    @abstractmethod
    def kl_divergence(self) -> Tensor:
        """KL of the posterior to the prior: a sum over weights, never a mean; [*batch_shape]."""


def kl_divergence(module: nn.Module) -> Tensor:
    """The KL divergence of every Bayesian layer inside ``module``, summed."""
    terms = [m.kl_divergence() for m in module.modules() if isinstance(m, BayesianModule)]
    if not terms:
        raise ValueError(f"{type(module).__name__} holds no Bayesian layer; see vmg.nn.bayesianize")
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def use_generator(module: nn.Module, generator: torch.Generator | None) -> None:
    """Let every Bayesian layer inside ``module`` draw from ``generator`` (None: PyTorch's default)."""
    for m in module.modules():
        if isinstance(m, BayesianModule):
            m.generator = generator
