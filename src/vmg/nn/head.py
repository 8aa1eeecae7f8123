"""A Bayesian output layer on any model: one pass over the rows, and new rows in milliseconds."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vmg.math.evidence import NoisePrior, log_precision_prior
from vmg.nn.draws import call
from vmg.nn.outputs import GaussianOutput, SoftmaxOutput

__all__ = ["BayesianHead", "FunctionPosterior", "HeadPrediction"]


class HasNoisePrior(Protocol):
    """The part of a likelihood that the head uses."""

    def noise_prior(self) -> NoisePrior | None:
        """The prior of Gaussian noise; None of classes."""


class HeadPrediction(NamedTuple):
    """Prediction for each row and output, by its parts; the two variances add up.

    Targets have a Student t with these squared scales and ``degrees``. Of classes, ``mean`` is their probabilities, the
    variances are those of their indicators, and ``degrees`` is infinite.
    """

    mean: Tensor  # [..., N, C]
    noise_variance: Tensor  # [..., 1, C], or [N, C] of classes
    epistemic_variance: Tensor  # [..., N, C]
    degrees: Tensor  # of freedom, [...]


class FunctionPosterior(NamedTuple):
    """The function at several rows, jointly: Gaussian for each output; of classes, the logits."""

    mean: Tensor  # [..., N, C]
    covariance: Tensor  # between rows, [..., C, N, N]


class BayesianHead(nn.Module):
    """The output layer of a network, integrated out: its weights, and its noise, have a closed form or an optimum.

    Parameters
    ----------
    features : nn.Module
        Makes features [*batch_shape, N, n_features] of rows; frozen, trained, or random (a stack of Bayesian layers).
        With ``layer``, a whole model.
    likelihood : Likelihood, optional
        ``GaussianLikelihood()`` (as if None): exact. ``FullCovarianceLikelihood(C)``: exact, with noise that is
        correlated between outputs. ``CategoricalLikelihood()``: a Gaussian for each class at its optimum. Only the
        likelihood's prior is used, not what it has learned.
    layer : str, optional
        Name of the model's output layer, an ``nn.Linear``. The head works on a copy without it.
    keep_weights : bool
        Keep the weights of ``layer`` as the mean of the weights of classes: ``fit`` then only finds how sure to be of
        them. For a model that was trained on these rows: fitted to them once more its last layer becomes too sure.
    n_features, n_outputs : int, optional
        Seen from the first rows if None.
    bias : bool
        Append a one to the features.
    group_sizes : sequence of int, optional
        Consecutive features with a prior precision of their own; one group of all, and the bias, without.
    noise_prior : NoisePrior, optional
        In place of the likelihood's.
    batch_shape : sequence of int
        Replicas that ``features`` holds; Gaussian noise only.

    Examples
    --------
    Train the features by the evidence, or leave them as they are; then condition on all rows, in one pass:

    >>> head = BayesianHead(backbone, GaussianLikelihood()).fit(loader)  # doctest: +SKIP
    >>> head.update(new_x, new_y)                                        # doctest: +SKIP
    >>> mean, covariance = head.posterior(x)                             # doctest: +SKIP
    >>> vmg.predict(head, x).std                                         # doctest: +SKIP
    """

    def __init__(
        self,
        features: nn.Module,
        likelihood: HasNoisePrior | None = None,
        *,
        layer: str | None = None,
        keep_weights: bool = False,
        n_features: int | None = None,
        n_outputs: int | None = None,
        bias: bool = True,
        group_sizes: Sequence[int] | None = None,
        noise_prior: NoisePrior | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        own_prior = NoisePrior() if likelihood is None else likelihood.noise_prior()
        self.is_classifier = own_prior is None
        if self.is_classifier and (batch_shape or noise_prior):
            raise ValueError(f"a head of classes takes no batch_shape or noise_prior; got {batch_shape}, {noise_prior}")
        if keep_weights and not (self.is_classifier and layer is not None):
            raise ValueError("keep_weights needs CategoricalLikelihood() and the name of a trained layer; got neither")
        self._start: Tensor | None = None
        if layer is not None:
            features, replaced = _without_layer(features, layer)
            n_features, n_outputs = replaced.in_features, replaced.out_features
            self._start = _weights_of(replaced, bias=bias) if keep_weights else None
        self.features, self.bias, self.batch_shape = features, bias, torch.Size(batch_shape)
        self.noise_prior = noise_prior or own_prior
        self._groups = None if group_sizes is None else tuple(group_sizes)
        if n_outputs is None and not self.is_classifier:
            n_outputs = getattr(likelihood, "n_outputs", 1)
        self._n_outputs = n_outputs
        self._output: GaussianOutput | SoftmaxOutput | None = None
        if n_features is not None and n_outputs is not None:
            self._output = self._make_output(n_features, n_outputs)

    def _make_output(self, n_features: int, n_outputs: int) -> GaussianOutput | SoftmaxOutput:
        groups = self._groups or (n_features,)
        if sum(groups) != n_features:
            raise ValueError(f"group_sizes must add up to n_features ({n_features}); got {groups}")
        groups = (*groups, 1) if self.bias else groups
        if self.is_classifier:
            return SoftmaxOutput(groups, n_outputs, self._start)
        return GaussianOutput(groups, n_outputs, noise_prior=self.noise_prior, batch_shape=self.batch_shape)

    @property
    def output(self) -> GaussianOutput | SoftmaxOutput:
        """The layer that is integrated out; its inputs are the features and, for the bias, a one."""
        if self._output is None:
            raise ValueError("the head has seen no rows yet: call fit or update, or give n_features and n_outputs")
        return self._output

    # -- the model ----------------------------------------------------------------------------------------------------

    def design(self, x: Any) -> Tensor:
        """Φ [*batch_shape, N, D] of rows x, which may be whatever the model takes."""
        phi = call(self.features, x)
        return torch.cat([phi, torch.ones_like(phi[..., :1])], -1) if self.bias else phi

    def log_evidence(self, x: Any, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """log p(y | Φ(x)) [*batch_shape] of targets [N, C], a scalar objective for the features and precisions."""
        output = self.output
        if not isinstance(output, GaussianOutput):
            raise TypeError(f"log_evidence needs Gaussian noise, for which it is exact; got {type(output).__name__}")
        return output.log_evidence(self.design(x), y, weight)

    def log_prior(self) -> Tensor:
        """Log prior of the log precisions, up to a constant; [*batch_shape]."""
        return log_precision_prior(self.output.log_precision)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(
        self,
        batches: Iterable[Sequence[Any]],
        *,
        learn_precision: bool = True,
        held_out: Iterable[Sequence[Any]] | None = None,
    ) -> BayesianHead:
        """Condition on all rows of ``batches`` of (x, y), in one pass of the model; precisions follow the evidence.

        Gaussian noise keeps sums over rows. Classes keep the features of all rows in memory until they are fitted.
        Of classes, ``held_out`` may have batches of rows that trained nothing: where they contradict the evidence by
        more than a standard error, they scale the precisions, and with them how sure the head is.
        """
        if self._output is not None:
            self._output.forget()
        if self.is_classifier:
            phi, y = self._all_rows(batches)
            output = self._ensure_output(phi, y)
            assert isinstance(output, SoftmaxOutput)
            output.fit(phi, y, learn_precision=learn_precision)
            if held_out is not None:
                output.rescale(phi, y, *self._all_rows(held_out))
            return self
        if held_out is not None:
            raise ValueError("held_out must be None for Gaussian noise, whose evidence is exact; got rows")
        for x, y in batches:
            phi = self.design(x)
            self._ensure_output(phi, y).update(phi, y)
        if learn_precision:
            assert isinstance(self.output, GaussianOutput)
            self.output.learn_precision()
        return self

    def _all_rows(self, batches: Iterable[Sequence[Any]]) -> tuple[Tensor, Tensor]:
        kept = [(self.design(x), y) for x, y in batches]
        if not kept:
            raise ValueError("batches must have at least one row; got none")
        phi, y = (torch.cat(part) for part in zip(*kept, strict=True))
        return phi, y

    def forget(self) -> None:
        """Go back to before any rows were seen."""
        self.output.forget()

    @torch.no_grad()
    def update(self, x: Any, y: Tensor, weight: Tensor | None = None) -> BayesianHead:
        """Condition on more rows; for Gaussian noise the result is that of seeing all rows at once."""
        phi = self.design(x)
        self._ensure_output(phi, y).update(phi, y, weight)
        return self

    def _ensure_output(self, phi: Tensor, y: Tensor) -> GaussianOutput | SoftmaxOutput:
        if self._output is None:
            n_outputs = self._n_outputs
            if n_outputs is None:
                n_outputs = int(y.max()) + 1 if self.is_classifier else 1
            self._output = self._make_output(phi.shape[-1] - int(self.bias), n_outputs).to(phi.device)
        return self._output

    # -- predicting ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, x: Any) -> Tensor:
        """The posterior mean of the function (of classes, the logits), [*batch_shape, N, C]."""
        phi = self.design(x)
        return phi @ self.output.posterior().mean.to(phi.dtype)

    @torch.no_grad()
    def posterior(self, x: Any) -> FunctionPosterior:
        """Mean of the function and its covariance between rows, in double precision."""
        return FunctionPosterior(*self.output.joint(self.design(x).double()))

    @torch.no_grad()
    def predict(self, x: Any, n_samples: int = 200, generator: torch.Generator | None = None) -> HeadPrediction:
        """Predict targets at each row, in double precision; probabilities come from ``n_samples`` draws."""
        phi, output = self.design(x).double(), self.output
        if isinstance(output, GaussianOutput):
            mean, variance, noise = output.functions(phi)
            return HeadPrediction(mean, noise, variance, output.posterior().t_degrees)
        probabilities = torch.softmax(phi @ output.sample_weights(n_samples, generator), -1)
        mean, epistemic = probabilities.mean(0), probabilities.var(0, correction=0)
        return HeadPrediction(mean, mean * (1 - mean) - epistemic, epistemic, mean.new_tensor(torch.inf))

    @torch.no_grad()
    def sample_functions(self, x: Any, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw functions (of classes, logits) at x, each with one set of output weights: [n_samples, ..., N, C]."""
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1; got {n_samples}")
        return self.design(x).double() @ self.output.sample_weights(n_samples, generator)


def _without_layer(model: nn.Module, name: str) -> tuple[nn.Module, nn.Linear]:
    """A copy of a model whose linear layer ``name`` passes its inputs on, and that layer."""
    layer = dict(model.named_modules()).get(name)
    if not name or not isinstance(layer, nn.Linear):
        linear = [key for key, part in model.named_modules() if isinstance(part, nn.Linear)]
        raise ValueError(f"layer must name an nn.Linear of the model, one of {linear}; got {name!r}")
    copied = copy.deepcopy(model)
    holder, _, last = name.rpartition(".")
    setattr(copied.get_submodule(holder), last, nn.Identity())
    return copied, layer


def _weights_of(layer: nn.Linear, *, bias: bool) -> Tensor:
    """The weights of a layer [D, K], its bias, or zeros, as the last row; without that row where ``bias`` is False."""
    if not bias:
        if layer.bias is not None:
            raise ValueError("keep_weights needs bias=True for a layer with a bias; got bias=False")
        return layer.weight.detach().mT
    row = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return torch.cat([layer.weight.mT, row.unsqueeze(0)]).detach()
