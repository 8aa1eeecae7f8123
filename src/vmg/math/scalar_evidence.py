"""An output layer of one function with any likelihood p(y | f), its Gaussian posterior at its optimum.

The function is f = φᵀw with the prior w ~ N(0, diag(a)⁻¹). The posterior q(w) = N(m, A⁻¹) maximises the bound

    Σ ω E_q log p(y | φᵀw) − KL(q ‖ prior).

Its natural parameters are sums over rows (conjugate computation, Khan & Lin 2017). With g and h the means over q of
the first and the negative second derivative of log p(y | f) at f ~ N(μ, v), μ = φᵀm and v = φᵀA⁻¹φ,

    A = diag(a) + Σ ω h φφᵀ,        b = A m = Σ ω φ (h μ + g).

For normal noise one step is exact. Means over f are Gauss–Hermite sums. Given q, features get the gradient of the
bound at a fixed q, ω(g m − h A⁻¹φ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vmg.math.distributions import hermite_rule
from vmg.math.evidence import GaussianWeights
from vmg.math.linalg import cholesky

__all__ = ["GaussianPrior", "ScalarPosterior", "ScalarRows", "mean_log_prob", "newton_step", "optimise", "scalar_bound"]

NODES = 11  # of the quadrature: exact for polynomials of f up to degree 21
HALVINGS = 8  # of a step of the mean that would make the bound smaller


class LogLikelihood(Protocol):
    """The part of p(y | f) that an output layer needs."""

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f) for f [..., N]."""

    def derivatives(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Its first and second derivative in f."""


class GaussianPrior(NamedTuple):
    """A Gaussian of the weights by its natural parameters: precision P [..., D, D] and P times the mean [..., D]."""

    precision: Tensor
    shift: Tensor

    @classmethod
    def from_precision(cls, precision: Tensor) -> GaussianPrior:
        """N(0, diag(a)⁻¹) from a [..., D]."""
        return cls(torch.diag_embed(precision), torch.zeros_like(precision))


class ScalarRows(NamedTuple):
    """Rows to condition on, and the quadrature of means over f at them."""

    features: Tensor  # Φ [..., N, D]
    y: Tensor  # targets of N rows
    weight: Tensor  # ω [..., N]
    likelihood: LogLikelihood
    n_nodes: int = NODES  # few are enough where variances are small

    def mean_fit(self, centre: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f), [..., N]."""
        f, weights = _at_nodes(centre, variance, self.n_nodes)
        return (self.likelihood.log_prob(f, self.y) * weights).sum(0)

    def mean_derivatives(self, centre: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """g and h, [..., N] each; h is kept from being negative, so that A is a precision."""
        f, weights = _at_nodes(centre, variance, self.n_nodes)
        first, second = self.likelihood.derivatives(f, self.y)
        return (first * weights).sum(0), -(second * weights).sum(0).clamp_max(0.0)


@dataclass(frozen=True)
class ScalarPosterior(GaussianWeights):
    """q(w) = N(m, A⁻¹): ``mean`` m [..., D] and ``root``, the lower Cholesky factor of A [..., D, D]."""

    def centre(self, features: Tensor) -> Tensor:
        """φᵀm of each row, [..., N]."""
        return _times(features, self.mean)

    def natural(self) -> GaussianPrior:
        """The posterior as a prior for rows to come."""
        precision = self.root @ self.root.mT
        return GaussianPrior(precision, _times(precision, self.mean))


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """The product of matrices [..., N, D] and vectors [..., D]."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _at_nodes(centre: Tensor, variance: Tensor, n_nodes: int) -> tuple[Tensor, Tensor]:
    """Values of f [K, ..., N] and their weights [K, 1, ...]."""
    nodes, weights = (torch.as_tensor(part).to(centre) for part in hermite_rule(n_nodes))
    shape = (-1, *[1] * centre.dim())
    return centre + variance.clamp_min(0.0).sqrt() * nodes.reshape(shape), weights.reshape(shape)


def mean_log_prob(
    likelihood: LogLikelihood, y: Tensor, centre: Tensor, variance: Tensor, n_nodes: int = NODES
) -> Tensor:
    """log E p(y | f), [..., N]: how probable targets are where f is not known."""
    f, weights = _at_nodes(centre, variance, n_nodes)
    return torch.logsumexp(likelihood.log_prob(f, y) + weights.log(), 0)


def newton_step(
    posterior: ScalarPosterior | None, rows: ScalarRows, prior: GaussianPrior, *, refresh: bool = True
) -> tuple[ScalarPosterior, Tensor]:
    """Take one step of m and set A for where it started; gives also ΦA⁻¹ with the A that the step began with.

    The step is halved for the members whose bound it would lower. From None it starts at the prior's precision, m = 0.

    Without ``refresh`` A stays as it is, which is right while features have moved little.
    """
    features, weight = rows.features, rows.weight
    if posterior is None:
        posterior = ScalarPosterior(torch.zeros_like(prior.shift), cholesky(prior.precision))
    spread = features @ posterior.covariance
    centre, variance = posterior.centre(features), (spread * features).sum(-1)
    g, h = rows.mean_derivatives(centre, variance)
    root = posterior.root
    if refresh:
        root = cholesky(prior.precision + (features * (weight * h).unsqueeze(-1)).mT @ features)
    uphill = _times(features.mT, weight * g) + prior.shift - _times(prior.precision, posterior.mean)
    step = torch.cholesky_solve(uphill.unsqueeze(-1), root).squeeze(-1)

    def bound(mean: Tensor, at_rows: Tensor) -> Tensor:
        fit = (weight * rows.mean_fit(at_rows, variance)).sum(-1)
        quadratic = (mean * _times(prior.precision, mean)).sum(-1)
        return fit - 0.5 * quadratic + (prior.shift * mean).sum(-1)

    start, moved = bound(posterior.mean, centre), _times(features, step)
    length = torch.ones_like(start)
    for _ in range(HALVINGS):
        reached = bound(posterior.mean + length.unsqueeze(-1) * step, centre + length.unsqueeze(-1) * moved)
        worse = ~(reached >= start - 1e-6 * start.abs())  # rounding alone is no loss
        if not worse.any():
            break
        length = torch.where(worse, 0.5 * length, length)
    moved_on = ScalarPosterior(posterior.mean + length.unsqueeze(-1) * step, root)
    if not refresh:
        moved_on.__dict__["covariance"] = posterior.covariance  # of the same A
    return moved_on, spread


def optimise(
    posterior: ScalarPosterior | None, rows: ScalarRows, prior: GaussianPrior, n_steps: int, tolerance: float = 0.0
) -> ScalarPosterior:
    """Take steps until none moves a weight by more than ``tolerance`` of its size, ``n_steps`` at most."""
    for _ in range(n_steps):
        before = posterior
        posterior, _ = newton_step(before, rows, prior)
        if before is not None and tolerance > 0:
            size = tolerance * (1 + posterior.mean.abs())
            if bool(((posterior.mean - before.mean).abs() <= size).all()):
                break
    assert posterior is not None, "n_steps must be at least 1"
    return posterior


def scalar_bound(rows: ScalarRows, prior_precision: Tensor, posterior: ScalarPosterior, spread: Tensor) -> Tensor:
    """The bound of each member at a fixed q, [...], for ``spread`` = ΦA⁻¹ of that q.

    The gradient reaches features, prior precisions a and the likelihood's own parameters.
    """
    centre, variance = posterior.centre(rows.features), (spread * rows.features).sum(-1)
    with torch.no_grad():
        g, h = rows.mean_derivatives(centre, variance)
    fit = rows.mean_fit(centre.detach(), variance.detach())
    # a sum whose value is nothing and whose gradient in the features is that of the fit
    pull = g * centre - h * variance
    fit = fit + pull - pull.detach()
    return (rows.weight * fit).sum(-1) - posterior.divergence(prior_precision)
