"""Members for targets whose likelihood has no closed form: an output layer of one function at its optimum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.members import Members
from vmg.likelihoods.scalar import ScalarLikelihood, Scatter
from vmg.math.evidence import group_precision, log_precision_prior
from vmg.math.scalar_evidence import GaussianPrior, ScalarPosterior, advance, mean_log_prob, scalar_bound, settle
from vmg.nn.anchored import AnchoredFeatures

__all__ = ["MemberFunctions", "ScalarMembers"]

Array = NDArray[np.float64]

FIRST_STEPS = 8  # of the output layer before training begins
REFRESH_EVERY = 5  # steps of the hidden layers; in between the mean alone follows them
TRAINING_NODES = 5  # of the quadrature over f, whose variance is small at rows that were seen
CHECKING_STEPS = 2  # from the posterior of the last training step
SETTLING_STEPS, TOLERANCE = 60, 1e-6  # where the hidden layers stand still


class MemberFunctions(NamedTuple):
    """Centre and variance of each member's function [E, n], and its parameters of the likelihood [E, P]."""

    loc: Array
    variance: Array
    theta: Array


class ScalarMembers(Members):
    """E networks of anchored features with one function each, and the likelihood's parameters θ."""

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        likelihood: ScalarLikelihood,
        activations: Sequence[str],
        n_members: int,
    ) -> None:
        super().__init__()
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, n_members=n_members)
        self.likelihood = likelihood
        self.log_precision = nn.Parameter(torch.zeros(n_members, len(self.features.group_sizes)))
        start = torch.as_tensor(likelihood.start(), dtype=torch.float32)
        self.theta = nn.Parameter(start.expand(n_members, -1).clone())
        self._posterior: ScalarPosterior | None = None  # of the last training step, to start the next one from
        self._n_steps = 0

    def prior_precision(self) -> Tensor:
        """a [E, D]: every group of features has one precision."""
        return group_precision(self.log_precision, self.features.group_sizes)

    @property
    def scatter(self) -> Scatter:
        """The likelihood with each member's own parameters."""
        return Scatter(self.likelihood, self.theta)

    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The bound of the output layer plus the anchored log prior."""
        phi, precision = self.features(x), self.prior_precision()
        with torch.no_grad():
            prior, scatter = GaussianPrior.of(precision), self.scatter
            before = self._posterior
            if before is None:
                before = settle(None, phi, y, prior, weight, scatter, FIRST_STEPS)
            fresh = self._n_steps % REFRESH_EVERY == 0
            self._posterior, spread = advance(
                before, phi, y, prior, weight, scatter, refresh=fresh, n_nodes=TRAINING_NODES
            )
            self._n_steps += 1
            moved = ScalarPosterior(self._posterior.mean, before.root)
            moved.__dict__["covariance"] = before.covariance  # the same A
        bound = scalar_bound(phi, y, precision, moved, spread, weight, self.scatter, TRAINING_NODES)
        return bound + self.features.log_prior() + log_precision_prior(self.log_precision), bound

    @torch.no_grad()
    def posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> ScalarPosterior:
        """The output layer's posterior given rows with weights [E, n]."""
        phi, prior = self.features(x), GaussianPrior.of(self.prior_precision())
        return settle(None, phi, y, prior, weight.to(phi), self.scatter, SETTLING_STEPS, TOLERANCE)

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberFunctions:
        """Functions of members that are conditioned on the rows they have seen, at all rows."""
        phi, prior = self.features(x), GaussianPrior.of(self.prior_precision())
        n_steps = FIRST_STEPS if self._posterior is None else CHECKING_STEPS
        found = settle(self._posterior, phi, y, prior, seen, self.scatter, n_steps, n_nodes=TRAINING_NODES)
        loc, variance = found.centre(phi), found.variance(phi)
        return MemberFunctions(*(part.double().numpy() for part in (loc, variance, self.theta.detach())))

    def score(self, predictions: MemberFunctions, y: Tensor, weight: Tensor) -> float:
        """Mean log probability of held-out targets."""
        loc, variance, theta = (torch.as_tensor(part) for part in predictions)
        log_prob = mean_log_prob(Scatter(self.likelihood, theta), y.double(), loc, variance)
        kept = weight > 0
        total = float((weight[kept] * log_prob[kept]).sum() / weight.sum())
        return total if math.isfinite(total) else -math.inf
