"""Random posteriors and priors, for the tests of priors."""

import itertools

import pytest
import torch

from reference import (
    FAMILIES,
    normal,
    random_covariance,
)
from vmg.covariance import Diagonal
from vmg.math.matrix_normal import MatrixNormal
from vmg.priors import FixedPrior, GammaPrior

R, C = 4, 3
over_pairs = pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))
over_means = pytest.mark.parametrize("zero_mean", [False, True])
over_batches = pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)])


def random_posterior(row="rank_one", column="dense", batch_shape=(), zero_mean=False):
    """M (or None), U and V of a posterior, and the same as a distribution."""
    M = normal(*batch_shape, R, C, seed=1)
    U, _ = random_covariance(row, R, batch_shape, seed=10)
    V, _ = random_covariance(column, C, batch_shape, seed=20)
    q = MatrixNormal(torch.zeros_like(M) if zero_mean else M, U, V)
    return None if zero_mean else M, U, V, q


def isotropic(row_scale, column_scale):
    """MN(0, row_scale² I, column_scale² I) for scales of one shape."""
    rows, columns = row_scale.unsqueeze(-1).expand(*row_scale.shape, R), column_scale.unsqueeze(-1)
    return MatrixNormal(torch.zeros(R, C), Diagonal(rows), Diagonal(columns.expand(*column_scale.shape, C)))


def fixed_prior(batch_shape=()):
    return FixedPrior(
        normal(*batch_shape, R, C, seed=30), normal(*batch_shape, R, seed=31).exp(), normal(C, seed=32).exp()
    )


def gradient_prior(concentrations, rates, **options):
    """A GammaPrior whose posterior has the given (row, column) parameters."""
    prior = GammaPrior(conjugate=False, batch_shape=concentrations.shape[:-1], **options)
    with torch.no_grad():
        prior.log_concentration.copy_(concentrations.log())
        prior.log_rate.copy_(rates.log())
    return prior


def expected_square(M, U, V):
    """E‖W‖²."""
    return U.trace() * V.trace() + (0 if M is None else M.square().sum((-2, -1)))


def at_conjugate_posterior(prior, M, U, V):
    """The gradient version of a conjugate prior, its parameters set to the conjugate posterior."""
    a, b = prior.posterior(expected_square(M, U, V), R * C)
    return gradient_prior(a, b, concentration=prior.concentration, rate=prior.rate)


class PriorKL(torch.nn.Module):
    """A prior's KL as a forward pass, for functional_call."""

    def __init__(self, prior):
        super().__init__()
        self.prior = prior

    def forward(self, M, U, V):
        return self.prior.kl_divergence(M, U, V)
