"""A Bayesian output layer on any model: one pass over the rows, and new rows in milliseconds."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vmg.math.evidence import NoisePrior, log_precision_prior
from vmg.math.linalg import values_readable
from vmg.nn.draws import call, evaluating
from vmg.nn.output_layers import GaussianOutput, SoftmaxOutput
from vmg.nn.replicas import Replicas

__all__ = ["BayesianHead", "FunctionPosterior", "HeadEnsemble"]

IGNORED = -100  # the label of tokens that do not count, as in PyTorch's cross entropy
FEWEST_ROWS = 500  # of which a tenth may check the others


class HasNoisePrior(Protocol):
    """A likelihood, of which the head uses the prior of Gaussian noise; None of classes."""

    def noise_prior(self) -> NoisePrior | None: ...


class FunctionPosterior(NamedTuple):
    """Mean and covariance of the function at several rows, jointly; of classes, those of the logits."""

    mean: Tensor  # [N, C]
    covariance: Tensor  # between rows, [C, N, N]


class BayesianHead(nn.Module):
    """The output layer of a network, integrated out: its weights, and its noise, have a closed form or an optimum.

    Args:
        model: a trained model, whose last linear layer the head replaces; the model itself stays as it is. Where no
            ``nn.Linear`` makes the model's output, that output [N, n_features] is the features.
        likelihood: ``GaussianLikelihood(C)``: exact. ``FullCovarianceLikelihood(C)``: exact, with noise that is
            correlated between outputs. ``CategoricalLikelihood()``: Gaussian weights at the optimum of their bound. If
            None, integer targets are classes and others numbers. Only the likelihood's prior is used, its rate in units
            of the targets' variance.
        layer: name of the output layer, an ``nn.Linear``; "last" finds it. None: the model's outputs are features.
        keep_weights: keep the trained weights of the layer as the mean of the weights of classes; ``fit`` then only
            finds how sure to be of them. False fits the weights once more, at the optimum of their bound: for rows that
            did not train the features, as those that did become overconfident.
        n_features, n_outputs: seen from the first rows if None. With ``n_features`` the model's outputs are features.
        bias: append a one to the features.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: HasNoisePrior | None = None,
        *,
        layer: str | None = "last",
        keep_weights: bool = True,
        n_features: int | None = None,
        n_outputs: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if isinstance(likelihood, type):
            raise TypeError(f"likelihood must be an object, as {likelihood.__name__}(); got the class itself")
        own_prior = None if likelihood is None else likelihood.noise_prior()
        self.is_classifier: bool | None = None if likelihood is None else own_prior is None
        self.features, self.bias = model, bias
        self.noise_prior = NoisePrior() if likelihood is None else own_prior
        self._keeps = keep_weights
        self._start: Tensor | None = None
        self._n_outputs = n_outputs if n_outputs is not None else getattr(likelihood, "n_outputs", None)
        self._output: GaussianOutput | SoftmaxOutput | None = None
        self._layer = None if n_features is not None else layer
        if self._layer != "last":
            self._remove_layer(self._layer)
        if n_features is not None and (self._n_outputs is not None or self.is_classifier is not True):
            self._make_output(n_features, self._n_outputs or 1)

    def _remove_layer(self, name: str | None) -> None:
        """Work on a copy of the model without the linear layer of this name, or on the model's outputs for None."""
        self._layer = name
        if name is None:
            return
        linear = {key: part for key, part in self.features.named_modules() if isinstance(part, nn.Linear)}
        if name not in linear:
            raise ValueError(f"layer must name an nn.Linear of the model, one of {list(linear)}; got {name!r}")
        layer = linear[name]
        self._n_outputs = layer.out_features
        row = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
        self._start = torch.cat([layer.weight.mT, row.unsqueeze(0)]).detach()  # [D + 1, K]
        holder, _, last = name.rpartition(".")
        self.features = copy.deepcopy(self.features) if name else nn.Identity()
        if name:
            setattr(self.features.get_submodule(holder), last, nn.Identity())

    def _make_output(self, n_features: int, n_outputs: int) -> GaussianOutput | SoftmaxOutput:
        groups = (n_features, 1) if self.bias else (n_features,)
        output: GaussianOutput | SoftmaxOutput
        if self.is_classifier:
            start = self._start if self._keeps else None
            output = SoftmaxOutput(groups, n_outputs, None if start is None else start[: sum(groups)])
        else:
            self.is_classifier = False
            output = GaussianOutput(groups, n_outputs, noise_prior=self.noise_prior, relative=True, bias=self.bias)
            output.inflation = torch.ones(n_outputs, dtype=torch.float64)
        device = next((part.device for part in self.features.parameters()), None)
        self._output = output.to(device)
        return output

    @property
    def output(self) -> GaussianOutput | SoftmaxOutput:
        """The layer that is integrated out; its inputs are the features and, for the bias, a one."""
        if self._output is None:
            raise ValueError("the head has seen no rows yet: call fit or update, or give n_features and n_outputs")
        return self._output

    # -- the model ----------------------------------------------------------------------------------------------------

    def design(self, x: Any) -> Tensor:
        """Φ [N, D] of rows x, which may be whatever the model takes."""
        self._find_layer(x)
        phi = call(self.features, x)
        return torch.cat([phi, torch.ones_like(phi[..., :1])], -1) if self.bias else phi

    def _find_layer(self, x: Any) -> None:
        if self._layer == "last":
            with torch.no_grad(), evaluating(self.features):
                name = _output_layer(self.features, x)
            self._remove_layer(name)

    @torch.no_grad()
    def _design(self, x: Any) -> Tensor:
        """Φ in evaluation mode, without gradients."""
        self._find_layer(x)
        with evaluating(self.features):
            return self.design(x)

    def log_evidence(self, x: Any, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """log p(y | Φ(x)) of targets [N, C], an objective for the features and precisions."""
        output = self.output
        if not isinstance(output, GaussianOutput):
            raise TypeError(f"log_evidence needs Gaussian noise, for which it is exact; got {type(output).__name__}")
        return output.log_evidence(self.design(x), y, weight)

    def log_prior(self) -> Tensor:
        """Log prior of the log precisions, up to a constant."""
        return log_precision_prior(self.output.log_precision)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # optimisers inside need gradients
    @torch.no_grad()
    def fit(
        self,
        data: Any,
        y: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        learn_precision: bool = True,
        held_out: Any = None,
    ) -> BayesianHead:
        """Forget, and condition on all rows, in one pass of the model; precisions follow the evidence.

        Args:
            data: batches of (x, y) or (x, y, weight), or of mappings with ``labels``; or the inputs of all rows.
            y, weight: the targets of all rows, and how often each counts, where ``data`` has the inputs.
            learn_precision: choose the prior's precisions by the evidence; kept weights of classes have none.
            held_out: batches, or a pair (x, y), of rows that trained nothing; they correct how sure the head is. If
                None, every tenth row checks the others, and may only make the head less sure: rows that trained the
                features cannot tell whether it should be surer. The spread around kept weights of classes is the
                largest that costs the rows of the fit 0.0075 nats.

        Gaussian noise keeps sums over rows, classes the features of all rows until they are fitted. Rows that are
        refused leave the head as it was.
        """
        pieces: Iterator[_Rows] = (self._checked(*batch) for batch in _batches(data, y, weight))
        first = next(pieces, None)
        if first is None:
            raise ValueError("fit needs at least one row; got none")
        pieces = itertools.chain([first], pieces)
        if self.is_classifier:
            first = _joined(pieces)
            if len(first.y.unique()) < 2:
                raise ValueError(f"y must hold at least two classes; got {first.y[0].item()} alone")
            pieces = iter([first])
        output, check = self._new_output(first), None
        splits = held_out is None and learn_precision
        if isinstance(output, SoftmaxOutput):
            rest = first
            if splits and not output.keeps_start and len(first.y) >= FEWEST_ROWS:
                rest, check = first.split(0)
            output.fit(*rest, learn_precision=learn_precision)
        else:
            check = _add(output, pieces, splits=splits)
            if learn_precision:
                output.learn_precision()
        if held_out is not None:
            given = [held_out] if _is_pair(held_out) else held_out
            others = _joined([self._checked(*batch) for batch in _batches(given)])
            output.calibrate(others.phi.double(), others.y, only_widen=False)
        elif check is not None:
            output.calibrate(check.phi.double(), check.y, only_widen=True)
            output.update(*check)
        self._output = output
        return self

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, x: Any, y: Tensor, weight: Tensor | None = None) -> BayesianHead:
        """Condition on more rows; for Gaussian noise the result is that of seeing all rows at once."""
        rows = self._checked(x, y, weight)
        output = self._output = self._output or self._new_output(rows)
        is_new = values_readable(output.count) and not (output.count.any() or output.log_precision.any())
        output.update(*rows)
        if is_new and isinstance(output, GaussianOutput):
            output.start_precision()
        return self

    def _new_output(self, rows: _Rows) -> GaussianOutput | SoftmaxOutput:
        """An output layer that has seen no rows, with the settings of the present one if there is one."""
        if self._output is not None:
            output = copy.deepcopy(self._output)
            output.forget()
            return output
        n_outputs = self._n_outputs
        if n_outputs is None:
            n_outputs = int(rows.y.max()) + 1 if self.is_classifier else rows.y.shape[-1]
        self._n_outputs = n_outputs
        return self._make_output(rows.phi.shape[-1] - int(self.bias), n_outputs).to(rows.phi.device)

    @torch.no_grad()
    def _checked(self, x: Any, y: Tensor, weight: Tensor | None = None) -> _Rows:
        """Features, targets and weights of rows, or a ValueError that says what is wrong with them."""
        if not isinstance(y, Tensor):
            raise TypeError(f"y must be a tensor; got {type(y).__name__}")
        if self.is_classifier is None:
            self.is_classifier = not y.is_floating_point()
        phi = self._design(x)
        if self.is_classifier:
            if y.is_floating_point() or y.is_complex():
                raise ValueError(f"y must be integer classes, one per row; got {y.dtype}")
            if phi.dim() > 2 and y.shape == phi.shape[:-1]:  # tokens are rows
                counts = y.flatten() != IGNORED
                weight = None if weight is None else weight.expand(y.shape).flatten()[counts]
                phi, y = phi.flatten(0, -2)[counts], y.flatten()[counts]
        elif y.dim() == 1:
            y = y.unsqueeze(-1)
        n_rows = phi.shape[-2] if phi.dim() == 2 else 0
        if n_rows == 0:
            raise ValueError(f"features must be rows [N, D], at least one; got shape {tuple(phi.shape)}")
        width = phi.shape[-1] if self._output is None else sum(self._output.group_sizes)
        if phi.shape[-1] != width:
            raise ValueError(f"rows must have {width - self.bias} features, as before; got {phi.shape[-1] - self.bias}")
        expected = (n_rows,) if self.is_classifier else (n_rows, self._n_outputs or y.shape[-1])
        if y.shape != expected:
            kind = "integer classes, one per row" if self.is_classifier else f"numbers of shape {expected}"
            raise ValueError(f"y must be {kind}; got shape {tuple(y.shape)} for {n_rows} rows")
        if weight is not None and weight.shape != (n_rows,):
            raise ValueError(f"weight must have one number for each of {n_rows} rows; got shape {tuple(weight.shape)}")
        rows = _Rows(phi, y.long() if self.is_classifier else y, weight)
        if not values_readable(phi):
            return rows
        for name, values in (("features", phi), ("y", y)):
            if not torch.isfinite(values).all():
                raise ValueError(f"{name} must be finite; got NaN or infinite numbers")
        n_classes = self._n_outputs if self._output is None else self._output.n_outputs
        if self.is_classifier and (y.min() < 0 or (n_classes is not None and y.max() >= n_classes)):
            most = "" if n_classes is None else f" to {n_classes - 1}"
            raise ValueError(f"y must be classes from 0{most}; got {y.min().item()} to {y.max().item()}")
        if weight is not None and not (torch.isfinite(weight).all() and (weight >= 0).all() and weight.sum() > 0):
            raise ValueError("weight must be finite and not negative, with a positive sum")
        return rows

    # -- predicting ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, x: Any) -> Tensor:
        """The posterior mean of the function (of classes, the logits), [N, C]."""
        phi, output = self._design(x), self.output
        weights = output.mean * output.sharpness if isinstance(output, SoftmaxOutput) else output.posterior().mean
        return phi @ weights.to(phi.dtype)

    @torch.no_grad()
    def posterior(self, x: Any) -> FunctionPosterior:
        """Mean of the function and its covariance between rows, in double precision."""
        return FunctionPosterior(*self.output.joint(self._design(x).double()))

    @torch.no_grad()
    def sample_probabilities(self, x: Any, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of class probabilities at each row, [n_samples, N, K], in double precision."""
        output = self.output
        if not isinstance(output, SoftmaxOutput):
            raise TypeError("sample_probabilities needs a head of classes; got Gaussian noise")
        phi = self._design(x).double()
        logits = output.sample_logits(phi.flatten(0, -2), n_samples, generator)  # tokens are rows
        return torch.softmax(logits, -1).unflatten(1, phi.shape[:-1])

    @torch.no_grad()
    def sample_functions(self, x: Any, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw functions (of classes, logits) at x, each with one set of output weights: [n_samples, N, C]."""
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1; got {n_samples}")
        return self._design(x).double() @ self.output.sample_weights(n_samples, generator)

    # -- state --------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        """Name of the replaced layer, sizes and kind, for a head that has seen no rows and takes over a state."""
        sizes = None if self._output is None else (self._output.group_sizes, self._output.n_outputs)
        known = {"layer": self._layer, "is_classifier": self.is_classifier, "sizes": sizes}
        return torch.tensor(list(json.dumps(known).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing: :meth:`_load_from_state_dict` has used it already."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state = state_dict.get(f"{prefix}_extra_state")
        if state is not None and self._output is None:
            known = json.loads(bytes(state.tolist()))
            if known["sizes"] is not None:
                groups, n_outputs = known["sizes"]
                self.is_classifier = known["is_classifier"]
                if self._layer == "last":
                    self._remove_layer(known["layer"])
                self._make_output(groups[0], n_outputs)
        super()._load_from_state_dict(state_dict, prefix, *args)


class HeadEnsemble(nn.Module):
    """Heads on several models, fitted to the same rows; what they disagree about is epistemic.

    Args:
        models: trained models, or :class:`~vmg.nn.Replicas`, or heads.
        likelihood, **options: of every :class:`BayesianHead`.
    """

    def __init__(
        self, models: Iterable[nn.Module] | Replicas, likelihood: HasNoisePrior | None = None, **options: Any
    ) -> None:
        super().__init__()
        members = models.members() if isinstance(models, Replicas) else models
        heads = [one if isinstance(one, BayesianHead) else BayesianHead(one, likelihood, **options) for one in members]
        if not heads:
            raise ValueError("models must be at least one module; got none")
        self.heads = nn.ModuleList(heads)

    def __iter__(self) -> Iterator[BayesianHead]:
        return iter(self.heads)  # type: ignore[arg-type]

    def fit(self, *rows: Any, **options: Any) -> HeadEnsemble:
        """Fit every head to all rows, which are gone over once for each; see :meth:`BayesianHead.fit`."""
        for head in self:
            head.fit(*rows, **options)
        return self

    def update(self, *rows: Any) -> HeadEnsemble:
        """Condition every head on more rows."""
        for head in self:
            head.update(*rows)
        return self

    def forward(self, x: Any) -> Tensor:
        """The mean over heads of their functions (of classes, of their logits), [N, C]."""
        return torch.stack([head(x) for head in self]).mean(0)


# -- rows -------------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Features [N, D], targets [N] or [N, C], and weights [N]."""

    phi: Tensor
    y: Tensor
    weight: Tensor | None

    def split(self, offset: int) -> tuple[_Rows, _Rows]:
        """All but every tenth row, counted from ``offset``, and those rows."""
        is_check = (torch.arange(len(self.phi), device=self.phi.device) + offset) % 10 == 9
        rest, check = (_Rows._make(None if p is None else p[kept] for p in self) for kept in (~is_check, is_check))
        return rest, check


def _joined(pieces: Iterable[_Rows]) -> _Rows:
    phi, y, weight = zip(*pieces, strict=True)
    weights = None if weight[0] is None else torch.cat(weight)
    return _Rows(torch.cat(phi), torch.cat(y), weights)


def _add(output: GaussianOutput, pieces: Iterable[_Rows], *, splits: bool) -> _Rows | None:
    """Condition on all rows but every tenth, which are given back; on all where these would be too few."""
    checks, n_rows = [], 0
    for rows in pieces:
        rest = rows
        if splits:
            rest, check = rows.split(n_rows)
            checks.append(check)
        output.update(*rest)
        n_rows += len(rows.phi)
    if checks and n_rows >= FEWEST_ROWS:
        return _joined(checks)
    for check in checks:
        output.update(*check)
    return None


def _batches(data: Any, y: Tensor | None = None, weight: Tensor | None = None) -> Iterator[tuple[Any, ...]]:
    """Batches of inputs, targets and perhaps weights."""
    if y is not None:
        yield data, y, weight
        return
    if isinstance(data, Tensor | Mapping) or _is_pair(data):
        raise TypeError("give fit(x, y), or an iterable of batches (x, y), such as a DataLoader; got tensors without y")
    for batch in data:
        if isinstance(batch, Mapping) and "labels" in batch:
            yield {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
        elif isinstance(batch, tuple | list) and len(batch) in (2, 3):
            yield tuple(batch)
        else:
            kind = type(batch).__name__
            raise TypeError(f"a batch must be (x, y), (x, y, weight) or a mapping with labels; got {kind}")


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) in (2, 3) and all(isinstance(part, Tensor) for part in data)


# -- the output layer of a model --------------------------------------------------------------------------------------


def _output_layer(model: nn.Module, x: Any) -> str | None:
    """The name of the linear layer whose output is the model's; None if there is none."""
    outputs: dict[str, Any] = {}
    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output}))
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
    ]
    try:
        final = call(model, x)
    finally:
        for hook in hooks:
            hook.remove()
    return next((name for name, output in outputs.items() if output is final), None)
