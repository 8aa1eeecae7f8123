"""Hidden layers of an ensemble, each member anchored at its own draw from a matrix Gaussian prior.

The weights of layer l are W = s ⊙ Z with Z ~ MN(0, I, I): row scales s and standardised weights Z. A member starts at a
draw Z₀ of the prior and pays ½‖Z − Z₀‖² for leaving it. In a linear model with perturbed targets this *randomised MAP*
draws from the exact posterior (Lu & Van Roy 2017; Pearce et al. 2020). Where the data say nothing, members stay at
their draws of the prior, and differ from each other as the prior does.

:class:`AnchoredFunctions` evaluates trained networks at many rows, fast: for prediction, without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vmg.math.linalg import is_traced
from vmg.nn.mlp import ACTIVATIONS

__all__ = ["AnchoredFeatures", "AnchoredFunctions"]

Array = NDArray[np.float64]

SCALE_SPREAD = 1.0  # prior standard deviation of log s
SPANNING_ROWS = 4096  # at most, that directions are chosen by
BLOCK_ROWS = 256  # whose activations stay in the cache of a core


def _activate_members_(names: Sequence[str], values: Tensor) -> None:
    """Apply the activation of each run of members [E, ...] in place, where nothing is recorded."""
    for name, part in zip(names, values.tensor_split(len(names)), strict=True):
        if name == "tanh" and part.is_cpu:  # NumPy's takes a third of the time in double precision, a seventh in single
            array = part.numpy()
            np.tanh(array, out=array)
        elif name == "relu":
            part.relu_()
        else:
            part.copy_(ACTIVATIONS[name](part))


# In place: the gradient after an activation becomes the one before it, given the activation's value
_SLOPES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "relu": lambda gradient, h: torch.ops.aten.threshold_backward(gradient, h, 0, grad_input=gradient),
    "tanh": lambda gradient, h: torch.ops.aten.tanh_backward(gradient, h, grad_input=gradient),
}


class _Features(torch.autograd.Function):
    """Features with their gradient written out: put in place at once, where autograd would copy them several times.

    The rows of all members are many more numbers than their weights, and a training step goes over them as few times
    as it can.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Tensor, activations: Sequence[str], *layers: Tensor) -> Tensor:
        n_hidden, h = layers[-1].shape[-1], x
        values = []
        for W in layers:
            h = torch.baddbmm(W[:, -1:], h, W[:, :-1])
            _activate_members_(activations, h)
            values.append(h)
        phi = x.new_empty(*x.shape[:-1], n_hidden + linear.shape[-1] + 1)
        torch.mul(h, 1 / math.sqrt(n_hidden), out=phi[..., :n_hidden])
        phi[..., n_hidden:-1] = linear
        phi[..., -1] = 1
        ctx.activations = activations
        ctx.save_for_backward(x, *values, *layers)
        return phi

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = gradients
        x, *saved = ctx.saved_tensors
        values, layers = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        n_hidden = layers[-1].shape[-1]
        of_h = outer[..., :n_hidden] / math.sqrt(n_hidden)
        of_layers: list[Tensor] = []
        for position in reversed(range(len(layers))):
            runs = (part.tensor_split(len(ctx.activations)) for part in (of_h, values[position]))
            for name, mine, h in zip(ctx.activations, *runs, strict=True):
                _SLOPES[name](mine, h)
            before = values[position - 1] if position else x
            of_layers.insert(0, torch.cat([before.mT @ of_h, of_h.sum(-2, keepdim=True)], -2))
            if position or ctx.needs_input_grad[0]:
                of_h = of_h @ layers[position][:, :-1].mT
        of_x = of_h if ctx.needs_input_grad[0] else None
        of_linear = outer[..., n_hidden:-1] if ctx.needs_input_grad[1] else None
        return of_x, of_linear, None, *of_layers


