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
from vmg.math.linalg import at_least_float32
from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.convert import to_plain
from vmg.nn.draws import Draws, call, evaluating, fixed_draw, output_tensor, split_rows
from vmg.nn.head import BayesianHead, HeadEnsemble
from vmg.nn.mlp import MLP
from vmg.nn.output_layers import GaussianOutput
from vmg.nn.replicas import Replicas
from vmg.objective import require_likelihood
from vmg.prediction.classes import ClassPrediction
from vmg.prediction.mixture import Prediction

__all__ = ["FrozenModel", "ModelPrediction", "Moments", "draw_functions", "freeze_draws", "predict", "sample_functions"]

NUMBERS_AT_ONCE = 2**19  # of a layer's output, all samples together: chunks of rows fit into the processor's cache
WEIGHTS_AT_ONCE = 2**24  # of drawn networks: more samples come in groups, as memory must not grow with their number
DRAWS_KEPT = 2**26  # numbers of all draws of a model's output, up to which a prediction keeps them


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


class Moments(NamedTuple):
    """Mean and standard deviations of each row; of classes, mean is their probabilities and the rest is of indicators.

    std² = aleatoric_std² + epistemic_std²; the names are those of the predictions of tables.
    """

    mean: Tensor
    std: Tensor
    aleatoric_std: Tensor  # the noise that no data would take away
    epistemic_std: Tensor  # what more data would


class _Mixture(NamedTuple):
    """Mean and variances of a mixture of draws, and its components, one tuple of tensors for each draw.

    Of numbers a component is the centre, scale and degrees of freedom of a Student t, of classes their probabilities.
    """

    mean: Tensor
    noise: Tensor
    epistemic: Tensor
    components: list[tuple[Tensor, ...]]

    def moments(self) -> Moments:
        return Moments(self.mean, (self.epistemic + self.noise).sqrt(), self.noise.sqrt(), self.epistemic.sqrt())


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
    batches, parts = list(split_rows(whole, batch_size)), []
    for member in _members(model):
        with evaluating(member):
            if isinstance(member, BayesianHead):
                parts.append(_predict_head(member, batches, n_samples))
            elif isinstance(member, Replicas):
                f = torch.cat([call(member, rows) for rows in batches], 1)
                parts.append(_mixture(f, likelihood, keep=f.numel() <= DRAWS_KEPT))
            else:
                parts.append(_predict_draws(member, batches, likelihood, n_samples))
    together = _combine(parts)
    prediction = ModelPrediction(*together.moments())
    prediction.components = together.components
    return prediction


