"""A training step without autograd's bookkeeping, for a multilayer perceptron of diagonal layers.

A small network spends most of a step in PyTorch's bookkeeping. Here the layers' passes on the compiled kernels are
bound to memory once and then run one after the other. The numbers are those of ``AutogradStep`` in
:mod:`vmg.training.step`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.fused.diagonal_draw import needs_double
from vmg.fused.layer_passes import Backward, Forward, Inputs
from vmg.fused.pass_memory import PassMemory, Plan, make_plan
from vmg.math.preactivations import input_divisor
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.objective import ElboTerms, Objective
from vmg.priors import short_kl
from vmg.training.grouped_parameters import GroupedParameters, Memory
from vmg.training.training_rows import Batch

__all__ = ["DirectStep"]


class DirectStep:
    """An :class:`~vmg.nn.MLP` of diagonal layers: their passes are chained by hand, the objective is autograd's."""

    def __init__(self, objective: Objective, parameters: GroupedParameters, shape: Sequence[int]) -> None:
        network, self._objective, self._likelihood = objective.network, objective, objective.likelihood
        assert isinstance(network, MLP)
        self._addresses = {name: (p, p.data_ptr()) for name, p in network.named_parameters()}
        gradients = parameters.memory()
        self._learned = [p for p in self._likelihood.parameters() if p.requires_grad]
        self._learned_gradients = [gradients[p] for p in self._learned]
        layers = [layer for layer in network.layers if isinstance(layer, MatrixGaussianLinear)]
        scale = layers[0].row.log_scale
        self._x = scale.new_empty(tuple(shape))
        self._g_kl = scale.new_empty(scale.shape[:-1])
        self._layers: list[_Layer] = []
        plans = [_plan(layer, shape[:-1]) for layer in layers]
        x, g_x = self._x, None
        for number, (layer, plan) in enumerate(zip(layers, plans, strict=True)):
            activation = network.activation if number < len(layers) - 1 else None
            step = _Layer(layer, plan, x, activation, gradients, self._g_kl, g_x)
            self._layers.append(step)
            x, g_x = step.activated, step.g
        self._f = x
        for k, tensor in enumerate(parameters.tensors):
            tensor.grad = gradients.tensor(k)

    @staticmethod
    def allows(network: nn.Module, n_dims: int | None = None) -> bool:
        """Whether all of the network is trained, by the kernels' passes, on inputs with so many dimensions.

        The passes read parameters by their addresses, so these must be contiguous; and rows, not tokens.
        """
        if type(network) is not MLP or not all(p.requires_grad and p.is_contiguous() for p in network.parameters()):
            return False
        if isinstance(network.activation, nn.Module) and list(network.activation.parameters()):
            return False  # the passes would leave these as they are
        first = network.layers[0]
        if n_dims is not None and isinstance(first, BayesianLinear) and n_dims != len(first.batch_shape) + 2:
            return False
        return library.native(*network.parameters()) is not None and all(map(_Layer.allows, network.layers))

    @torch.no_grad()
    def __call__(self, batch: Batch, kl_weight: float = 1.0) -> ElboTerms:
        self._require_addresses()
        self._x.copy_(batch.x)
        for layer in self._layers:
            layer.forward()
        kl = self._layers[0].kl.value()
        for layer in self._layers[1:]:
            kl = kl + layer.kl.value()
        terms = self._differentiate_objective(batch, kl, kl_weight)
        for layer in reversed(self._layers):
            layer.backward()
        return terms

    def _require_addresses(self) -> None:
        """Refuse parameters that were moved: the passes would go on with the numbers at their old place."""
        for name, (parameter, address) in self._addresses.items():
            if parameter.data_ptr() != address:
                raise RuntimeError(f"parameter {name} must stay where it is during training; got other memory for it")

    def _differentiate_objective(self, batch: Batch, kl: Tensor, kl_weight: float) -> ElboTerms:
        """The objective at the outputs drawn; leaves the gradients of these, of the KL and of what is learned."""
        _, y, weight = batch
        with torch.enable_grad():
            kl.requires_grad_()
            if self._learned:
                f = self._f.detach().requires_grad_()
                log_prob, slope = self._likelihood.expected_log_prob(f, y), None
                leaves = [f, kl, *self._learned]
            else:
                log_prob, slope = self._likelihood.score(self._f, y)
                leaves = [log_prob.requires_grad_(), kl]
            terms = self._objective.combine(log_prob, kl + self._likelihood.kl_divergence(), weight, kl_weight)
            g, g_kl, *g_learned = torch.autograd.grad(-terms.total.sum(), leaves)
        self._layers[-1].g.copy_(g if slope is None else slope * g.unsqueeze(-1))
        self._g_kl.copy_(g_kl)
        for target, gradient in zip(self._learned_gradients, g_learned, strict=True):
            target.copy_(gradient)
        return ElboTerms(terms.expected_log_likelihood.detach(), terms.kl.detach(), self._f)


