"""Targets that are a monotone function of a Student t: against integrals of the definition."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from vmg.prediction import StudentPrediction, TransformedPrediction
from vmg.prediction.student import LogTransform, Rectified

TRANSFORMS = {
    "log": LogTransform(60.0),
    "shifted log": LogTransform(60.0, 0.5),
    "rectified": Rectified(),
    "in doubt": Rectified(0.2),
}


def make(name, df=6.0):
    loc, noise, function = (np.array(part)[:, None] for part in ([0.5, 1.0, 2.0], [0.5, 0.8, 0.3], [0.1, 0.5, 0.4]))
    base = StudentPrediction(loc, noise, function, np.array([df]), lambda: function.T[..., None])
    return TransformedPrediction(base, TRANSFORMS[name])


@pytest.fixture(params=TRANSFORMS)
def prediction(request):
    return make(request.param)


def expectation(prediction, row, what):
    """E what(T(z)), or of z itself in doubt, by adaptive integration over z."""
    base, doubt = prediction.base, prediction.transform.negative_probability
    loc, scale = base.loc[row, 0], base.scale[row, 0]

    def weighted(t):
        z = loc + scale * t
        outcome = (1 - doubt) * what(prediction.transform.forward(z)) + doubt * what(z)
        return outcome * stats.t.pdf(t, base.df[0])

    inner = integrate.quad(weighted, -15, 15, limit=400, points=[-5, -1, 0, 1, 5])[0]
    tails = integrate.quad(weighted, 15, np.inf)[0] + integrate.quad(weighted, -np.inf, -15)[0]
    return inner + tails


def test_moments_are_integrals(prediction):
    for row in range(3):
        mean = expectation(prediction, row, lambda y: y)
        square = expectation(prediction, row, lambda y: y**2)
        np.testing.assert_allclose(prediction.mean[row], mean, rtol=1e-3)
        np.testing.assert_allclose(prediction.std[row], np.sqrt(square - mean**2), rtol=1e-2)
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2, rtol=1e-9)


def test_the_density_and_the_atom_sum_to_one(prediction):
    for row in range(3):
        one = prediction.take(np.array([row]))
        ends = [1e-12, *one.quantile([0.2, 0.4, 0.6, 0.9, 0.999, 1 - 1e-7])[0]]
        mass = np.exp(one.log_prob(np.zeros(1)))[0] + one.cdf(np.array([-1e-12]))[0]
        for a, b in pairwise(ends):
            if b > a:
                mass += integrate.quad(lambda y, one=one: float(np.exp(one.log_prob(np.array([y])))[0]), a, b)[0]
        np.testing.assert_allclose(mass, 1, rtol=1e-4)


@pytest.mark.parametrize("q", [0.01, 0.3, 0.5, 0.8, 0.999])
def test_quantiles_invert_the_cdf(prediction, q):
    found = prediction.quantile(q)
    inside = found != 0
    np.testing.assert_allclose(prediction.cdf(found)[inside], q, rtol=1e-9)
    assert (prediction.cdf(found)[~inside] >= q).all()


@pytest.mark.parametrize("name", ["log", "shifted log", "rectified"])
def test_negative_targets_are_impossible_without_doubt_and_their_score_is_finite(name):
    prediction, below = make(name), np.array([-1.0, -20.0, -1e9])
    assert (prediction.cdf(below) == 0).all()
    assert np.isfinite(prediction.log_prob(below)).all() and (np.exp(prediction.log_prob(below)) < 1e-6).all()
    assert np.isfinite(prediction.log_prob(np.zeros(3))).all()


def test_negative_targets_are_unlikely_in_doubt():
    prediction, below = make("in doubt"), np.array([-0.2, -1.0, -3.0])
    np.testing.assert_allclose(prediction.log_prob(below), np.log(0.2) + prediction.base.log_prob(below), rtol=1e-12)
    for row in range(3):
        one = prediction.take(np.array([row]))
        mass = integrate.quad(lambda y, one=one: float(np.exp(one.log_prob(np.array([y])))[0]), -np.inf, below[row])[0]
        np.testing.assert_allclose(one.cdf(below[row : row + 1])[0], mass, rtol=1e-6)
    drawn = prediction.sample(40_000, 0)
    np.testing.assert_allclose((drawn < 0).mean(0), prediction.cdf(np.full(3, -1e-12)), atol=0.005)


def test_doubt_wanes_with_the_number_of_targets():
    """The mean of the posterior Beta(1/2, 1/2 + N) of the share of negative targets after N that are not."""
    for n in (1, 10, 500):
        assert Rectified.after(n).negative_probability == pytest.approx(stats.beta(0.5, 0.5 + n).mean())


def test_no_bound_is_below_zero(prediction):
    assert prediction.interval(0.9999).min() >= 0
    assert prediction.transform.negative_probability or prediction.sample(100, 0).min() >= 0
    everything = prediction.interval_at(np.ones(1))
    assert (everything[:, 0] == 0).all() and np.isposinf(everything[:, 1]).all()


def test_crps_against_a_slow_version(prediction):
    for y in (np.array([0.3, 2.0, 9.0]), np.array([0.0, 40.0, 3.0]), np.array([-1.0, -0.2, 1.0])):
        if y.min() < 0 and not prediction.transform.negative_probability:
            continue
        found = prediction.crps(y)
        for row in range(3):
            one = prediction.take(np.array([row]))

            def gap(t, one=one, y=y[row]):
                return (one.cdf(np.array([t]))[0] - (t >= y)) ** 2

            lowest = [-5e2, -5.0] if one.transform.negative_probability else []
            ends = sorted({*lowest, 0.0, float(y[row]), *one.quantile([0.1, 0.5, 0.9, 0.999])[0], 5e3})
            slow = sum(integrate.quad(gap, a, b, limit=200)[0] for a, b in pairwise(ends))
            np.testing.assert_allclose(found[row], slow, rtol=2e-3, atol=2e-4)


def test_rows_far_above_zero_are_left_as_they_are():
    base = make("log").base
    above = StudentPrediction(base.loc + 100, base.noise_scale, base.function_scale, base.df, base.factor)
    rectified = TransformedPrediction(above, Rectified())
    y = np.array([99.0, 101.0, 103.0])
    for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
        assert np.array_equal(getattr(rectified, name), getattr(above, name))
    assert np.array_equal(rectified.log_prob(y), above.log_prob(y))
    assert np.array_equal(rectified.interval(0.9), above.interval(0.9))
    np.testing.assert_allclose(rectified.crps(y), above.crps(y), rtol=1e-3)


def test_the_logarithm_is_a_straight_line_beyond_its_ceiling():
    transform = LogTransform(60.0, 0.5)
    z = np.array([-3.0, 0.0, 3.0, np.log(60.0), 6.0, 100.0])
    y = transform.forward(z)
    np.testing.assert_allclose(transform.inverse(y)[1:], z[1:], rtol=1e-12)
    assert y[0] == 0 and y[-1] == pytest.approx(60 * (1 + 100 - np.log(60)) - 0.5)
    step = 1e-6
    slope = (transform.inverse(y[1:] + step) - transform.inverse(y[1:] - step)) / (2 * step)
    np.testing.assert_allclose(transform.log_slope(y[1:]), np.log(slope), atol=1e-3)