def _members(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    members: list[nn.Module] = list(model) if isinstance(model, HeadEnsemble | Sequence) else [model]
    if not members:
        raise ValueError("model must be at least one module; got none")
    return members


def _predict_draws(model: nn.Module, batches: Sequence[Any], likelihood: Likelihood | None, n_samples: int) -> _Mixture:
    """The mixture of all draws, one after the other: those too large to be kept are gone once they are counted."""
    together: list[_Mixture] = []
    for number in range(n_samples):
        with fixed_draw(model):
            f = torch.cat([call(model, rows) for rows in batches]).unsqueeze(0)
        one = _mixture(f, likelihood, keep=n_samples * f.numel() <= DRAWS_KEPT)
        together = [_combine([*together, one], [number, 1])]
    return together[0]


def _predict_head(head: BayesianHead, batches: Sequence[Any], n_samples: int) -> _Mixture:
    output = head.output
    if not isinstance(output, GaussianOutput):
        drawn = torch.cat([head.sample_probabilities(rows, n_samples) for rows in batches], 1)
        return _mixture(drawn.log(), CategoricalLikelihood(), keep=drawn.numel() <= DRAWS_KEPT)
    mean, variance, noise = output.functions(torch.cat([head.design(rows) for rows in batches]).double())
    tails, noise = output.tails(), noise.expand_as(mean)
    component = mean, (noise + variance).sqrt(), output.posterior().t_degrees
    return _Mixture(mean, tails * noise, tails * variance, [component])


def _mixture(f: Tensor, likelihood: Likelihood | None, *, keep: bool = False) -> _Mixture:
    """The mixture of functions [S, N, ...]: their disagreement is epistemic."""
    f = at_least_float32(f)
    centre, noise = (f, torch.zeros_like(f)) if likelihood is None else likelihood.moments(f)
    parts = likelihood.components(f) if keep and likelihood is not None else ()
    components = list(zip(*(part.expand_as(centre) for part in parts), strict=True))
    mean = centre.mean(0)
    return _Mixture(mean, noise.expand_as(centre).mean(0), (centre - mean).square().mean(0), components)


def _combine(parts: Sequence[_Mixture], counts: Sequence[int] | None = None) -> _Mixture:
    """The mixture of all parts: equally weighted, or by the number of draws in each."""
    if len(parts) == 1:
        return parts[0]
    shares = parts[0].mean.new_tensor([1] * len(parts) if counts is None else counts)
    means, noise, epistemic = (torch.stack(each) for each in list(zip(*parts, strict=True))[:3])

    def average(values: Tensor) -> Tensor:
        return torch.tensordot(shares / shares.sum(), values, 1)

    mean = average(means)
    lists = [part.components for part in parts]
    if counts is None and all(lists):  # as many of each, evenly chosen from those with fewer
        n = max(map(len, lists))
        lists = [[own[k * len(own) // n] for k in range(n)] for own in lists]
    together = [one for own in lists for one in own] if all(lists) else []
    return _Mixture(mean, average(noise), average(epistemic + (means - mean).square()), together)


# -- export ----------------------------------------------------------------------------------------------------------


class FrozenModel(nn.Module):
    """Members without randomness, which count alike, and what they predict together: :func:`freeze_draws`."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Any, **keywords: Any) -> Moments:
        """Mean, total, aleatoric and epistemic standard deviation."""
        return _combine([member(*inputs, **keywords) for member in self.members]).moments()


class _FrozenFunctions(nn.Module):
    """Several functions as plain networks."""

    def __init__(self, functions: Sequence[nn.Module], likelihood: Likelihood | None) -> None:
        super().__init__()
        self.functions = nn.ModuleList(functions)
        self.likelihood = likelihood

    def forward(self, *inputs: Any, **keywords: Any) -> _Mixture:
        drawn = [output_tensor(function(*inputs, **keywords)) for function in self.functions]
        return _mixture(torch.stack(drawn), self.likelihood)


class _FrozenHead(nn.Module):
    """A head as a plain network: closed forms of Gaussian noise, draws of the output weights of classes."""

    mean: Tensor
    root: Tensor
    noise: Tensor
    weights: Tensor

    def __init__(self, head: BayesianHead, n_samples: int) -> None:
        super().__init__()
        output = head.output
        self.features, self.bias = to_plain(head.features), head.bias
        self.is_classifier = not isinstance(output, GaussianOutput)
        if isinstance(output, GaussianOutput):
            posterior = output.posterior()
            self.register_buffer("mean", posterior.mean)  # [..., D, C]
            self.register_buffer("root", posterior.weight_noise(torch.eye(output.gram.shape[-1]).to(output.gram)))
            self.register_buffer("noise", posterior.noise_variance.unsqueeze(-2) * output.tails())  # [..., 1, C]
        else:
            self.register_buffer("weights", output.sample_weights(n_samples))  # [S, D, K]

    def forward(self, *inputs: Any, **keywords: Any) -> _Mixture:
        phi = output_tensor(self.features(*inputs, **keywords)).double()
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
        if self.is_classifier:
            return _mixture(phi @ self.weights, CategoricalLikelihood())
        mean = phi @ self.mean
        relative = (phi @ self.root).square().sum(-1, keepdim=True)
        return _Mixture(mean, self.noise.expand_as(mean), relative * self.noise, [])


@torch.no_grad()
def freeze_draws(
    model: nn.Module | Sequence[nn.Module], n_samples: int = 20, likelihood: Likelihood | None = None
) -> FrozenModel:
    """A module that predicts as :func:`predict` does, from draws made now: no randomness, nothing Bayesian inside.

    It is made of plain modules of PyTorch, in eval mode, so one graph with mean and standard deviations can be exported
    from it. It takes whatever :func:`predict` takes. Of a model with Bayesian layers it holds ``n_samples`` copies, of
    a head of classes as many draws of the output weights; a head with Gaussian noise needs none.
    """
    members = [_frozen(member, n_samples, likelihood) for member in _members(model)]
    return FrozenModel(members).eval().requires_grad_(False)


def _frozen(model: nn.Module, n_samples: int, likelihood: Likelihood | None) -> nn.Module:
    if isinstance(model, BayesianHead):
        return _FrozenHead(model, n_samples)
    if isinstance(model, Replicas):
        functions = model.members()
    else:
        with fixed_draw(model, n_samples) as draws:
            functions = [to_plain(model) for _ in draws]
    return _FrozenFunctions(functions, copy.deepcopy(likelihood))
