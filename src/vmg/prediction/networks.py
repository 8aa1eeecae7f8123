"""Functions drawn from the posterior of a network, and what they predict."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vmg.likelihoods import CategoricalLikelihood, Likelihood
from vmg.likelihoods.base import student_variance
from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.convert import to_plain
from vmg.nn.draws import Draws, call, evaluating, fixed_draw, output_tensor, split_rows
from vmg.nn.head import BayesianHead, HeadEnsemble
from vmg.nn.mlp import MLP
from vmg.nn.outputs import GaussianOutput
from vmg.nn.replicas import Replicas

__all__ = [
    "FrozenDraws",
    "ModelPrediction",
    "draw_functions",
    "freeze_draws",
    "predict",
    "sample_functions",
    "sample_outputs",
]

NUMBERS_AT_ONCE = 2**19
"""Numbers of a layer's output, all samples together: more rows come in chunks, which fit into the processor's cache."""

WEIGHTS_AT_ONCE = 2**24
"""Weights of drawn networks: more samples come in groups, so that memory does not grow with their number."""


# -- draws at many rows ----------------------------------------------------------------------------------------------


@torch.no_grad()
def sample_outputs(network: nn.Module, x: Tensor, n_samples: int, *, batch_shape: Sequence[int] = ()) -> Tensor:
    """Posterior draws of the output at x: [n_samples, *batch_shape, N, C].

    A sample is one set of weights. For an :class:`~vmg.nn.MLP` all samples of a chunk of rows come from one vectorised
    pass; any other module is called once a sample and chunk of rows, in eval mode. Its rows are dimension 0, or the
    one after those of replicas.
    """
    if n_samples < 1:
        raise ValueError(f"n_samples must be at least 1; got {n_samples}")
    if isinstance(network, MLP):
        return _evaluate_functions(network, x, n_samples)
    replicas = int(np.prod(batch_shape)) if batch_shape else 1
    chunk = max(1, NUMBERS_AT_ONCE // replicas)
    n_batch = len(batch_shape)
    own = n_batch > 0 and x.dim() >= n_batch + 2 and x.shape[:n_batch] == tuple(batch_shape)
    outputs = []
    with evaluating(network):
        for _ in range(n_samples):
            with fixed_draw(network):
                pieces = [network(rows) for rows in x.split(chunk, dim=n_batch if own else 0)]
            outputs.append(torch.cat(pieces, dim=n_batch))
    return torch.stack(outputs)


@torch.no_grad()
def draw_functions(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Whole functions drawn from the posterior, evaluated at x in double precision: [n_draws, *batch_shape, N, C].

    One draw is one set of weights and depends on ``seed`` alone, so a row gets the same values whatever other rows
    come with it. ``network`` itself stays as it is.
    """
    exact = copy.deepcopy(network).double()
    use_generator(exact, torch.Generator().manual_seed(seed))
    return _evaluate_functions(exact, x.double(), n_draws)


