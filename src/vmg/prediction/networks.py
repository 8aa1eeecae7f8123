"""Functions drawn from the posterior of a network, and what they predict."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood, Likelihood
from vmg.likelihoods.base import student_variance
from vmg.math.linalg import at_least_float32
from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.convert import to_plain
from vmg.nn.draws import Draws, call, evaluating, fixed_draw, output_tensor, split_rows
from vmg.nn.head import BayesianHead
from vmg.nn.mlp import MLP
from vmg.nn.outputs import GaussianOutput
from vmg.nn.replicas import Replicas
from vmg.objective import require_likelihood
from vmg.prediction.classes import ClassPrediction
from vmg.prediction.mixture import Prediction

__all__ = ["FrozenDraws", "ModelPrediction", "Moments", "draw_functions", "freeze_draws", "predict", "sample_functions"]

NUMBERS_AT_ONCE = 2**19
"""Numbers of a layer's output, all samples together: more rows come in chunks, which fit into the processor's cache."""

WEIGHTS_AT_ONCE = 2**24
"""Weights of drawn networks: more samples come in groups, so that memory does not grow with their number."""

DRAWS_KEPT = 2**26
"""Numbers of all draws of a model's output, up to which a prediction keeps them."""


@torch.no_grad()
def draw_functions(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Whole functions drawn from the posterior, evaluated at x in double precision: [n_draws, *batch_shape, N, C].

    One draw is one set of weights and depends on ``seed`` alone, so a row gets the same values whatever other rows
    come with it. ``network`` itself stays as it is.
    """
    exact, x = copy.deepcopy(network).double(), x.double()
    use_generator(exact, torch.Generator().manual_seed(seed))
    layers = [layer for layer in exact.layers if isinstance(layer, BayesianLinear)]
    replicas = layers[0].batch_shape.numel()
    n_weights = replicas * sum(layer.n_rows * layer.out_features for layer in layers)
    widest = max(layer.out_features for layer in layers)
    group = min(n_draws, max(1, WEIGHTS_AT_ONCE // n_weights))
    chunk = max(1, NUMBERS_AT_ONCE // (group * replicas * widest))
    outputs = []
    for start in range(0, n_draws, group):
        functions = exact.sample_functions(min(group, n_draws - start))
        outputs.append(torch.cat([functions(rows) for rows in x.split(chunk, dim=-2)], dim=-2))
    return torch.cat(outputs)


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


# -- predictions ------------------------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """Mean and standard deviations of each row; of classes, mean is their probabilities and the rest is of indicators.

    std² = aleatoric_std² + epistemic_std²; the names are those of the predictions of tables.
    """

    mean: Tensor
    std: Tensor
    aleatoric_std: Tensor  # the noise that no data would take away
    epistemic_std: Tensor  # what more data would


@dataclass
class _Summary:
    """Mean and variances of a mixture, and its components, one tuple of tensors for each draw.

    Of numbers a component is the centre, scale and degrees of freedom of a Student t, of classes their probabilities.
    """

    mean: Tensor
    noise: Tensor
    epistemic: Tensor
    components: list[tuple[Tensor, ...]]

    def moments(self) -> Moments:
        total = (self.epistemic + self.noise).sqrt()
        return Moments(self.mean, total, self.noise.sqrt(), self.epistemic.sqrt())


class ModelPrediction(Moments):
    """A model's prediction of each row: moments, and all that predictions of tables have, as tensors.

    Of numbers that is :class:`vmg.prediction.Prediction`: ``log_prob``, ``cdf``, ``quantile``, ``interval``,
    ``probability``, ``sample``, ``crps``, ... with the outputs as last dimension. Of classes it is
    :class:`vmg.prediction.ClassPrediction`: ``label``, ``predictive_entropy``, ``expected_entropy``,
    ``mutual_information``, ``log_prob``. Tokens of a sequence are rows of these.
    """

    components: Sequence[tuple[Tensor, ...]] = ()

    def distribution(self) -> Prediction | ClassPrediction:
        """The prediction of tables with the same distribution."""
        if not self.components:
            raise ValueError(
                "the distribution needs draws with a known noise: give vmg.predict the likelihood, Gaussian or of "
                f"classes, and so few rows that all draws have at most {DRAWS_KEPT} numbers"
            )
        parts = [torch.stack([one.expand_as(self.mean) for one in part]) for part in zip(*self.components, strict=True)]
        arrays = [part.double().cpu().flatten(1, -2).numpy() for part in parts]
        if len(arrays) == 1:
            return ClassPrediction(arrays[0], np.arange(self.mean.shape[-1]))
        loc, scale, df = arrays
        return Prediction(loc, scale, df, squeeze=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        answer = getattr(self.distribution(), name)
        return self._ask(answer) if callable(answer) else torch.as_tensor(answer, device=self.mean.device)

    def _ask(self, method: Callable[..., Any]) -> Callable[..., Tensor]:
        def ask(*arguments: Any, **keywords: Any) -> Tensor:
            given = [value.detach().cpu().numpy() if isinstance(value, Tensor) else value for value in arguments]
            return torch.as_tensor(method(*given, **keywords), device=self.mean.device)

        return ask


@torch.no_grad()
def predict(
    model: nn.Module | Sequence[nn.Module],
    *inputs: Any,
    likelihood: Likelihood | None = None,
    n_samples: int = 100,
    batch_size: int = 1_024,
) -> ModelPrediction:
    """Predict the target at every row of the inputs.

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
    if likelihood is not None:
        require_likelihood(likelihood)
    if likelihood is not None and likelihood.is_untouched():
        warnings.warn(
            f"the noise of {type(likelihood).__name__} was never updated, so what it says about noise is its prior: "
            "train with vmg.elbo, or call likelihood.update_(f, y, n_data)",
            stacklevel=2,
        )
    whole = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else inputs
    members = list(model) if isinstance(model, Sequence) else [model]
    if not members:
        raise ValueError("model must be at least one module; got none")
    parts = []
    for member in members:
        with evaluating(member):
            if isinstance(member, BayesianHead):
                parts.append(_predict_head(member, list(split_rows(whole, batch_size)), n_samples))
            elif isinstance(member, Replicas):
                f = torch.cat([call(member, rows) for rows in split_rows(whole, batch_size)], 1)
                parts.append(_summarise(f, likelihood, keep=f.numel() <= DRAWS_KEPT))
            else:
                parts.append(_predict_draws(member, whole, likelihood, n_samples, batch_size))
    together = _combine(parts)
    prediction = ModelPrediction(*together.moments())
    prediction.components = together.components
    return prediction


def _predict_draws(
    model: nn.Module, whole: Any, likelihood: Likelihood | None, n_samples: int, batch_size: int
) -> _Summary:
    summary: _Summary | None = None
    for number in range(n_samples):
        with fixed_draw(model):
            f = torch.cat([call(model, rows) for rows in split_rows(whole, batch_size)]).unsqueeze(0)
        one = _summarise(f, likelihood, keep=n_samples * f.numel() <= DRAWS_KEPT)
        summary = one if summary is None else _combine([summary, one], [number, 1])
    assert summary is not None
    return summary


def _predict_head(head: BayesianHead, batches: Sequence[Any], n_samples: int) -> _Summary:
    if not isinstance(head.output, GaussianOutput):
        drawn = torch.cat([head.sample_probabilities(rows, n_samples) for rows in batches], 1)
        return _summarise(drawn.log(), CategoricalLikelihood(), keep=drawn.numel() <= DRAWS_KEPT)
    mean, variance, noise = head.output.functions(torch.cat([head.design(rows) for rows in batches]).double())
    degrees = head.output.posterior().t_degrees
    tail, noise = student_variance(torch.ones_like(degrees), degrees), noise.expand_as(mean)
    return _Summary(mean, tail * noise, tail * variance, [(mean, (noise + variance).sqrt(), degrees)])


def _summarise(f: Tensor, likelihood: Likelihood | None, *, keep: bool = False) -> _Summary:
    """The mixture of functions [S, N, ...]: their disagreement is epistemic."""
    f = at_least_float32(f)
    centre, noise = (f, torch.zeros_like(f)) if likelihood is None else likelihood.moments(f)
    components: list[tuple[Tensor, ...]] = []
    if keep and isinstance(likelihood, CategoricalLikelihood):
        components = [(p,) for p in centre]
    elif keep and isinstance(likelihood, GaussianLikelihood | KnownNoiseLikelihood):
        loc, scale, df = likelihood.components(f)
        components = list(zip(loc, scale.expand_as(loc), df.expand_as(loc), strict=True))
    mean = centre.mean(0)
    return _Summary(mean, noise.expand_as(centre).mean(0), (centre - mean).square().mean(0), components)


def _combine(parts: Sequence[_Summary], counts: Sequence[int] | None = None) -> _Summary:
    """The mixture of all parts: equally weighted, or by the number of draws in each."""
    if len(parts) == 1:
        return parts[0]
    shares = parts[0].mean.new_tensor([1] * len(parts) if counts is None else counts)

    def average(values: Sequence[Tensor] | Tensor) -> Tensor:
        stacked = values if isinstance(values, Tensor) else torch.stack([*values])
        return torch.tensordot(shares / shares.sum(), stacked, 1)

    means = torch.stack([part.mean for part in parts])
    mean = average(means)
    epistemic = average([part.epistemic for part in parts]) + average((means - mean).square())
    lists = [part.components for part in parts]
    if counts is None and all(lists):  # as many of each, evenly chosen from those with fewer
        n = max(map(len, lists))
        lists = [[own[k * len(own) // n] for k in range(n)] for own in lists]
    together = [one for own in lists for one in own] if all(lists) else []
    return _Summary(mean, average([part.noise for part in parts]), epistemic, together)


# -- export ----------------------------------------------------------------------------------------------------------


class FrozenDraws(nn.Module):
    """Several functions from a posterior as plain networks, and what they predict together: :func:`freeze_draws`."""

    def __init__(self, functions: Sequence[nn.Module], likelihood: Likelihood | None) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)
        self.likelihood = likelihood

    def forward(self, *inputs: Any, **keywords: Any) -> Moments:
        """Mean, total, aleatoric and epistemic standard deviation."""
        drawn = torch.stack([output_tensor(function(*inputs, **keywords)) for function in self.functions])
        return _summarise(drawn, self.likelihood).moments()


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

    def forward(self, *inputs: Any, **keywords: Any) -> Moments:
        """Mean, total, aleatoric and epistemic standard deviation."""
        phi = output_tensor(self.features(*inputs, **keywords)).double()
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
        if self.is_classifier:
            return _summarise(phi @ self.weights, CategoricalLikelihood()).moments()
        mean = phi @ self.mean
        relative = (phi @ self.root).square().sum(-1, keepdim=True)
        return _Summary(mean, self.noise.expand_as(mean), relative * self.noise, []).moments()


class FrozenEnsemble(nn.Module):
    """Several frozen models as one, whose members count alike."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Any, **keywords: Any) -> Moments:
        """Mean, total, aleatoric and epistemic standard deviation."""
        each = [member(*inputs, **keywords) for member in self.members]
        parts = [_Summary(one.mean, one.aleatoric_std.square(), one.epistemic_std.square(), []) for one in each]
        return _combine(parts).moments()


@torch.no_grad()
def freeze_draws(
    model: nn.Module | Sequence[nn.Module], n_samples: int = 20, likelihood: Likelihood | None = None
) -> nn.Module:
    """A module that predicts as :func:`predict` does, from draws made now: no randomness, nothing Bayesian inside.

    It is made of plain modules of PyTorch, in eval mode, so one graph with mean and standard deviations can be exported
    from it. It takes whatever :func:`predict` takes. Of a model with Bayesian layers it holds ``n_samples`` copies, of
    a head of classes as many draws of the output weights; a head with Gaussian noise needs none.
    """
    if isinstance(model, Sequence):
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
