"""Noise with the shape of a mixture: against numbers found by integration, and the mixture that made the errors."""

import numpy as np
import pytest
from scipy import integrate

from vmg.fit.calibration import Calibration, HeldOut
from vmg.fit.noise import NoiseShape, choose_shape, fit_noise_shape
from vmg.prediction import MixtureNoisePrediction

SHAPE = NoiseShape(np.array([0.5, 0.3, 0.2]), np.array([-0.7, 0.4, 2.0]), np.array([0.3, 0.8, 0.5]))


@pytest.fixture
def prediction():
    loc, noise, function = (np.array(part)[:, None] for part in ([0.0, 3.0, -2.0], [1.0, 0.5, 2.0], [0.2, 0.5, 1.0]))
    return MixtureNoisePrediction(loc, noise, function, np.array([5.0]), lambda: function.T[..., None], shapes=(SHAPE,))


def density(prediction, row):
    return lambda y: float(np.exp(prediction.take(np.array([row])).log_prob(np.array([y]))[0]))


@pytest.mark.parametrize("row", [0, 1, 2])
def test_density_mean_and_deviation(prediction, row):
    p = density(prediction, row)
    low, high = prediction.quantile(1e-9)[row], prediction.quantile(1 - 1e-9)[row]
    points = prediction.quantile([0.1, 0.3, 0.5, 0.7, 0.9])[:, row]
    total, mean, square = (
        integrate.quad(lambda y, k=k: y**k * p(y), low, high, points=points, limit=200)[0] for k in range(3)
    )
    np.testing.assert_allclose(total, 1, rtol=1e-6)
    np.testing.assert_allclose(mean, prediction.mean[row], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(square - mean**2), prediction.std[row], rtol=1e-5)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2)


def test_quantiles_invert_the_cdf_and_intervals_are_quantiles(prediction):
    for q in (0.001, 0.2, 0.5, 0.97):
        np.testing.assert_allclose(prediction.cdf(prediction.quantile(q)), q, rtol=1e-9)
    ends = np.stack([prediction.quantile(0.1), prediction.quantile(0.9)], 1)
    np.testing.assert_allclose(prediction.interval(0.8), ends, rtol=1e-9)
    assert np.isinf(prediction.interval_at(np.ones(1))).all()


def test_crps_is_its_integral(prediction):
    y = np.array([0.5, 1.0, 4.0])
    for row in range(3):
        one = prediction.take(np.array([row]))

        def gap(t, one=one, y=y[row]):
            return (one.cdf(np.array([t]))[0] - (t >= y)) ** 2

        low, high = one.quantile(1e-9)[0], one.quantile(1 - 1e-9)[0]
        exact = integrate.quad(gap, low, y[row], limit=300)[0] + integrate.quad(gap, y[row], high, limit=300)[0]
        np.testing.assert_allclose(prediction.crps(y)[row], exact, rtol=1e-5)


def test_draws_have_the_stated_moments(prediction):
    drawn = prediction.sample(40_000, 0)
    np.testing.assert_allclose(drawn.mean(0), prediction.mean, atol=0.05)
    np.testing.assert_allclose(drawn.std(0), prediction.std, rtol=0.05)


def test_the_mixture_that_made_errors_is_found():
    r = SHAPE.sample((4000,), np.random.default_rng(0))
    found = fit_noise_shape(r, np.ones(4000))
    grid = np.linspace(-3, 4, 50)
    np.testing.assert_allclose(found.cdf(grid), SHAPE.cdf(grid), atol=0.03)
    assert found.log_density(r).mean() > SHAPE.log_density(r).mean() - 0.005


def test_a_student_t_stays_one():
    rng = np.random.default_rng(0)
    errors = HeldOut(rng.standard_t(5, 500), np.zeros(500), np.ones(500))
    assert choose_shape(errors, 1.0, Calibration(1.0, 1.0, 5.0), 0, asked=False) is None
    skewed = HeldOut(rng.standard_exponential(500) - 1, np.zeros(500), np.ones(500))
    assert choose_shape(skewed, 0.6, Calibration(0.6, 1.0, 5.0), 0, asked=False) is not None
