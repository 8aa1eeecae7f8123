"""The contract of Bayesian layers, and functions that act on all layers of a model."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vmg.math.linalg import NARROW, all_finite, at_least_float32, randn, values_readable
from vmg.math.preactivations import augment, input_divisor
from vmg.nn.sharding import whole_divergence

__all__ = [
    *("HOOKS", "SHARDED", "BayesianLinear", "BayesianModule", "DrawnRun", "has_hooks", "kl_divergence"),
    *("no_autocast", "outermost", "parameter_groups", "plain_linear", "use_generator"),
]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a user on a module
SHARDED = "torch.distributed.tensor"  # loaded wherever parameters are spread over processes, and not before


def has_hooks(module: nn.Module) -> bool:
    """Whether a user has put hooks on a module."""
    return any(getattr(module, kind) for kind in HOOKS)


class BayesianModule(nn.Module, ABC):
    """A module with a posterior over its weights: each ``forward`` is one posterior draw.

    A layer never sees the number of data, an optimiser or a likelihood. It draws its noise from ``generator``, or from
    PyTorch's default generator where that is None.
    """

    generator: torch.Generator | None = None
    drawn: Any = None  # weights of draw_weights, which every call inside vmg.nn.fixed_draw uses

    @abstractmethod
    def kl_divergence(self) -> Tensor:
        """KL of the posterior to the prior: a sum over weights, never a mean; [*batch_shape]."""

    def draw_weights(self, *, prior: bool = False) -> Any:
        """One draw of the module's own weights; None where all weights are those of modules inside."""
        return None

    def as_plain(self) -> nn.Module:
        """The plain module that :func:`~vmg.nn.to_plain` puts in the place of this one."""
        raise ValueError(f"{type(self).__name__} has no plain counterpart")

    def warn_of_mean(self, name: str) -> None:
        """Warn in training: a forward pass that takes the weight itself, as ``F.linear`` does, would draw nothing."""
        if self.training and torch.is_grad_enabled():
            warnings.warn(
                f"{name} of a {type(self).__name__} is its mean, without noise: call the layer itself in a forward "
                "pass, and read the weight inside torch.no_grad()",
                stacklevel=3,
            )


def _is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Operations in the precision of their tensors, also where a user's autocast would lower it."""
    return torch.autocast(x.device.type, enabled=False) if _is_autocast(x) else contextlib.nullcontext()


