"""Predictions averaged over a function: every answer against sums and integrals of the mixture's own definition."""

from itertools import pairwise

import numpy as np
import pytest

from likelihoods.scalar_cases import CASES
from vmg.likelihoods.families import Censored, Poisson
from vmg.prediction import GLMPrediction

NAMES = [name for name in CASES if name != "censored"]
LOC, SCALE = np.array([-0.5, 0.2, 0.9]), np.array([0.1, 0.6, 0.3])


def make(name, squeeze=True):
    likelihood, theta, _ = CASES[name]
    return GLMPrediction(LOC, SCALE, likelihood, theta, lambda: np.diag(SCALE), squeeze)


@pytest.fixture(params=NAMES)
def prediction(request):
    return make(request.param)


def possible(prediction):
    """Values of a discrete target, nearly all of its mass."""
    counts = {"binomial": 7, "ordinal": 4}
    return prediction.likelihood.values(np.arange(float(counts.get(prediction.likelihood.name, 400))))


def probabilities(prediction, row, values):
    """p(y) of one row at many values."""
    return np.exp(prediction.take(np.full(len(values), row)).log_prob(values))


def grid(ends, n_nodes=60):
    """Gauss–Legendre nodes and weights between consecutive ends."""
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    parts = [(a + (b - a) * (nodes + 1) / 2, weights * (b - a) / 2) for a, b in pairwise(ends) if b > a]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def moments(prediction, row):
    """Mass, mean and second moment of one row, by summing or integrating p(y)."""
    if prediction.likelihood.discrete:
        values, weights = possible(prediction), 1.0
    else:
        levels = [1e-12, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9]
        values, weights = grid([0.0, *prediction.take(np.array([row])).quantile(levels)[0]])
    p = weights * probabilities(prediction, row, values)
    return [float(p @ values**power) for power in range(3)]


def test_the_mass_is_one_and_moments_are_stated(prediction):
    for row in range(3):
        mass, mean, square = moments(prediction, row)
        np.testing.assert_allclose(mass, 1, rtol=1e-5)
        np.testing.assert_allclose(mean, prediction.mean[row], rtol=1e-4)
        np.testing.assert_allclose(np.sqrt(square - mean**2), prediction.std[row], rtol=2e-3)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2)


def test_ignorance_is_what_the_function_adds(prediction):
    sure = GLMPrediction(LOC, 1e-9 * SCALE, prediction.likelihood, prediction.theta, prediction.factor)
    assert (sure.epistemic_std < 1e-6 * prediction.epistemic_std).all()
    np.testing.assert_allclose(sure.mean, prediction.likelihood.mean(LOC, prediction.theta), rtol=1e-6)


@pytest.mark.parametrize("q", [0.003, 0.2, 0.5, 0.9, 0.999])
def test_quantiles_invert_the_cdf(prediction, q):
    found = prediction.quantile(q)
    if prediction.likelihood.discrete:
        index = prediction.likelihood.index(found)
        assert (prediction.cdf(found) >= q).all()
        value_before = prediction.likelihood.values(np.maximum(index - 1, 0))
        assert ((prediction.cdf(value_before) < q) | (index == 0)).all()
    else:
        np.testing.assert_allclose(prediction.cdf(found), q, rtol=1e-6)


def test_crps_against_a_slow_version(prediction):
    y = prediction.quantile(0.3) if prediction.likelihood.discrete else prediction.quantile(0.3) * 1.01
    for target in (y, prediction.quantile(0.95)):
        found = prediction.crps(target)
        for row in range(3):
            if prediction.likelihood.discrete:
                values = possible(prediction)
                p = probabilities(prediction, row, values)
                slow = p @ np.abs(values - target[row]) - 0.5 * p @ np.abs(values[:, None] - values) @ p
            else:
                one = prediction.take(np.array([row]))
                ends = np.sort([0.0, target[row], *one.quantile([0.01, 0.5, 0.99, 1 - 1e-7])[0]])
                t, weights = grid(ends)
                below = prediction.take(np.full(len(t), row)).cdf(t)
                slow = weights @ (below - (t >= target[row])) ** 2
            np.testing.assert_allclose(found[row], slow, rtol=2e-3)


def test_draws_have_the_stated_moments(prediction):
    np.testing.assert_allclose(prediction.sample(20_000, 0).std(0), prediction.std, rtol=0.1)
    functions = prediction.sample_functions(20_000, 0)
    np.testing.assert_allclose(functions.std(0), prediction.epistemic_std, rtol=0.1)


def test_columns_impossible_targets_and_everything(prediction):
    column = make(prediction.likelihood.name, squeeze=False)
    assert column.mean.shape == (3, 1) and column.interval(0.5).shape == (3, 1, 2)
    assert (column.quantile([0.2, 0.8])[:, 0] == prediction.quantile([0.2, 0.8])).all()
    impossible = prediction.log_prob(np.array([-7.0, -7e3, 7e9 + 0.5]))
    assert np.isfinite(impossible).all() and (impossible > -150).all() and (impossible < -7).all()
    everything = prediction.interval_at(np.ones(1))
    assert (everything == np.array(prediction.likelihood.support)).all()
    for bad in (np.zeros(2), np.zeros((3, 3))):
        with pytest.raises(ValueError, match="y must have 3 rows"):
            prediction.cdf(bad)


def test_a_vague_function_has_finite_moments():
    far = GLMPrediction(np.zeros(1), np.array([50.0]), Poisson(3.0, 60.0), np.zeros(0), lambda: np.ones((1, 1)))
    assert np.isfinite([far.mean, far.std, far.quantile(0.99)]).all()
    assert far.mean < 60 * 50


def test_other_trials_are_for_binomial_targets():
    with pytest.raises(ValueError, match="trials are of the likelihood binomial; got poisson"):
        make("poisson").with_trials(3)


def test_seen_targets_of_a_censored_likelihood_are_normal():
    likelihood = Censored(2.0, 3.0)
    prediction = GLMPrediction(LOC, SCALE, likelihood, np.array([0.0]), lambda: np.diag(SCALE))
    spread = 3 * np.hypot(1, SCALE)
    y = np.array([1.0, 2.0, 5.0])
    exact = -0.5 * ((y - 2 - 3 * LOC) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(prediction.log_prob(y), exact, rtol=1e-6)
