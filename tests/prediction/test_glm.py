"""Predictions averaged over a function: every answer against sums and integrals of the mixture's own definition."""

from dataclasses import replace

import numpy as np
import pytest

from likelihoods.scalar_cases import CASES
from prediction.prediction_cases import LOC, SCALE, glm
from vmg.likelihoods.families import Beta, Binomial, Censored, Poisson
from vmg.prediction import GLMPrediction

NAMES = [name for name in CASES if name != "censored"]


@pytest.fixture(params=NAMES)
def prediction(request):
    return glm(request.param)


def test_ignorance_is_what_the_function_adds(prediction):
    sure = replace(prediction, function_scale=1e-9 * SCALE)
    assert (sure.epistemic_std < 1e-6 * prediction.epistemic_std).all()
    np.testing.assert_allclose(sure.mean, prediction.likelihood.mean(LOC - 1, prediction.theta), rtol=1e-6)


def test_columns_impossible_targets_and_everything(prediction):
    column = glm(prediction.likelihood.name, squeeze=False)
    assert column.mean.shape == (3, 1) and column.interval(0.5).shape == (3, 1, 2)
    assert (column.quantile([0.2, 0.8])[:, 0] == prediction.quantile([0.2, 0.8])).all()
    impossible = prediction.log_prob(np.array([-7.0, -7e3, 7e9 + 0.5]))
    assert np.isfinite(impossible).all() and (impossible > -150).all() and (impossible < -7).all()
    everything = prediction.interval_at(np.ones(1))
    assert (everything == np.array(prediction.likelihood.support)).all()


@pytest.mark.parametrize("likelihood", [Poisson(3.0, 60.0), Binomial(-0.4, 6), Beta(0.3)], ids=lambda one: one.name)
@pytest.mark.parametrize("scale", [0.9, 1.1, 3.0, 10.0, 50.0, 1e3])
def test_a_vague_function_is_averaged_over_all_that_it_may_be(likelihood, scale):
    """Between two values of f that are far apart a likelihood goes from one end to the other."""
    theta, z = np.array(likelihood.start), np.linspace(-9, 9, 40_001)
    loc, weight = np.array([0.4 * scale, 0.0, 0.2]), np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    scales = np.array([scale, scale, 0.3])
    prediction = GLMPrediction(loc, scales, likelihood, theta, lambda: np.diag(scales)[..., None])
    f = np.minimum(loc[:, None] + scales[:, None] * z, likelihood.highest)
    unit = 60.0 if likelihood.name == "poisson" else 1.0
    np.testing.assert_allclose(prediction.mean, likelihood.mean(f, theta) @ weight, atol=0.015 * unit)
    for share in (0.1, 0.5, 0.9):
        index = likelihood.index(np.full((3, 1), share * unit))
        exact = likelihood.cdf(index, f, theta) @ weight
        np.testing.assert_allclose(prediction.cdf(np.full(3, share * unit)), exact, atol=0.015)
    alone = prediction.take(np.array([2]))
    np.testing.assert_allclose(alone.cdf(np.full(1, 0.5)), prediction.cdf(np.full(3, 0.5))[2:], rtol=1e-14)


def test_other_trials_are_for_binomial_targets():
    with pytest.raises(ValueError, match="trials are of the likelihood binomial; got poisson"):
        glm("poisson").with_trials(3)


def test_seen_targets_of_a_censored_likelihood_are_normal():
    likelihood = Censored(2.0, 3.0)
    prediction = GLMPrediction(LOC, SCALE, likelihood, np.array([0.0]), lambda: np.diag(SCALE)[..., None])
    spread = 3 * np.hypot(1, SCALE)
    y = np.array([1.0, 2.0, 5.0])
    exact = -0.5 * ((y - 2 - 3 * LOC) / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(prediction.log_prob(y), exact, rtol=1e-6)
