"""The contract of likelihoods, what several of them share, and the likelihood of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vmg.math.evidence import NoisePrior
from vmg.math.linalg import values_readable

__all__ = ["CategoricalLikelihood", "Likelihood", "batch_mean", "is_positive", "require_outputs", "student_variance"]


class Likelihood(nn.Module, ABC):
    """p(y | f), with a posterior over its own parameters where it has some."""

    has_posterior: ClassVar[bool] = False  # whether there is a divergence to count, or a conjugate update to make

    @abstractmethod
    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """E log p(y | f) over the likelihood's own posterior, one number per row: [..., B]."""

    def kl_divergence(self) -> Tensor:
        """KL of the likelihood's own posterior to its prior, [*batch_shape]; zero where it has none."""
        return torch.zeros(())

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.has_posterior = cls.kl_divergence is not Likelihood.kl_divergence or cls.update_ is not Likelihood.update_

    def update_(self, f: Tensor, y: Tensor, n_data: Tensor | float, weight: Tensor | None = None) -> None:
        """A natural-gradient step of a conjugate posterior, from one batch that stands for ``n_data`` rows.

        Does nothing where no posterior is conjugate.
        """
        return None

    def is_untouched(self) -> bool:
        """Whether a conjugate posterior has never been updated, so that it is still the prior."""
        return False

    def noise_prior(self) -> NoisePrior | None:
        """The prior of Gaussian noise, for an output layer that is integrated out; None of classes."""
        raise TypeError(f"{type(self).__name__} has no output layer that can be integrated out")

    def components(self, f: Tensor) -> tuple[Tensor, ...]:
        """p(y | f) of each target as the centre, scale and degrees of freedom of a Student t, broadcastable to it.

        Of classes, their probabilities alone; nothing where targets are not independent given f.
        """
        return ()

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of p(y | f), one pair for each target; of classes, those of their indicators."""
        parts = self.components(f)
        if not parts:
            raise NotImplementedError(f"{type(self).__name__} does not say what it expects of a target")
        mean, scale, df = parts
        return mean, student_variance(scale, df)


def is_positive(value: float | Tensor) -> bool:
    """Whether all numbers of a setting are positive; assumed of tensors whose values cannot be read."""
    if isinstance(value, Tensor):
        return not values_readable(value) or bool((value > 0).all())
    return value > 0


def student_variance(scale: Tensor, df: Tensor) -> Tensor:
    """The variance of a Student-t, scale² of a Gaussian (infinite df), infinite up to two degrees of freedom."""
    finite = df.clamp(2.0, 1e30)
    return torch.where(df > 2, scale.square() * finite / (finite - 2), torch.inf)


def require_outputs(f: Tensor, y: Tensor, n_outputs: int) -> None:
    """Refuse outputs [..., B, n_outputs] and targets [..., B, C] that do not belong together."""
    if f.shape[-1] != n_outputs:
        raise ValueError(f"the network must have {n_outputs} outputs for this likelihood; got {f.shape[-1]}")
    if f.shape != y.shape:
        raise ValueError(f"y must have the shape of the network's output, {tuple(f.shape)}; got {tuple(y.shape)}")


def batch_mean(values: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """Mean over the rows of a batch, each counted ``weight`` times."""
    if weight is None:
        return values.mean(dim)
    return (values * weight.reshape(*weight.shape, *[1] * (-1 - dim))).mean(dim)


class CategoricalLikelihood(Likelihood):
    """y ~ Categorical(softmax f) for integer classes y [..., B]."""

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        if f.shape[:-1] != y.shape:
            raise ValueError(f"y must have shape {tuple(f.shape[:-1])}, one class per row; got {tuple(y.shape)}")
        if y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
            raise TypeError(f"y must hold integer classes, as y.long() does; got {y.dtype}")
        try:
            return torch.log_softmax(f, -1).gather(-1, y.unsqueeze(-1).long()).squeeze(-1)
        except RuntimeError as error:
            if not values_readable(y) or (y.min() >= 0 and y.max() < f.shape[-1]):
                raise
            raise ValueError(
                f"y must hold classes from 0 to {f.shape[-1] - 1}, one for each output of the network; "
                f"got {int(y.min())} to {int(y.max())}"
            ) from error

    def noise_prior(self) -> None:
        return None

    def components(self, f: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(f, -1),)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        (p,) = self.components(f)
        return p, p * (1 - p)
