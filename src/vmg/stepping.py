"""The bound and its gradient at a minibatch: through autograd for any network, directly for those that allow it.

A small network spends most of a step in PyTorch's bookkeeping. A multilayer perceptron of diagonal layers needs none:
its gradient is a fixed chain of the kernels' passes, which :class:`DirectStep` binds to memory once and then runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vmg import kernels
from vmg.flat import FlatParameters
from vmg.kernels.diagonal import Backward, Forward, Inputs, make_plan
from vmg.likelihoods import Likelihood
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.objective import ElboTerms, elbo_terms
from vmg.priors import DiagonalKL, GammaPrior, LearnedKL, diagonal_kl_scalars

__all__ = ["AutogradStep", "DirectStep", "Step", "make_step"]


class Evaluation(NamedTuple):
    """The outputs drawn at a minibatch and the bound there, without graph."""

    f: Tensor
    terms: ElboTerms


class Step(Protocol):
    """Draws f at a minibatch, takes the bound and leaves the gradient of −bound in the flat parameters."""

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Evaluation: ...


def make_step(
    network: nn.Module,
    likelihood: Likelihood,
    flat: FlatParameters,
    shape: Sequence[int],
    *,
    n_data: Tensor | float,
    kl_weight: float | Sequence[float],
) -> Step:
    """The fastest step that this network and likelihood allow, for minibatches of x with ``shape``."""
    if not isinstance(kl_weight, Sequence) and DirectStep.allows(network):
        assert isinstance(network, MLP)
        return DirectStep(network, likelihood, flat, shape, n_data=n_data, kl_weight=kl_weight)
    return AutogradStep(network, likelihood, flat, n_data=n_data, kl_weight=kl_weight)


class AutogradStep:
    """Any network and likelihood."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: Likelihood,
        flat: FlatParameters,
        *,
        n_data: Tensor | float,
        kl_weight: float | Sequence[float] = 1.0,
    ) -> None:
        self._network, self._likelihood, self._flat = network, likelihood, flat
        self._n_data = n_data
        self._kl_weights = cycle(kl_weight if isinstance(kl_weight, Sequence) else [kl_weight])

    def __call__(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Evaluation:
        f = self._network(x)
        terms = elbo_terms(
            self._network, self._likelihood, f, y, n_data=self._n_data, kl_weight=next(self._kl_weights), weight=weight
        )
        self._flat.zero_grad()
        (-terms.total.sum()).backward()  # replicas are independent: a sum leaves each one's gradient as it is
        return Evaluation(f.detach(), ElboTerms(terms.expected_log_likelihood.detach(), terms.kl.detach()))


class DirectStep:
    """An :class:`~vmg.nn.MLP` of diagonal layers.

    The few numbers that a likelihood or a prior learns by gradient are left to autograd.
    """

    def __init__(
        self,
        network: MLP,
        likelihood: Likelihood,
        flat: FlatParameters,
        shape: Sequence[int],
        *,
        n_data: Tensor | float,
        kl_weight: float = 1.0,
    ) -> None:
        gradients, divergence_gradients = flat.memory(), flat.memory()
        for tensor, gradient in zip(flat.tensors, gradients.tensors, strict=True):
            tensor.grad = gradient
        self._likelihood = likelihood
        self._learned = [p for p in likelihood.parameters() if p.requires_grad]
        self._learned_gradients = [gradients.of[p] for p in self._learned]
        layers = [layer for layer in network.layers if isinstance(layer, MatrixGaussianLinear)]
        scale = layers[0].row.log_scale
        self._x = scale.new_empty(tuple(shape))
        self._kl_scale = kl_weight / torch.as_tensor(n_data, dtype=scale.dtype)
        g_kl = self._kl_scale.expand(scale.shape[:-1]).contiguous()
        self._layers: list[_Layer] = []
        x = self._x
        for number, layer in enumerate(layers):
            activation = network.activation if number < len(layers) - 1 else None
            step = _Layer(layer, x, activation, gradients.of, divergence_gradients.of, g_kl, needs_x=number > 0)
            self._layers.append(step)
            x = step.activated
        self._f = x
        apart = {flat.position[p] for layer in self._layers for p in layer.apart}
        self._gradients = [gradients.tensors[k] for k in apart]
        self._apart = [divergence_gradients.tensors[k] for k in apart]

    @staticmethod
    def allows(network: nn.Module) -> bool:
        """Whether all of the network is trained, by the kernels' passes."""
        if type(network) is not MLP or not all(p.requires_grad for p in network.parameters()):
            return False
        return kernels.native(*network.parameters()) is not None and all(map(_Layer.allows, network.layers))

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Evaluation:
        self._x.copy_(x)
        for layer in self._layers:
            layer.forward()
        log_prob, kl = self._score(y, weight)
        for layer in self._layers:
            kl = kl + layer.divergence.value()
        before: _Layer | None = None
        for layer in reversed(self._layers):
            if before is not None:
                layer.pull_back(before.g_x)
            layer.backward()
            before = layer
        torch._foreach_add_(self._gradients, self._apart)
        return Evaluation(self._f, ElboTerms(log_prob.mean(-1), self._kl_scale * kl))

    def _score(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """log p(y | f) of each row and the likelihood's own KL; leaves the gradients of f and of what is learned."""
        if not self._learned:
            log_prob, g = self._likelihood.score(self._f, y)
            if weight is not None:
                log_prob, g = log_prob * weight, g * weight.unsqueeze(-1)
            torch.mul(g, -1 / y.shape[self._x.dim() - 2], out=self._layers[-1].g)
            return log_prob, self._likelihood.kl_divergence()
        with torch.enable_grad():
            f = self._f.detach().requires_grad_()
            log_prob = self._likelihood.expected_log_prob(f, y)
            if weight is not None:
                log_prob = log_prob * weight
            kl = self._likelihood.kl_divergence()
            loss = (self._kl_scale * kl - log_prob.mean(-1)).sum()
            found = torch.autograd.grad(loss, [f, *self._learned])
        for target, gradient in zip([self._layers[-1].g, *self._learned_gradients], found, strict=True):
            target.copy_(gradient)
        return log_prob.detach(), kl.detach()


class _Layer:
    """One layer of a :class:`DirectStep`: its noise, draw, activation and gradients at fixed places in memory."""

    def __init__(
        self,
        layer: MatrixGaussianLinear,
        x: Tensor,
        activation: Activation | None,
        gradients: dict[nn.Parameter, Tensor],
        divergence_gradients: dict[nn.Parameter, Tensor],
        g_kl: Tensor,
        *,
        needs_x: bool,
    ) -> None:
        layer._check_shape(x)
        self._layer, self._activation = layer, activation
        pseudo_data = self._pseudo_data = layer.pseudo_data
        row, column = layer.row.log_scale, layer.column.log_scale
        points = None if pseudo_data is None else pseudo_data.points
        log_noise = None if pseudo_data is None else pseudo_data.log_noise
        log_point_noise = None if pseudo_data is None else pseudo_data.log_point_noise
        parameters = (layer.loc, row, column, points, log_noise, log_point_noise)
        noise = row.new_empty(*x.shape[:-1], layer.out_features)
        point_noise = None if points is None else torch.empty_like(points, requires_grad=False)
        self._noises = [noise] if point_noise is None else [point_noise, noise]
        values = [None if p is None else p.data for p in parameters]
        inputs = Inputs._make([x, *values, point_noise, noise])

        R, C, P = row.shape[-1], column.shape[-1], layer.n_pseudo
        plan = make_plan(row.shape[:-1], *x.shape[-2:], R, C, P, log_point_noise is not None)
        native = kernels.native(*inputs)
        assert native is not None
        options = 1 / math.sqrt(R), layer.damping
        self._forward = Forward(native, plan, inputs, *options)
        self.out, self.g = self._forward.out, torch.empty_like(noise)
        self.g_x = torch.empty_like(x) if needs_x else None
        own = [None if p is None else gradients[p] for p in parameters]
        # large layers add to the divergence's gradient of M, which saves a pass over memory
        add_to_M = layer.loc is not None and not plan.small
        self._backward = Backward(
            native, plan, inputs, self._forward.workspace, *options, self.g, [self.g_x, *own], add_to_M=add_to_M
        )

        noise_state = None if pseudo_data is None else pseudo_data.projected_noise()
        prior, learned = layer.prior, _learns_precisions(layer)
        coefficients = LearnedKL.COEFFICIENTS if learned else prior.coefficients(R * C)
        assert coefficients is not None
        found = diagonal_kl_scalars(coefficients, row, column, noise_state)
        weights = (layer.loc, row, column, log_noise, log_point_noise)
        targets = [None if p is None else divergence_gradients[p] for p in weights]
        if add_to_M:
            targets[0] = own[0]
        self.apart = [p for p in weights[add_to_M:] if p is not None]  # whose two gradients are still to be added
        memory = [None if p is None else p.data for p in weights]
        if learned:
            assert isinstance(prior, GammaPrior)
            self.divergence: DiagonalKL = LearnedKL(
                prior, [gradients[p] for p in prior.parameters()], native, *found, memory, g_kl, targets
            )
        else:
            self.divergence = DiagonalKL(native, *found, memory, g_kl, targets)
        self.activated = self.out if activation is None else torch.empty_like(self.out)
        self._graph: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def allows(layer: nn.Module) -> bool:
        if not (isinstance(layer, MatrixGaussianLinear) and layer.is_diagonal and layer.sampling == "marginal"):
            return False
        return _learns_precisions(layer) or layer.prior.coefficients(layer.n_rows * layer.out_features) is not None

    def forward(self) -> None:
        if self._pseudo_data is not None:
            self._pseudo_data.project_()
        kernels.fill_normal(self._noises, self._layer.generator)
        self._forward.run()
        if self._activation is torch.relu:
            torch.clamp_min(self.out, 0, out=self.activated)
        elif self._activation is not None:
            with torch.enable_grad():
                leaf = self.out.detach().requires_grad_()
                self._graph = leaf, self._activation(leaf)
            self.activated.copy_(self._graph[1])

    def pull_back(self, g_activated: Tensor | None) -> None:
        """Put the gradient of the outputs where :meth:`backward` reads it, given that of the activated ones."""
        assert g_activated is not None
        if self._graph is None:
            torch.ops.aten.threshold_backward.grad_input(g_activated, self.activated, 0, grad_input=self.g)
            return
        leaf, activated = self._graph
        self.g.copy_(torch.autograd.grad(activated, leaf, g_activated)[0])

    def backward(self) -> None:
        self.divergence.differentiate()
        self._backward.run()


def _learns_precisions(layer: MatrixGaussianLinear) -> bool:
    return isinstance(layer.prior, GammaPrior) and not layer.prior.conjugate
