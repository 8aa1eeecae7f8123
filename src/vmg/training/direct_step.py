"""A training step without autograd's bookkeeping, for a multilayer perceptron of diagonal layers.

A small network spends most of a step in PyTorch's bookkeeping. Here the layers' passes on the compiled kernels are
bound to memory once (:mod:`vmg.nn.bound_layers`) and then run, forwards and backwards, with the objective between. The
numbers are those of ``AutogradStep`` in :mod:`vmg.training.step`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.bound_layers import BoundLayers
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.objective import ElboTerms, Objective, with_likelihood
from vmg.priors import short_kl
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.rows import Batch

__all__ = ["DirectStep"]


class DirectStep:
    """An :class:`~vmg.nn.MLP` of diagonal layers: their passes are the kernels', the objective is autograd's."""

    def __init__(self, objective: Objective, parameters: GroupedParameters, shape: Sequence[int]) -> None:
        network, self._objective, self._likelihood = objective.network, objective, objective.likelihood
        assert isinstance(network, MLP)
        self._addresses = {name: (p, p.data_ptr()) for name, p in network.named_parameters()}
        self._layers = [layer for layer in network.layers if isinstance(layer, MatrixGaussianLinear)]
        first = self._layers[0]
        scale = first.row.log_scale
        self._x = scale.new_empty(tuple(shape))
        first.check_shape(self._x)
        self._bound = BoundLayers(self._layers, self._x, network.activation)
        stack = self.stack = self._bound.stack
        self._f = stack.layers[-1].out
        self._g, self._g_kl = torch.empty_like(self._f), scale.new_empty(scale.shape[:-1])
        gradients = parameters.memory()
        own = [[None if p is None else gradients[p] for p in one.parameters] for one in stack.draws]
        self._differentiate = stack.bind_gradients(self._g, own, None, self._g_kl)
        self._prior_gradients = [[gradients[p] for p in layer.prior.parameters()] for layer in self._layers]
        self._learned = [p for p in self._likelihood.parameters() if p.requires_grad]
        self._learned_gradients = [gradients[p] for p in self._learned]
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
        return library.native(*network.parameters()) is not None and all(map(_allows, network.layers))

    @torch.no_grad()
    def __call__(self, batch: Batch, kl_weight: float = 1.0) -> ElboTerms:
        self._require_addresses()
        self._x.copy_(batch.x)
        self._bound.refill(self._layers)
        self.stack.forward(self._x)
        terms = self._differentiate_objective(batch, self.stack.divergence(), kl_weight)
        for targets, found in zip(self._prior_gradients, self._differentiate(), strict=True):
            for target, gradient in zip(targets, found, strict=True):
                target.copy_(gradient)
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
            terms = self._objective.combine(log_prob, with_likelihood(kl, self._likelihood), weight, kl_weight)
            g, g_kl, *g_learned = torch.autograd.grad(-terms.total.sum(), leaves)
        self._g.copy_(g if slope is None else slope * g.unsqueeze(-1))
        self._g_kl.copy_(g_kl)
        for target, gradient in zip(self._learned_gradients, g_learned, strict=True):
            target.copy_(gradient)
        return ElboTerms(terms.expected_log_likelihood.detach(), terms.kl.detach(), self._f)


def _allows(layer: nn.Module) -> bool:
    if not (isinstance(layer, MatrixGaussianLinear) and layer.is_diagonal and layer.sampling == "marginal"):
        return False
    if not layer.uses_marginal_kl:
        return False  # the kernels know the paper's divergence only
    return short_kl(layer.prior, (layer.n_rows, layer.out_features), None) is not None
