"""Hamiltonian Monte Carlo on targets whose moments are known, and its diagnostics on chains of known worth."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from vmg_paper.baselines.hamiltonian import DualAveraging, bulk_ess, sample, split_rhat, windows


def gaussian(mean, covariance):
    precision = torch.linalg.inv(covariance)

    def log_density(state):
        gradient = -(state - mean) @ precision
        return 0.5 * ((state - mean) * gradient).sum(-1), gradient

    return log_density


def test_a_correlated_gaussian_is_recovered():
    mean = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    root = torch.tensor([[2.0, 0.0, 0.0], [0.9, 0.5, 0.0], [-0.2, 0.1, 0.05]], dtype=torch.float64)
    covariance = root @ root.mT
    generator = torch.Generator().manual_seed(0)
    chains = sample(
        gaussian(mean, covariance),
        torch.zeros(4, 3, dtype=torch.float64),
        n_warmup=300,
        n_draws=600,
        path_length=2.0,
        generator=generator,
    )
    draws = chains.draws.numpy()
    assert split_rhat(draws).max() < 1.01
    assert chains.acceptance > 0.6
    assert chains.n_divergent == 0
    size = bulk_ess(draws)
    assert size.min() > 200
    flat = draws.reshape(-1, 3)
    scale = np.sqrt(covariance.diagonal().numpy())
    assert (np.abs(flat.mean(0) - mean.numpy()) < 4 * scale / np.sqrt(size)).all()
    # the standard error of a sample covariance is at most √2 σᵢσⱼ/√n, n that of the squares
    squares = bulk_ess((draws - mean.numpy()) ** 2).min()
    error = np.abs(np.cov(flat.T) - covariance.numpy())
    assert (error < 4 * math.sqrt(2) * np.outer(scale, scale) / np.sqrt(squares)).all()


def test_windows_cover_the_warm_up_and_double():
    ends = list(windows(1000))
    assert [end for end, _ in ends] == [150, 200, 300, 500, 900, 1000]
    assert [learns for _, learns in ends] == [False, True, True, True, True, False]


def test_dual_averaging_finds_the_step_with_the_target_acceptance():
    adapting = DualAveraging(0.1, 0.8)
    for _ in range(2000):
        adapting.update(math.exp(-math.exp(adapting.log_step)))  # acceptance e^−ε is 0.8 at ε = −log 0.8
    assert math.exp(adapting.log_average) == pytest.approx(-math.log(0.8), rel=0.02)


def test_a_start_without_density_is_refused():
    with pytest.raises(ValueError, match="log density must be finite"):
        sample(
            lambda s: (s.sum(-1) / 0, s),
            torch.zeros(2, 1, dtype=torch.float64),
            generator=torch.Generator().manual_seed(0),
        )


def autoregression(n, chains, rho, seed):
    rng = np.random.default_rng(seed)
    draws = np.empty((n, chains))
    draws[0] = rng.normal(size=chains)
    for t in range(1, n):
        draws[t] = rho * draws[t - 1] + math.sqrt(1 - rho**2) * rng.normal(size=chains)
    return draws


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.3])
def test_ess_of_an_autoregression(rho):
    n, chains = 5000, 4
    expected = n * chains * (1 - rho) / (1 + rho)
    assert float(bulk_ess(autoregression(n, chains, rho, 0))) == pytest.approx(expected, rel=0.1)


def test_folding_against_its_definition():
    draws = np.random.default_rng(0).normal(size=(100, 4)) * np.array([1.0, 1.0, 1.0, 2.0])
    halves = np.concatenate([draws[:50], draws[50:]], axis=1)
    found = []
    for values in (halves, np.abs(halves - np.median(halves))):
        ranks = stats.rankdata(values).reshape(values.shape)
        z = stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4))
        within, between = z.var(0, ddof=1).mean(), 50 * z.mean(0).var(ddof=1)
        found.append(math.sqrt((49 / 50 * within + between / 50) / within))
    assert split_rhat(draws) == pytest.approx(max(found)) and found[1] > found[0]


def test_few_draws_are_refused():
    with pytest.raises(ValueError, match="n >= 8"):
        split_rhat(np.zeros((4, 2)))