def _plan(layer: MatrixGaussianLinear, rows: Sequence[int]) -> Plan:
    """Plan for a minibatch with these leading dimensions, the last of which counts its rows."""
    row, data = layer.row.log_scale, layer.pseudo_data
    sizes = layer.in_features, layer.n_rows, layer.out_features, layer.n_pseudo
    return make_plan(row.shape[:-1], rows[-1], *sizes, data is not None and data.log_point_noise is not None)


def _in_double(layer: MatrixGaussianLinear) -> bool:
    return needs_double(layer.n_pseudo, layer.n_rows, layer.row.log_scale.dtype)


class _Passes:
    """A layer's forward and backward pass, in its own precision or, where that is too little, in double.

    They read ``inputs`` and ``g`` and rewrite ``out`` and ``gradients``.
    """

    def __init__(
        self,
        layer: MatrixGaussianLinear,
        plan: Plan,
        inputs: Inputs,
        g: Tensor,
        gradients: Sequence[Tensor | None],
    ) -> None:
        exact = _in_double(layer)
        originals = [*inputs], [g], [*gradients]
        (*own,), (own_g,), own_gradients = ([_double(t) for t in ts] for ts in originals) if exact else originals
        inputs = Inputs._make(own)
        native = library.native(*inputs)
        assert native is not None and own_g is not None
        options = 1 / input_divisor(layer.n_rows), layer.damping
        memory = PassMemory(plan, inputs.noise.new_empty(plan.total))
        self._forward = Forward(native, memory, inputs, *options)
        self._backward = Backward(native, memory, inputs, *options, own_g, own_gradients)
        self.out = torch.empty_like(g) if exact else self._forward.out
        self._exact, self._inputs = exact, _pairs(own, originals[0])
        self._g, self._gradients = (own_g, g), _pairs(originals[2], own_gradients)

    def forward(self) -> None:
        if self._exact:
            torch._foreach_copy_(*self._inputs)
        self._forward.run()
        if self._exact:
            self.out.copy_(self._forward.out)

    def backward(self) -> None:
        if self._exact:
            self._g[0].copy_(self._g[1])
        self._backward.run()
        if self._exact:
            torch._foreach_copy_(*self._gradients)


def _double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


def _pairs(to: Sequence[Tensor | None], source: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """What there is of two lists of tensors; where one has None, the other has too."""
    return [t for t in to if t is not None], [t for t in source if t is not None]


class _Layer:
    """One layer of a :class:`DirectStep`: its noise, draw, activation and gradients at fixed places in memory."""

    def __init__(
        self,
        layer: MatrixGaussianLinear,
        plan: Plan,
        x: Tensor,
        activation: Activation | None,
        gradients: Memory,
        g_kl: Tensor,
        g_x: Tensor | None,
    ) -> None:
        layer.check_shape(x)
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
        self.g = torch.empty_like(noise)  # of the activated outputs until this layer's turn comes, then of the outputs
        own = [None if p is None else gradients[p] for p in parameters]
        self._passes = _Passes(layer, plan, inputs, self.g, [g_x, *own])
        self.out = self._passes.out

        weights = (layer.loc, row, column, log_noise, log_point_noise)
        targets = [None if p is None else gradients[p] for p in weights]
        memory = [None if p is None else p.data for p in weights]
        noise_state = None if pseudo_data is None else pseudo_data.projected_noise()
        kl, native = short_kl(layer.prior, (row.shape[-1], column.shape[-1]), noise_state), library.native(row)
        assert kl is not None
        self.kl = kl.bind(native, memory)
        self._add_kl_gradients = self.kl.bind_gradients(memory, g_kl, targets)
        self._prior_gradients = [gradients[p] for p in layer.prior.parameters()]
        in_place = activation is None or activation is torch.relu
        self.activated = self.out if in_place else torch.empty_like(self.out)
        self._graph: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def allows(layer: nn.Module) -> bool:
        if not (isinstance(layer, MatrixGaussianLinear) and layer.is_diagonal and layer.sampling == "marginal"):
            return False
        if not layer.charges_marginally:
            return False  # the kernels know the paper's divergence only
        return short_kl(layer.prior, (layer.n_rows, layer.out_features), None) is not None

    def forward(self) -> None:
        if self._pseudo_data is not None:
            self._pseudo_data.project_()
        library.fill_normal(self._noises, self._layer.generator)
        self._passes.forward()
        if self._activation is torch.relu:
            self.out.clamp_min_(0)
        elif self._activation is not None:
            with torch.enable_grad():
                leaf = self.out.detach().requires_grad_()
                self._graph = leaf, self._activation(leaf)
            self.activated.copy_(self._graph[1])

    def backward(self) -> None:
        """The gradients of this layer, and that of its input, which is the activated output of the layer below."""
        if self._graph is not None:
            leaf, activated = self._graph
            self.g.copy_(torch.autograd.grad(activated, leaf, self.g)[0])
        elif self._activation is not None:
            torch.ops.aten.threshold_backward.grad_input(self.g, self.activated, 0, grad_input=self.g)
        self._passes.backward()
        for target, gradient in zip(self._prior_gradients, self._add_kl_gradients(), strict=True):
            target.copy_(gradient)
