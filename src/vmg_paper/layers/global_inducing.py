"""A network whose pseudo-data start at its input: global inducing points [OA21].

Ober & Aitchison (2021), *Global inducing point variational posteriors for Bayesian neural networks and deep Gaussian
processes*. The paper's layers each have pseudo-inputs of their own; here there is one set, at the network's input, and
every layer sees what the draw of the layers below has made of it. So layers are correlated in the posterior, and the
divergence is that of what is used: the objective is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vmg.math.linalg import cholesky, randn
from vmg.math.preactivations import augment
from vmg.nn.bayesian import BayesianModule
from vmg.nn.mlp import ACTIVATIONS

__all__ = ["GlobalInducingMLP", "InducedPosterior", "NetworkDraw", "induced_posterior"]

INITIAL_LOG_PRECISION = 2.0
"""Log precision of pseudo-outputs: noise of e⁻¹ beside weights whose outputs have a scale of one."""


class InducedPosterior(NamedTuple):
    """q(W | Φ) = MN(mean, Σ, I): Bayesian linear regression of pseudo-outputs on features."""

    mean: Tensor  # [..., R, C]
    root: Tensor  # Cholesky factor of Σ⁻¹ [..., R, R]

    def sample(self, noise: Tensor) -> Tensor:
        """The weights that standard normal noise [..., R, C] becomes."""
        return self.mean + torch.linalg.solve_triangular(self.root.mT, noise, upper=True)

    def kl_divergence(self) -> Tensor:
        """KL(q(W | Φ) ‖ MN(0, I, I)), [...]."""
        R, C = self.mean.shape[-2:]
        eye = torch.eye(R, dtype=self.root.dtype, device=self.root.device)
        trace = torch.linalg.solve_triangular(self.root, eye, upper=False).square().sum((-2, -1))
        logdet = -2 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # of Σ
        mahalanobis = self.mean.square().sum((-2, -1))
        return 0.5 * (C * (trace - R - logdet) + mahalanobis)


def induced_posterior(features: Tensor, outputs: Tensor, precision: Tensor) -> InducedPosterior:
    """q(W | Φ) = MN(ΣΦᵀΛv, Σ, I) with Σ = (I + ΦᵀΛΦ)⁻¹ [OA21].

    Args:
        features: Φ, the inducing points at the layer, augmented [..., P, R].
        outputs: pseudo-outputs v [..., P, C].
        precision: the diagonal of Λ [..., P].
    """
    weighted = features * precision.unsqueeze(-1)
    eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    root = cholesky(eye + weighted.mT @ features, name="I + ΦᵀΛΦ")
    return InducedPosterior(torch.cholesky_solve(weighted.mT @ outputs, root), root)


class NetworkDraw(NamedTuple):
    """One draw of all weights, and what it cost."""

    weights: list[Tensor]  # [*sample_shape, *batch_shape, R, C] of each layer
    kl: Tensor  # Σ KL(q(W | Φ) ‖ p(W)) along the draw, [*sample_shape, *batch_shape]


class GlobalInducingMLP(BayesianModule):
    """A multilayer perceptron with global inducing points [OA21], weights W ~ N(0, s²) and x̂ = [x, 1]/√R.

    Layer l has pseudo-outputs v and their precisions Λ, and the posterior q(W_l/s_l | s_l Φ_l), where Φ_l are the
    inducing points after the layers below, with the weights drawn there. A draw of the network draws W_1, W_2, ... in
    turn.

    Parameters
    ----------
    in_features, out_features, hidden, activation
        As in :class:`~vmg.nn.MLP`.
    n_inducing : int
        Number of inducing points P.
    prior_scale : float
        Standard deviation s of every weight before the data.
    learn_prior : bool
        Learn s of each layer with the posterior: the bound is then one of the evidence at the learned s.
    batch_shape : sequence of int
        Independent replicas in one module: parameters gain these leading dimensions, inputs are [*batch_shape, B, in]
        or, shared by all replicas, [B, in].
    """

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        *,
        n_inducing: int,
        activation: str = "relu",
        prior_scale: float = 1.0,
        learn_prior: bool = False,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        sizes = [in_features, *hidden, out_features]
        if n_inducing < 1:
            raise ValueError(f"n_inducing must be at least 1; got {n_inducing}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {tuple(ACTIVATIONS)}; got {activation!r}")
        self.in_features, self.out_features, self.n_inducing = in_features, out_features, n_inducing
        self.activation, self.batch_shape = ACTIVATIONS[activation], torch.Size(batch_shape)
        self.prior_scale = prior_scale
        self.sizes = list(pairwise(sizes))
        self.inducing_inputs = nn.Parameter(torch.empty(*batch_shape, n_inducing, in_features))
        self.pseudo_outputs = nn.ParameterList(torch.empty(*batch_shape, n_inducing, n) for n in sizes[1:])
        self.log_precisions = nn.ParameterList(torch.empty(*batch_shape, n_inducing) for _ in sizes[1:])
        self.log_prior_scales = nn.ParameterList(
            nn.Parameter(torch.empty(batch_shape), requires_grad=learn_prior) for _ in sizes[1:]
        )
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Standard normal inducing inputs and hidden pseudo-outputs, the last layer's zero."""
        with torch.no_grad():
            self.inducing_inputs.normal_(generator=generator)
            for v, log_precision, log_scale in self._layers():
                v.normal_(generator=generator)
                log_precision.fill_(INITIAL_LOG_PRECISION)
                log_scale.fill_(math.log(self.prior_scale))
            self.pseudo_outputs[-1].zero_()

    def _layers(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pseudo-outputs, their log precisions and log s of each layer."""
        return zip(self.pseudo_outputs, self.log_precisions, self.log_prior_scales, strict=True)

    def start_at(self, x: Tensor, y: Tensor) -> None:
        """Put the inducing points at rows x [P, in] and the last pseudo-outputs at their targets y [P, out]."""
        for name, rows, width in (("x", x, self.in_features), ("y", y, self.out_features)):
            if rows.shape[-2:] != (self.n_inducing, width):
                raise ValueError(f"{name} must have shape {(self.n_inducing, width)}; got {tuple(rows.shape)}")
        with torch.no_grad():
            self.inducing_inputs.copy_(x)
            self.pseudo_outputs[-1].copy_(y)

    def sample_weights(self, sample_shape: Sequence[int] = ()) -> NetworkDraw:
        """Draw the weights of all layers, the inducing points going through the same draw."""
        leading = (*sample_shape, *self.batch_shape)
        weights: list[Tensor] = []
        h: Tensor = self.inducing_inputs
        kl = h.new_zeros(leading)
        for number, (v, log_precision, log_scale) in enumerate(self._layers()):
            scale = log_scale.exp()[..., None, None]
            features = augment(self.activation(h) if number else h)
            q = induced_posterior(scale * features, v, log_precision.exp())
            noise = randn((*leading, *q.mean.shape[-2:]), like=h, generator=self.generator)
            weights.append(scale * q.sample(noise))
            kl = kl + q.kl_divergence()
            h = features @ weights[-1]
        return NetworkDraw(weights, kl)

    def draw_weights(self, *, prior: bool = False) -> list[Tensor]:
        """The weights of all layers, from the posterior or the prior."""
        if not prior:
            return self.sample_weights().weights
        shapes = [(*self.batch_shape, n_in + 1, n_out) for n_in, n_out in self.sizes]
        like = self.inducing_inputs
        draws = [randn(shape, like=like, generator=self.generator) for shape in shapes]
        return [log_scale.exp()[..., None, None] * W for log_scale, W in zip(self.log_prior_scales, draws, strict=True)]

    def apply_weights(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """The outputs [*sample_shape, *batch_shape, B, out] at x under weights of :meth:`sample_weights`."""
        for number, W in enumerate(weights):
            x = augment(self.activation(x) if number else x) @ W
        return x

    def forward(self, x: Tensor) -> Tensor:
        """One posterior draw of the whole function at x."""
        return self.apply_weights(self.sample_weights().weights if self.drawn is None else self.drawn, x)

    def kl_divergence(self) -> Tensor:
        """Σ_l KL(q(W_l | Φ_l) ‖ p(W_l)) along a draw: an unbiased estimate of KL(q ‖ p); [*batch_shape].

        The objective with it is a bound on the log evidence. The draw need not be that of a forward pass;
        :meth:`sample_weights` gives both at one draw.
        """
        return self.sample_weights().kl

    @torch.no_grad()
    def sample_functions(self, n_functions: int) -> Callable[[Tensor], Tensor]:
        """Draw whole functions f(x) [n_functions, *batch_shape, B, out], the same at every call."""
        weights = self.sample_weights((n_functions,)).weights
        return lambda x: self.apply_weights(weights, x)
