"""Likelihoods away from their priors, data for them, and the bound that they are part of."""

import pytest
import torch

from reference import assert_close, normal
from vmg.likelihoods import FullCovarianceLikelihood, GaussianLikelihood, HeteroscedasticLikelihood

N, C = 7, 3

CONJUGATE = {"gaussian": GaussianLikelihood, "full": FullCovarianceLikelihood}
over_conjugate = pytest.mark.parametrize("cls", list(CONJUGATE.values()), ids=list(CONJUGATE))


def data(*leading, n=N, c=C, seed=0):
    """Outputs f and targets y [*leading, n, c]."""
    return normal(*leading, n, c, seed=seed + 1), normal(*leading, n, c, seed=seed + 2)


def gaussian(a, b, **prior):
    """A gradient-version likelihood whose posterior is Gamma(a, b)."""
    likelihood = GaussianLikelihood(len(a), conjugate=False, **prior)
    with torch.no_grad():
        likelihood.log_concentration.copy_(a.log())
        likelihood.log_rate.copy_(b.log())
    return likelihood


def updated(likelihood, *leading, n=N, c=C, seed=0):
    """The likelihood after one conjugate update, away from its prior."""
    f, y = data(*leading, n=n, c=c, seed=seed)
    likelihood.update_(f, y, n)
    return likelihood


def updated_by(likelihood, f, y):
    """The likelihood after one conjugate update from the given data."""
    likelihood.update_(f, y, f.shape[-2])
    return likelihood


def assert_same_gamma(one, other):
    assert_close(one.concentration, other.concentration)
    assert_close(one.rate, other.rate)


A, B = torch.tensor([2.5, 4.0, 1.2], dtype=torch.float64), torch.tensor([1.3, 0.7, 3.0], dtype=torch.float64)


def heteroscedastic(c=C, fade=(0, 1), **options):
    """A likelihood whose fade is over and whose posterior is not its prior."""
    likelihood = HeteroscedasticLikelihood(c, fade=fade, **options)
    with torch.no_grad():
        likelihood.n_updates.fill_(fade[1])
        likelihood.log_concentration.copy_(A[:c].log().expand_as(likelihood.log_concentration))
        likelihood.log_rate.copy_(B[:c].log().expand_as(likelihood.log_rate))
    return likelihood


def bound(likelihood, f, y):
    """The terms of the evidence bound that hold the likelihood's own posterior."""
    return likelihood.expected_log_prob(f, y).sum(-1) - likelihood.kl_divergence()


class Bound(torch.nn.Module):
    """The bound as a forward pass, for functional_call."""

    def __init__(self, likelihood):
        super().__init__()
        self.likelihood = likelihood

    def forward(self, f, y):
        return bound(self.likelihood, f, y)