def _evaluate_functions(network: MLP, x: Tensor, n_draws: int) -> Tensor:
    layers = [layer for layer in network.layers if isinstance(layer, BayesianLinear)]
    replicas = layers[0].batch_shape.numel()
    n_weights = replicas * sum(layer.n_rows * layer.out_features for layer in layers)
    widest = max(layer.out_features for layer in layers)
    group = min(n_draws, max(1, WEIGHTS_AT_ONCE // n_weights))
    chunk = max(1, NUMBERS_AT_ONCE // (group * replicas * widest))
    outputs = []
    for start in range(0, n_draws, group):
        functions = network.sample_functions(min(group, n_draws - start))
        outputs.append(torch.cat([functions(rows) for rows in x.split(chunk, dim=-2)], dim=-2))
    return torch.cat(outputs)


# -- any model -------------------------------------------------------------------------------------------------------


def sample_functions(model: nn.Module, n_functions: int, *, prior: bool = False) -> Callable[..., Tensor]:
    """Draw whole functions from the posterior (or the prior): f(*inputs) is [n_functions, *model(*inputs).shape].

    Every call uses the same weights, so the draws are consistent across inputs and calls, whatever becomes of the
    model's parameters. The model is evaluated in eval mode, with gradients for its inputs where these ask for some.
    All weights of all draws are kept in memory.
    """
    if n_functions < 1:
        raise ValueError(f"n_functions must be at least 1; got {n_functions}")
    if isinstance(model, MLP):
        return model.sample_functions(n_functions, prior=prior)
    with torch.no_grad():
        draws = Draws(model, n_functions, prior=prior)

    def functions(*inputs: Any, **keywords: Any) -> Tensor:
        with evaluating(model), draws.in_use():
            return torch.stack([output_tensor(model(*inputs, **keywords)) for _ in draws])

    return functions


class ModelPrediction(NamedTuple):
    """A model's prediction of each row; of classes, mean is their probabilities and the rest is of their indicators.

    std² = aleatoric_std² + epistemic_std²; the names are those of the predictions of tables.
    """

    mean: Tensor
    std: Tensor
    aleatoric_std: Tensor  # the noise that no data would take away
    epistemic_std: Tensor  # what more data would


@torch.no_grad()
def predict(
    model: nn.Module | Sequence[nn.Module],
    *inputs: Any,
    likelihood: Likelihood | None = None,
    n_samples: int = 100,
    batch_size: int = 1_024,
) -> ModelPrediction:
    """Mean and standard deviations of the target at every row of the inputs.

    The model is called in eval mode, once for each draw of its weights and each ``batch_size`` rows of dimension 0;
    its parameters, buffers and mode stay as they are.

    Args:
        model: any model with Bayesian layers, a :class:`~vmg.nn.BayesianHead`, :class:`~vmg.nn.Replicas`, or several of
            them: an ensemble, whose members count alike and whose disagreement is part of what is epistemic.
        *inputs: what it takes: tensors, or one mapping of keyword arguments.
        likelihood: the one it was trained with; without one the model's output itself is predicted. A head knows its
            own.
        n_samples: draws of the weights of each model.
        batch_size: rows at once.
    """
    if n_samples < 1 or batch_size < 1:
        raise ValueError(f"n_samples and batch_size must be at least 1; got {n_samples} and {batch_size}")
    if not inputs:
        raise ValueError("inputs must be at least one tensor or mapping; got none")
    if likelihood is not None and likelihood.is_untouched():
        warnings.warn(
            f"the noise of {type(likelihood).__name__} was never updated, so what it says about noise is its prior: "
            "train with vmg.elbo, or call likelihood.update_(f, y, n_data)",
            stacklevel=2,
        )
    whole = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
    members = list(model) if isinstance(model, HeadEnsemble | Sequence) else [model]
    if not members:
        raise ValueError("model must be at least one module; got none")
    parts = []
    for member in members:
        with evaluating(member):
            if isinstance(member, BayesianHead):
                parts.append(_predict_head(member, whole, n_samples, batch_size))
            elif isinstance(member, Replicas):
                f = torch.cat([call(member, rows) for rows in split_rows(whole, batch_size)], 1)
                parts.append(_mixture(f, likelihood))
            else:
                parts.append(_predict_draws(member, whole, likelihood, n_samples, batch_size))
    return _combine(parts)


def _predict_draws(
    model: nn.Module, whole: Any, likelihood: Likelihood | None, n_samples: int, batch_size: int
) -> ModelPrediction:
    mean = spread = noise = torch.zeros(())
    for number in range(1, n_samples + 1):
        with fixed_draw(model):
            f = torch.cat([call(model, rows) for rows in split_rows(whole, batch_size)])
        centre, variance = (f, torch.zeros_like(f)) if likelihood is None else likelihood.moments(f)
        if number == 1:
            mean, spread, noise = torch.zeros_like(centre), torch.zeros_like(centre), torch.zeros_like(variance)
        change = centre - mean  # Welford's recursion: no draw is kept
        mean = mean + change / number
        spread = spread + change * (centre - mean)
        noise = noise + variance
    return _prediction(mean, (noise / n_samples).expand_as(mean), spread / n_samples)


def _predict_head(head: BayesianHead, whole: Any, n_samples: int, batch_size: int) -> ModelPrediction:
    parts = [head.predict(rows, n_samples) for rows in split_rows(whole, batch_size)]
    mean, noise, epistemic = (
        torch.cat([getattr(part, name).expand_as(part.mean) for part in parts])
        for name in ("mean", "noise_variance", "epistemic_variance")
    )
    degrees = parts[0].degrees
    stretch = student_variance(torch.ones_like(degrees), degrees)
    return _prediction(mean, stretch * noise, stretch * epistemic)


def _prediction(mean: Tensor, aleatoric: Tensor, epistemic: Tensor) -> ModelPrediction:
    """A prediction from variances."""
    return ModelPrediction(mean, (epistemic + aleatoric).sqrt(), aleatoric.sqrt(), epistemic.sqrt())


def _mixture(functions: Tensor, likelihood: Likelihood | None) -> ModelPrediction:
    """Summary of functions [S, N, ...]: their disagreement is epistemic."""
    centre, noise = (functions, torch.zeros_like(functions)) if likelihood is None else likelihood.moments(functions)
    mean = centre.mean(0)
    return _prediction(mean, noise.expand_as(centre).mean(0), (centre - mean).square().mean(0))


def _combine(members: Sequence[ModelPrediction]) -> ModelPrediction:
    """The mixture of all members: what they disagree about is epistemic."""
    if len(members) == 1:
        return members[0]
    means = torch.stack([member.mean for member in members])
    within = torch.stack([member.epistemic_std for member in members]).square().mean(0)
    noise = torch.stack([member.aleatoric_std for member in members]).square().mean(0)
    return _prediction(means.mean(0), noise, within + means.var(0, correction=0))


class FrozenDraws(nn.Module):
    """Several functions from a posterior as plain networks, and what they predict together: :func:`freeze_draws`."""

    def __init__(self, functions: Sequence[nn.Module], likelihood: Likelihood | None) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)
        self.likelihood = likelihood

    def forward(self, *inputs: Any, **keywords: Any) -> ModelPrediction:
        """Mean, total, aleatoric and epistemic standard deviation."""
        drawn = torch.stack([output_tensor(function(*inputs, **keywords)) for function in self.functions])
        return _mixture(drawn, self.likelihood)


class FrozenHead(nn.Module):
    """A head as a plain network: closed forms of Gaussian noise, draws of the output weights of classes."""

    mean: Tensor
    root: Tensor
    noise: Tensor
    weights: Tensor

    def __init__(self, head: BayesianHead, n_samples: int) -> None:
        super().__init__()
        output = head.output
        self.features, self.bias = to_plain(head.features).requires_grad_(False), head.bias
        self.is_classifier = not isinstance(output, GaussianOutput)
        if isinstance(output, GaussianOutput):
            posterior = output.posterior()
            noise = student_variance(posterior.noise_variance.sqrt(), posterior.t_degrees.unsqueeze(-1))
            self.register_buffer("mean", posterior.mean)  # [..., D, C]
            self.register_buffer("root", posterior.weight_noise(torch.eye(output.gram.shape[-1]).to(output.gram)))
            self.register_buffer("noise", noise.unsqueeze(-2))  # [..., 1, C]
        else:
            self.register_buffer("weights", output.sample_weights(n_samples))  # [S, D, K]

    def forward(self, *inputs: Any, **keywords: Any) -> ModelPrediction:
        """Mean, total, aleatoric and epistemic standard deviation."""
        phi = output_tensor(self.features(*inputs, **keywords)).double()
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
        if self.is_classifier:
            return _mixture(phi @ self.weights, CategoricalLikelihood())
        mean = phi @ self.mean
        relative = (phi @ self.root).square().sum(-1, keepdim=True)
        return _prediction(mean, self.noise.expand_as(mean), relative * self.noise)


class FrozenEnsemble(nn.Module):
    """Several frozen models as one, whose members count alike."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Any, **keywords: Any) -> ModelPrediction:
        """Mean, total, aleatoric and epistemic standard deviation."""
        return _combine([member(*inputs, **keywords) for member in self.members])


@torch.no_grad()
def freeze_draws(
    model: nn.Module | Sequence[nn.Module], n_samples: int = 20, likelihood: Likelihood | None = None
) -> nn.Module:
    """A module that predicts as :func:`predict` does, from draws made now: no randomness, nothing Bayesian inside.

    It is made of plain modules of PyTorch, in eval mode, so one graph with mean and standard deviations can be exported
    from it. It takes whatever :func:`predict` takes. Of a model with Bayesian layers it holds ``n_samples`` copies, of
    a head of classes as many draws of the output weights; a head with Gaussian noise needs none.
    """
    if isinstance(model, HeadEnsemble | Sequence):
        return FrozenEnsemble([freeze_draws(member, n_samples, likelihood) for member in model]).eval()
    if isinstance(model, BayesianHead):
        return FrozenHead(model, n_samples).eval()
    if isinstance(model, Replicas):
        return FrozenDraws(model.members(), copy.deepcopy(likelihood)).eval().requires_grad_(False)
    functions = []
    with fixed_draw(model, n_samples) as draws:
        for _ in draws:
            functions.append(to_plain(model).requires_grad_(False))
    return FrozenDraws(functions, copy.deepcopy(likelihood)).eval()
