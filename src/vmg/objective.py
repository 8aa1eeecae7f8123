"""The variational objective: the one place where the number of data and the weight of the KL meet.

E_q log p(y|f) − KL/N is a lower bound on the log evidence per datum where the KL is that of the posterior which draws
f: without pseudo-data, and with ``MatrixGaussianLinear(kl="conditional")``. With pseudo-data and the paper's KL [LW16,
eq. 11], the layers' default, it may exceed the log evidence, up to the largest log-likelihood; see
``docs/notation.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.likelihoods import Likelihood
from vmg.likelihoods.base import is_positive
from vmg.math.linalg import values_readable
from vmg.nn.bayesian import SHARDED, BayesianModule, DrawnRun, kl_divergence
from vmg.nn.draws import call, output_tensor
from vmg.nn.fusing import fused_runs
from vmg.nn.head import BayesianHead
from vmg.nn.sharding import is_parallel, project_pieces
from vmg.processes import gather_rows

__all__ = ["ElboTerms", "Objective", "collapsed_elbo", "elbo", "kl_warmup", "require_likelihood"]


class ElboTerms(NamedTuple):
    """The objective per datum: E log p(y|f) and KL/N, each [*batch_shape]; and f, the drawn outputs."""

    expected_log_likelihood: Tensor
    kl: Tensor
    f: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """The objective per datum; larger is better."""
        return self.expected_log_likelihood - self.kl


@dataclass(frozen=True)
class Objective:
    """The objective of one training set: the network, the likelihood, and N, by which a batch stands for all rows.

    With ``together`` the rows of all processes are one batch. With ``updates_first`` the likelihood takes in draws
    before the objective: at a prior that expects little noise the first gradient would be a thousand times the second,
    and an optimiser with a memory of squares would take small steps long afterwards.
    """

    network: nn.Module
    likelihood: Likelihood
    n_data: Tensor | float
    together: bool = False
    updates_first: bool = False

    def evaluate(
        self, x: Any, y: Tensor, weight: Tensor | None, *, kl_weight: float = 1.0, n_samples: int = 1
    ) -> ElboTerms:
        """Draw f at a minibatch and take the objective there, with a graph."""
        fuses = not torch.compiler.is_compiling() and library.available()
        runs: AbstractContextManager[Sequence[DrawnRun]] = fused_runs(self.network) if fuses else nullcontext(())
        with runs as drawn:
            f = _draw(self.network, x)
            if n_samples > 1:
                f = torch.stack([f, *(_draw(self.network, x) for _ in range(n_samples - 1))])
                y = y.expand(n_samples, *y.shape)
            kl = kl_divergence(self.network, drawn)
        if self.updates_first:
            self.update_likelihood(f.detach(), y, weight, kl.dim(), n_samples)
        log_prob = self.likelihood.expected_log_prob(f, y)  # [*samples, *batch_shape, B, *tokens]
        n_sample_dims = int(n_samples > 1)
        n_token_dims = log_prob.dim() - n_sample_dims - kl.dim() - 1
        if weight is not None:  # of rows, or of their tokens
            missing = log_prob.dim() - n_sample_dims - weight.dim()
            log_prob = log_prob * (weight[(..., *[None] * missing)] if n_token_dims > 0 else weight)
        if n_token_dims > 0:  # the tokens of a row are one datum
            log_prob = log_prob.flatten(-n_token_dims).sum(-1)
        if self.likelihood.has_posterior:
            kl = kl + self.likelihood.kl_divergence()
        fit = log_prob.mean(-1)
        return ElboTerms(fit.mean(0) if n_samples > 1 else fit, (kl_weight / self.n_data) * kl, f)

    def update_likelihood(
        self, f: Tensor | None, y: Tensor, weight: Tensor | None, rows: int, n_samples: int = 1
    ) -> None:
        """Let a conjugate posterior of the likelihood, such as that of the noise, take in the outputs of a batch.

        B is dimension ``rows``; samples and tokens are more rows.
        """
        if not self.likelihood.has_posterior:
            return
        assert f is not None
        first, n_data = rows + (n_samples > 1), self.n_data
        n_tokens = f.shape[first + 1 : -1].numel()
        if f.dim() > first + 2:
            if weight is not None:
                weight = weight.repeat_interleave(n_tokens, -1) if weight.dim() == rows + 1 else weight.flatten(rows)
            f, y, n_data = f.flatten(first, -2), y.flatten(first, -2), n_data * n_tokens
        if n_samples > 1:
            f, y = (values.movedim(0, first).flatten(rows, first) for values in (f, y))  # [..., B·S, C]
            weight = None if weight is None else weight.repeat_interleave(n_samples, -1)
        if self.together:
            f, y = gather_rows(f, rows), gather_rows(y, rows)
            weight = None if weight is None else gather_rows(weight, -1)
        self.likelihood.update_(f, y, n_data, weight)


def elbo(
    network: nn.Module,
    likelihood: Likelihood,
    x: Any,
    y: Tensor,
    *,
    n_data: Tensor | float,
    kl_weight: float = 1.0,
    weight: Tensor | None = None,
    n_samples: int = 1,
) -> ElboTerms:
    """E_q log p(y|f) − (1/N) Σ KL from posterior draws on a minibatch [LW16, eq. 11].

    In train mode, and where gradients are wanted, a likelihood with a conjugate posterior (of the noise, say) takes
    one step of it from the same draws: a loop of one's own needs no call of ``likelihood.update_``. A network in
    ``DistributedDataParallel`` or FSDP2 takes it from the rows of all processes, so that these stay equal.

    The estimate is unbiased, and its expectation a lower bound on the log evidence per datum, except for layers with
    pseudo-data and the paper's KL (``kl="conditional"`` makes it a bound).

    Args:
        network: holds the Bayesian layers; ``network(x)`` draws f.
        likelihood: p(y | f).
        x, y: a minibatch; x is what the network takes: a tensor, a sequence of arguments or a mapping of keywords.
            Where a row has several targets, such as the tokens of a sequence, f is [B, T, C] and their log-likelihoods
            are summed: the row is the datum.
        n_data: N, the rows in the whole training set, not in the batch; [*batch_shape] if replicas differ.
        kl_weight: 1 is the objective; anything else tempers the posterior. :func:`kl_warmup` gives one for each step.
        weight: of each row, with mean 1 over the training set (then N is the sum of the raw weights), or of each
            token, where 0 is padding.
        n_samples: draws to average over; with more than one, f has them as its first dimension.
    """
    require_likelihood(likelihood)
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor; got {type(y).__name__}")
    if not is_positive(n_data):
        raise ValueError(f"n_data must be positive, the number of rows in the training set; got {n_data}")
    if n_samples < 1:
        raise ValueError(f"n_samples must be at least 1; got {n_samples}")
    if y.is_floating_point() and values_readable(y) and not torch.isfinite(y).all():
        raise ValueError("y must be finite; got NaN or infinite values")
    if SHARDED in sys.modules:
        project_pieces(network)
    updates_first = likelihood.training and torch.is_grad_enabled()
    together = likelihood.has_posterior and is_parallel(network)
    objective = Objective(network, likelihood, n_data, together, updates_first)
    return objective.evaluate(x, y, weight, kl_weight=kl_weight, n_samples=n_samples)


def _draw(network: nn.Module, x: Any) -> Tensor:
    """One draw of the outputs, from inputs of any kind that :func:`call` takes."""
    f = network(x) if isinstance(x, Tensor) else call(network, x)
    return f if isinstance(f, Tensor) else output_tensor(f)


def require_likelihood(likelihood: Any) -> None:
    """Refuse what is no likelihood, such as the class of one."""
    if not isinstance(likelihood, Likelihood):
        got = f"the class {likelihood.__name__}" if isinstance(likelihood, type) else type(likelihood).__name__
        raise TypeError(f"likelihood must be an object such as vmg.likelihoods.CategoricalLikelihood(); got {got}")


def kl_warmup(step: int, n_steps: int) -> float:
    """The weight of the KL at a step, counted from zero: it grows in equal parts to one at step ``n_steps``.

    A smaller weight early on keeps units from being switched off before they are used.
    """
    if n_steps < 1 or step < 0:
        raise ValueError(f"n_steps must be at least 1 and step at least 0; got {n_steps} and {step}")
    return min(1.0, (step + 1) / (n_steps + 1))


def collapsed_elbo(
    head: BayesianHead, x: Tensor, y: Tensor, *, weight: Tensor | None = None, kl_weight: float = 1.0
) -> ElboTerms:
    """E_q log p(y | Φ(x)) − KL(q ‖ p) of the hidden layers, per datum, with the output layer integrated out.

    This is a lower bound on log p(y), as the hidden layers' posterior q is the only approximation. Features must come
    from one draw of weights for all rows: layers need ``sampling="weights"``. Where ``head.features`` has no Bayesian
    layer the bound is the exact log evidence.

    Args:
        head: a :class:`~vmg.nn.BayesianHead`; ``head.features`` holds the hidden layers.
        x, y: all rows, since targets are not independent once the output layer is integrated out.
        weight: of each row; a row of weight 2 counts as two.
        kl_weight: 1 is the bound; anything else tempers the posterior.
    """
    n_data = float(x.shape[-2]) if weight is None else weight.sum(-1)
    evidence = head.log_evidence(x, y, weight)
    bayesian = any(isinstance(module, BayesianModule) for module in head.features.modules())
    kl = kl_divergence(head.features) if bayesian else torch.zeros_like(evidence)
    return ElboTerms(evidence / n_data, kl_weight * kl / n_data)
