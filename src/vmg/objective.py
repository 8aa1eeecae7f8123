"""The variational objective: the one place where the number of data and the weight of the KL meet.

E_q log p(y|f) − KL/N is a lower bound on the log evidence per datum where the divergence is that of the posterior which
draws f: without pseudo-data, with ``MatrixGaussianLinear(kl="conditional")`` and in ``GlobalInducingMLP``. With
pseudo-data and the paper's divergence [LW16, eq. 11], the layers' default, it is *not*: it may lie above the evidence,
up to the largest log-likelihood there is. See ``docs/notation.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.nn.contract import BayesianModule, kl_divergence
from vmg.nn.head import BayesianHead

__all__ = ["ElboTerms", "collapsed_elbo", "elbo", "elbo_terms"]


class ElboTerms(NamedTuple):
    """The objective per datum: E log p(y|f) and KL/N, each [*batch_shape]."""

    expected_log_likelihood: Tensor
    kl: Tensor

    @property
    def total(self) -> Tensor:
        """The objective per datum, a lower bound on the log evidence where its KL is honest; up is better."""
        return self.expected_log_likelihood - self.kl


def elbo_terms(
    network: nn.Module,
    likelihood: Likelihood,
    f: Tensor,
    y: Tensor,
    *,
    n_data: Tensor | float,
    kl_weight: float = 1.0,
    weight: Tensor | None = None,
) -> ElboTerms:
    """The objective at outputs f that ``network`` has drawn already; see :func:`elbo`."""
    log_prob = likelihood.expected_log_prob(f, y)  # [..., B]
    if weight is not None:
        log_prob = log_prob * weight
    kl = kl_divergence(network) + likelihood.kl_divergence()
    return ElboTerms(log_prob.mean(-1), (kl_weight / n_data) * kl)


def elbo(
    network: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    n_data: Tensor | float,
    kl_weight: float = 1.0,
    weight: Tensor | None = None,
) -> ElboTerms:
    """E_q log p(y|f) − (1/N) Σ KL from one posterior draw on a minibatch [LW16, eq. 11].

    An unbiased estimate of a lower bound on the log evidence per datum, but for layers with pseudo-data and the paper's
    KL, where it may exceed it (``kl="conditional"`` makes it a bound).

    Args:
        network: holds the Bayesian layers; ``network(x)`` draws f.
        likelihood: p(y | f).
        x, y: a minibatch.
        n_data: N, the rows in the whole training set, not in the batch; [*batch_shape] if replicas differ.
        kl_weight: 1 is the objective; anything else tempers the posterior.
        weight: of each row, with mean 1 over the training set (then N is the sum of the raw weights).
    """
    if not torch.isfinite(y).all():
        raise ValueError("y must be finite; got NaN or infinite values")
    return elbo_terms(network, likelihood, network(x), y, n_data=n_data, kl_weight=kl_weight, weight=weight)


def collapsed_elbo(
    head: BayesianHead, x: Tensor, y: Tensor, *, weight: Tensor | None = None, kl_weight: float = 1.0
) -> ElboTerms:
    """E_q log p(y | Φ(x)) − KL(q ‖ p) of the hidden layers, per datum, with the output layer integrated out.

    This is a lower bound on log p(y): the hidden layers' posterior q is the only approximation, and the KL is that of
    the q which draws the features. Features must come from one draw of weights for all rows: layers need
    ``sampling="weights"``. Where ``head.features`` has no Bayesian layer the bound is the exact log evidence.

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