@torch.no_grad()
def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An ``nn.Linear`` with a copy of these weights [out, in] and bias [out]."""
    n_out, n_in = weight.shape
    linear = nn.Linear(n_in, n_out, bias is not None, dtype=weight.dtype, device=weight.device)
    linear.weight.copy_(weight)
    if bias is not None:
        linear.bias.copy_(bias)
    return linear


class BayesianLinear(BayesianModule):
    """A linear map y = x̂W with a random weight matrix W [R, C], x̂ = [x, 1]/√R.

    Kinds of layers differ in the distribution of W and in how ``forward`` draws outputs from it.

    Args:
        in_features, out_features, bias: as in ``nn.Linear``; the bias is one more row of W.
        batch_shape: independent replicas in one module: parameters gain these leading dimensions, inputs are
            [*batch_shape, B, in] or, shared by all replicas, [B, in].
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, batch_shape: Sequence[int]) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1; got {size}")
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.batch_shape = torch.Size(batch_shape)

    @property
    def n_rows(self) -> int:
        """R: inputs, and one more for the bias."""
        return self.in_features + int(self.has_bias)

    @property
    def weight(self) -> Tensor:
        """:meth:`mean_weight` as ``nn.Linear`` has it, [*batch_shape, out, in], scaling folded in."""
        self.warn_of_mean("weight")
        return self.as_linear(self.mean_weight())[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias of :meth:`mean_weight`, [*batch_shape, out]; None where ``has_bias`` is False."""
        return self.as_linear(self.mean_weight())[1]

    def as_linear(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """W [..., R, C] as the weight [..., out, in] and bias [..., out] that an ``nn.Linear`` would have."""
        scaled = weight / input_divisor(self.n_rows)
        bias = scaled[..., self.in_features, :] if self.has_bias else None
        return scaled[..., : self.in_features, :].mT, bias

    def extra_repr(self) -> str:
        text = f"{self.in_features}, {self.out_features}, bias={self.has_bias}"
        if self.batch_shape:
            text += f", batch_shape={tuple(self.batch_shape)}"
        return f"{text}, parameters={sum(p.numel() for p in self.parameters())}"

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start anew."""

    def forward(self, x: Tensor) -> Tensor:
        """Draw outputs [*batch_shape, B, out] for x [B, in] or [*batch_shape, B, in].

        Without ``batch_shape`` any leading dimensions of x are data, as in ``nn.Linear``.
        """
        if self.drawn is not None:
            return self.apply_weight(x, self.drawn)
        rows = self.as_rows(x)
        with no_autocast(rows):
            out = self._draw_rows(rows).to(self._dtype())
        return out if self.batch_shape else out.reshape(*x.shape[:-1], self.out_features)

    def _draw_rows(self, x: Tensor) -> Tensor:
        return self._draw(augment(self.check_finite(x), self.has_bias))

    @abstractmethod
    def _draw(self, x: Tensor) -> Tensor:
        """Outputs [*batch_shape, B, C] at augmented inputs x̂ [..., B, R]."""

    @abstractmethod
    def mean_weight(self) -> Tensor:
        """W with all that it is made of at its mean, [*batch_shape, R, C]."""

    @abstractmethod
    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the posterior, each one a whole function."""

    def draw_weights(self, *, prior: bool = False) -> Tensor:
        return self.sample_prior_weight() if prior else self.sample_weight()

    def forward_mean(self, x: Tensor) -> Tensor:
        """The output at :meth:`mean_weight`; no randomness."""
        return self.apply_weight(x, self.mean_weight())

    def apply_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        """x̂ W for a weight matrix of :meth:`sample_weight`."""
        x = self.check_finite(self.check_shape(self._enter(x)))
        with no_autocast(x):
            return (augment(x, self.has_bias) @ weight).to(self._dtype())

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the prior, where it can be drawn from."""
        raise NotImplementedError(f"{type(self).__name__} has no prior to draw weights from")

    def sample_function(self, n_functions: int, *, prior: bool = False) -> Callable[[Tensor], Tensor]:
        """Draw whole functions f(x) [n_functions, *batch_shape, B, out], the same at every call, in x's precision."""
        slope, constant = self.as_linear((self.sample_prior_weight if prior else self.sample_weight)((n_functions,)))
        slope = slope.contiguous()

        def function(x: Tensor) -> Tensor:
            out = (slope.to(x.dtype) @ self.check_finite(self.check_shape(x)).mT).mT  # the fast order of narrow layers
            return out if constant is None else out.add_(constant.unsqueeze(-2))

        return function

    def plain_weight(self) -> Tensor:
        """W [*batch_shape, R, C] of a plain copy: of the draw in use, or else the mean."""
        return self.mean_weight() if self.drawn is None else self.drawn

    def as_plain(self) -> nn.Linear:
        if self.batch_shape:
            raise ValueError(
                f"to_plain and to_linear need single layers; got one of {tuple(self.batch_shape)} replicas"
            )
        return plain_linear(*self.as_linear(self.plain_weight().to(self._dtype())))

    def to_linear(self) -> nn.Linear:
        """:meth:`mean_weight` as a plain ``nn.Linear``, scaling folded in."""
        return self.as_plain()

    # -- noise, precision and checks ----------------------------------------------------------------------------------

    def draw_noise(self, *shape: int) -> Tensor:
        """Standard normal, of the parameters' kind."""
        return randn(shape, like=at_least_float32(next(self.parameters())), generator=self.generator)

    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _wide_dtype(self) -> torch.dtype:
        """Precision of what the layer computes: that of its parameters, but single at least."""
        own = self._dtype()
        return torch.float32 if own in NARROW else own

    def _enter(self, x: Tensor) -> Tensor:
        """x in the precision the layer computes in: under autocast, or of narrow weights, that is another."""
        own = self._dtype()
        if x.dtype is own and own not in NARROW:
            return x
        return x.to(self._wide_dtype()) if x.dtype is own or _is_autocast(x) else x

    def as_rows(self, x: Tensor) -> Tensor:
        """x in the layer's own precision, as [B, in] where no replicas claim its leading dimensions."""
        x = self.check_shape(self._enter(x))
        if not self.batch_shape:
            return x if x.dim() == 2 else x.reshape(-1, self.in_features)
        if x.dim() > 2 and x.shape[:-2] != self.batch_shape:
            raise ValueError(
                f"x must be [B, {self.in_features}] or have leading dimensions {tuple(self.batch_shape)}; "
                f"got shape {tuple(x.shape)}"
            )
        return x

    def check_shape(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x must have {self.in_features} features in its last dimension; got {x.shape[-1]}")
        if x.numel() == 0:
            raise ValueError(f"x must have at least one row; got shape {tuple(x.shape)}")
        return x

    @staticmethod
    def check_finite(x: Tensor) -> Tensor:
        """x, which inside a network under training is not looked at: only the first layer sees raw data."""
        if not x.requires_grad and values_readable(x) and not all_finite(x):
            raise ValueError("x must be finite; got NaN or infinite values")
        return x


class DrawnRun(NamedTuple):
    """Layers that drew together (:mod:`vmg.nn.fusing`), and the sum of their divergences."""

    layers: Sequence[nn.Module]
    kl: Tensor


def kl_divergence(module: nn.Module, drawn: Sequence[DrawnRun] = ()) -> Tensor:
    """The KL divergence of every Bayesian module inside ``module``, summed; what one holds is its own to count.

    ``drawn`` has divergences that were taken together with a draw, the last one first to be used.
    """
    parts = list(outermost(module))
    if not parts:
        raise ValueError(f"{type(module).__name__} holds no Bayesian layer; see vmg.nn.bayesianize")
    terms, left = [], set[nn.Module](parts)
    for run in reversed(drawn):
        if left.issuperset(run.layers):
            terms.append(run.kl)
            left.difference_update(run.layers)
    whole = SHARDED not in sys.modules
    terms += [part.kl_divergence() if whole else whole_divergence(part) for part in parts if part in left]
    return functools.reduce(torch.add, terms)


def outermost(module: nn.Module) -> Iterator[BayesianModule]:
    """Bayesian modules that no other holds, each once."""
    inside: set[nn.Module] = set()
    for part in module.modules():
        if isinstance(part, BayesianModule) and part not in inside:
            inside.update(part.modules())
            yield part


def use_generator(module: nn.Module, generator: torch.Generator | None) -> None:
    """Let every Bayesian layer inside ``module`` draw from ``generator`` (None: PyTorch's default)."""
    for m in module.modules():
        if isinstance(m, BayesianModule):
            m.generator = generator


def parameter_groups(model: nn.Module, *, weight_decay: float = 0.01, **bayesian_options: Any) -> list[dict[str, Any]]:
    """Groups for ``torch.optim.AdamW``: ``weight_decay`` for deterministic matrices only.

    The KL divergence already draws the parameters of a Bayesian layer to its prior. Decay on top would count the prior
    twice and pull logarithms of scales to zero. Biases and the weights of norms are not decayed either, as is usual.

    Args:
        model: of which all trainable parameters are taken, each once.
        weight_decay: of deterministic weights with two or more dimensions.
        **bayesian_options: of the Bayesian group, such as ``lr``.
    """
    bayesian = {p for m in model.modules() if isinstance(m, BayesianModule) for p in m.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    rest = [p for p in trained if p not in bayesian]
    groups = [
        {"params": [p for p in trained if p in bayesian], "weight_decay": 0.0, **bayesian_options},
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
