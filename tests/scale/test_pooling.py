"""The prior that groups share."""

import numpy as np
import pytest
import torch

from vmg.fit.gaussian import RegressionMembers
from vmg.math.evidence import NoisePrior, RowStatistics, row_statistics
from vmg.scale.pooling import GroupPrior, learn_prior


def test_a_prior_around_mu_is_statistics_of_rows_never_seen():
    """Against the textbook's posterior of a Gaussian prior with a mean."""
    torch.manual_seed(0)
    phi, y = torch.randn(1, 7, 3, dtype=torch.float64), torch.randn(1, 7, 1, dtype=torch.float64)
    mu, a = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    prior = GroupPrior(mu, a.log(), (2, 1), NoisePrior(3.0, 0.7))
    found = prior.posterior(row_statistics(phi, y))
    precision = torch.diag(torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64))
    A = precision + phi[0].T @ phi[0]
    m = torch.linalg.solve(A, precision @ mu[0] + phi[0].T @ y[0, :, 0])
    b = 0.7 + 0.5 * (y.square().sum() + mu[0] @ precision @ mu[0] - m @ A @ m)
    torch.testing.assert_close(found.mean[0, :, 0], m)
    torch.testing.assert_close(found.noise_variance[0, 0], b / (3.0 + 3.5))
    none = prior.posterior(RowStatistics(*(torch.zeros_like(part) for part in row_statistics(phi, y))))
    torch.testing.assert_close(none.mean[0, :, 0], mu[0])  # a group of no rows is the prior itself
    torch.testing.assert_close(none.noise_variance[0, 0], torch.tensor(0.7 / 3.0, dtype=torch.float64))


def test_the_prior_of_groups_is_found_again():
    """Groups drawn from a known prior: its mean, precision and noise are learned from them."""
    rng = np.random.default_rng(0)
    members = RegressionMembers(2, (), ("relu",), 1).double()  # features: the inputs/√2 and a one
    mu, deviation, noise = np.array([1.0, -1.0, 3.0]), np.array([0.5, 0.5, 2.0]), 0.2
    rows = []
    for _ in range(300):
        x = torch.as_tensor(rng.normal(size=(15, 2)))
        w = mu + deviation * rng.normal(size=3)
        with torch.no_grad():
            phi = members.features(x)
        y = phi @ torch.as_tensor(w)[:, None] + noise * torch.as_tensor(rng.normal(size=(1, 15, 1)))
        rows.append(row_statistics(phi, y))
    members.head.update(phi, y[0])
    prior = learn_prior(rows, members)
    np.testing.assert_allclose(prior.mean[0], mu, atol=0.3)
    found = noise / prior.log_precision[0].exp().sqrt()  # a is in units of the noise's precision
    np.testing.assert_allclose(found, [0.5, 2.0], rtol=0.15)
    assert prior.noise.rate / prior.noise.concentration == pytest.approx(noise**2, rel=0.15)