class AnchoredFeatures(nn.Module):
    """Features [*batch_shape, N, n_features] of rows: the last hidden layer, the inputs themselves and a one.

    Args:
        hidden: sizes of the hidden layers; none gives a linear model.
        activation: a name of :data:`vmg.nn.mlp.ACTIVATIONS`, or several, which are dealt out to members in runs: with
            two, the first half of the members has the first.
        n_members: networks in this module, each with an anchor of its own.
        n_directions: linear features: 0 are the inputs themselves, another number their parts along so many directions,
            and the length of the rest. :meth:`span` chooses the directions.

    Row scales of the first layer are one for each input, so that inputs which do not matter can fade (relevance
    determination); each later layer has one scale.
    """

    directions: Tensor

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        *,
        activation: str | Sequence[str] = "relu",
        n_members: int = 1,
        n_directions: int = 0,
    ) -> None:
        super().__init__()
        names = (activation,) if isinstance(activation, str) else tuple(activation)
        unknown = [name for name in names if name not in ACTIVATIONS]
        if unknown or not names:
            raise ValueError(f"activation must be among {tuple(ACTIVATIONS)}; got {activation!r}")
        for name, size in (("in_features", in_features), ("n_members", n_members), *(("hidden", h) for h in hidden)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1; got {size}")
        self.in_features, self.hidden, self.activations = in_features, tuple(hidden), names
        self.n_members, self.n_directions = n_members, n_directions
        self.first_log_scale = -0.5 * math.log(in_features)  # the prior's centre: pre-activations have unit size
        if n_directions:
            self.register_buffer("directions", torch.zeros(n_members, in_features, n_directions))
        self.weights, self.log_scales = nn.ParameterList(), nn.ParameterList()
        for position, (n_in, n_out) in enumerate(pairwise([in_features, *hidden])):
            self.register_buffer(f"anchor_{position}", torch.zeros(n_members, n_in + 1, n_out))
            self.weights.append(nn.Parameter(torch.zeros(n_members, n_in + 1, n_out)))
            self.log_scales.append(nn.Parameter(torch.zeros(n_members, n_in + 1 if position == 0 else 1, 1)))
        self.reset_parameters()

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """How many features are hidden units, linear and ones: groups that the output layer may treat differently."""
        return (*self.hidden[-1:], self.n_directions + 1 if self.n_directions else self.in_features, 1)

    @property
    def n_features(self) -> int:
        """All features of a row."""
        return sum(self.group_sizes)

    def work(self, n_rows: int) -> float:
        """Multiply-adds that functions of so many rows and their variances take, about."""
        return float(self.n_members * n_rows * self.n_features**2)

    @property
    def anchors(self) -> list[Tensor]:
        """Z₀ of each layer."""
        return [self.get_buffer(f"anchor_{position}") for position in range(len(self.hidden))]

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new anchors and start every member at its own."""
        for position, (weight, anchor) in enumerate(zip(self.weights, self.anchors, strict=True)):
            anchor.normal_(generator=generator)
            weight.copy_(anchor)
            self.log_scales[position].fill_(self.first_log_scale if position == 0 else 0.0)

    @torch.no_grad()
    def span(self, rows: Array) -> None:
        """Choose directions that hold most of these rows [N, D]; all of them, where these are no more than directions.

        Linear functions with weights of one variance are a Gaussian process with the kernel xᵀx'. Rows tell nothing of
        its weights across all of them, so directions in which no row differs need no weights of their own: what the
        prior says of them is a variance that grows with the length of a row's part across all directions.
        """
        rng, n = np.random.default_rng(0), self.n_directions
        rows = rows[:: -(-len(rows) // SPANNING_ROWS)]
        basis = np.concatenate([rows.T, rng.standard_normal((rows.shape[1], max(n - len(rows), 0)))], 1)
        if len(rows) > n:  # the largest principal directions, by one step of subspace iteration
            basis = rows.T @ (rows @ (rows.T @ rng.standard_normal((len(rows), n))))
        self.directions.copy_(torch.from_numpy(np.linalg.qr(basis)[0]).expand_as(self.directions))

    def linear(self, x: Tensor) -> Tensor:
        """The inputs [..., N, D] themselves, or their parts along the directions and the length of the rest."""
        if not self.n_directions:
            return x
        along = x @ (self.directions[0] if x.dim() == 2 else self.directions)  # replicas of the same rows share them
        rest = x.square().sum(-1, keepdim=True) - along.square().sum(-1, keepdim=True)
        return torch.cat([along, rest.clamp_min(1e-30).sqrt()], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Features of x [N, D], the same for all members, or [n_members, N, D]."""
        linear = self.linear(x) * (1 / math.sqrt(self.in_features))
        linear = linear.expand(self.n_members, *linear.shape[-2:])
        x = x.expand(self.n_members, *x.shape[-2:])
        if self.hidden and set(self.activations) <= set(_SLOPES) and not is_traced(x):
            return _Features.apply(x, linear, self.activations, *self.layers())
        h = x
        for W in self.layers():
            runs = torch.baddbmm(W[:, -1:], h, W[:, :-1]).tensor_split(len(self.activations))
            h = torch.cat([ACTIVATIONS[name](run) for name, run in zip(self.activations, runs, strict=True)])
        hidden = [h / math.sqrt(h.shape[-1])] if self.hidden else []
        return torch.cat([*hidden, linear, torch.ones_like(x[..., :1])], -1)

    def layers(self) -> list[Tensor]:
        """Weights s ⊙ Z of each hidden layer, [n_members, inputs and a one, outputs]."""
        scaled = []
        for position, (weight, log_scale) in enumerate(zip(self.weights, self.log_scales, strict=True)):
            fan_in = 1 if position == 0 else weight.shape[-2]
            scaled.append(weight * (log_scale.exp() / math.sqrt(fan_in)))
        return scaled

    def feature_scales(self) -> Tensor:
        """The factor of each feature: 1/√n in a group of n, [n_features]; directions count as the inputs."""
        counts = torch.tensor([*self.hidden[-1:], self.in_features, 1])
        return counts.double().rsqrt().repeat_interleave(torch.tensor(self.group_sizes))

    def log_prior(self) -> Tensor:
        """Anchored log prior of each member up to a constant, [n_members]."""
        total = torch.zeros(self.n_members, dtype=next(iter(self.weights), torch.zeros(())).dtype)
        centre = self.first_log_scale
        for weight, anchor, log_scale in zip(self.weights, self.anchors, self.log_scales, strict=True):
            left = (weight - anchor).square().sum((-2, -1))
            rescaled = ((log_scale - centre) / SCALE_SPREAD).square().sum((-2, -1))
            total, centre = total - 0.5 * (left + rescaled), 0.0
        return total

    def input_scale(self) -> Tensor:
        """Prior scale of each input's weights, a geometric mean over members, [in_features]."""
        if not self.hidden:
            return torch.full((self.in_features,), math.exp(self.first_log_scale))
        return self.log_scales[0].detach()[:, :-1, 0].mean(0).exp()

    def relevance(self) -> Tensor:
        """How strongly each input can move the first layer, averaged over members, [in_features]."""
        if not self.hidden:
            return torch.ones(self.in_features)
        W = (self.weights[0] * self.log_scales[0].exp())[:, :-1]
        return torch.linalg.vector_norm(W.detach(), dim=-1).mean(0)


class AnchoredFunctions:
    """f(x) = φ(x)ᵀw of each of E members with w ~ N(m, A⁻¹), A = LLᵀ: centres φᵀm and variances ‖L⁻¹φ‖².

    The same as features, a product and a triangular solve in double precision, up to rounding. The scales of the layers
    and of the features are folded into matrices, the solve is a product with L⁻¹, and no features are put together.

    Args:
        features: φ, in double precision.
        mean: m of C outputs, [E, F, C].
        root: L, [E, F, F].
    """

    @torch.no_grad()
    def __init__(self, features: AnchoredFeatures, mean: Tensor, root: Tensor) -> None:
        self.n_outputs = mean.shape[-1]
        self._activations, self._linear = features.activations, features.linear
        self._layers = [(W[:, :-1].contiguous(), W[:, -1:].contiguous()) for W in features.layers()]
        identity = torch.eye(root.shape[-1], dtype=root.dtype).expand_as(root)
        inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        scales = features.feature_scales().to(mean.dtype).unsqueeze(-1)
        last = torch.cat([mean, inverse.mT], -1) * scales  # [E, F, C + F]
        parts = last.split(list(features.group_sizes), -2)
        self._of_hidden = parts[0].contiguous() if features.hidden else None
        self._of_inputs, self._of_one = parts[-2].contiguous(), parts[-1].contiguous()

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Centres [E, N, C] and variances [E, N] at softened inputs [N, D]."""
        n_members, n_rows = len(self._of_one), len(x)
        centres, variances = np.empty((n_members, n_rows, self.n_outputs)), np.empty((n_members, n_rows))
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            values = self._block(torch.as_tensor(x[rows], dtype=torch.float64)).numpy()
            centres[:, rows] = values[..., : self.n_outputs]
            half = values[..., self.n_outputs :]
            np.einsum("enf,enf->en", half, half, out=variances[:, rows])
        return centres, variances

    def factor(self, x: Array, scale: Array) -> Array:
        """F [K, N, C] with FᵀF the covariance between rows of what all members together say of C outputs.

        The first E rows are what members disagree about, the others what each does not know; variances of its outputs
        are in units of a squared ``scale`` [E, C].
        """
        values = self._block(torch.as_tensor(x, dtype=torch.float64)).numpy()
        centres, half = values[..., : self.n_outputs], np.swapaxes(values[..., self.n_outputs :], 1, 2)  # [E, F, N]
        n_members = len(values)
        between = (centres - centres.mean(0)) / math.sqrt(max(n_members - 1, 1))
        own = half[..., None] * (scale / math.sqrt(n_members))[:, None, None]
        return np.concatenate([between, own.reshape(-1, *own.shape[2:])])

    @torch.no_grad()
    def _block(self, rows: Tensor) -> Tensor:
        """φᵀm and L⁻¹φ, side by side: [E, n, C + F]."""
        linear = self._linear(rows)
        values = torch.baddbmm(self._of_one, linear.expand(len(self._of_one), *linear.shape), self._of_inputs)
        if self._of_hidden is None:
            return values
        h = rows.expand(len(self._of_one), *rows.shape)
        for weight, bias in self._layers:
            h = torch.baddbmm(bias, h, weight)
            _activate_members_(self._activations, h)
        return values.baddbmm_(h, self._of_hidden)
