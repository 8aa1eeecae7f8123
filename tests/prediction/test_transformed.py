"""Targets that are a monotone function of a Student t, and predictions with more ignorance."""

import numpy as np
import pytest
from scipy import stats

from prediction.prediction_cases import LOC, student
from vmg.prediction import AtomPrediction, StudentPrediction, TransformedPrediction
from vmg.prediction.transformed import LogTransform, Rectified


def make(transform, loc=0.0):
    return TransformedPrediction(student(df=6.0, loc=LOC + loc), transform)


@pytest.mark.parametrize("transform", [LogTransform(60.0), LogTransform(60.0, 0.5), Rectified(), Rectified(0.2)])
def test_amounts_are_never_negative(transform):
    prediction, below = make(transform), np.array([-1.0, -2.0, -5.0])
    assert (prediction.cdf(below) == 0).all() and prediction.sample(100, 0).min() >= 0
    assert prediction.interval(0.9999).min() >= 0
    everything = prediction.interval_at(np.ones(1))
    assert (everything[:, 0] == 0).all() and np.isposinf(everything[:, 1]).all()
    share = transform.negative_probability
    if share:  # the score of one that is negative all the same
        np.testing.assert_allclose(prediction.log_prob(below), np.log(share) + prediction.base.log_prob(below))
    else:
        assert (np.exp(prediction.log_prob(below)) < 1e-6).all()


def test_negative_targets_are_less_likely_after_many_that_are_not():
    """The mean of the posterior Beta(1/2, 1/2 + N) of the share of negative targets after N that are not."""
    for n in (1, 10, 500):
        assert Rectified.after(n).negative_probability == pytest.approx(stats.beta(0.5, 0.5 + n).mean())


def test_rows_far_above_zero_are_left_as_they_are():
    rectified = make(Rectified(), loc=100)
    above = rectified.base
    y = np.array([99.0, 101.0, 103.0])
    for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
        np.testing.assert_allclose(getattr(rectified, name), getattr(above, name), rtol=1e-15)
    assert np.array_equal(rectified.log_prob(y), above.log_prob(y))
    assert np.array_equal(rectified.interval(0.9), above.interval(0.9))
    np.testing.assert_allclose(rectified.crps(y), above.crps(y), rtol=1e-3)


def test_ignorance_far_from_the_rows_does_not_move_the_mean_of_amounts():
    centre, noise, function = np.full((1, 1), 0.5), np.full((1, 1), 0.1), np.full((1, 1), 20.0)
    base = StudentPrediction(centre, noise, function, np.array([6.0]), lambda: function.T[..., None])
    prediction = TransformedPrediction(base, Rectified())
    assert 0.5 < prediction.mean[0] < 0.7  # that of the distribution is 8.8
    assert prediction.std[0] > 10 and prediction.interval(0.9)[0, 1] > 30


def test_the_logarithm_is_a_straight_line_beyond_its_ceiling():
    transform = LogTransform(60.0, 0.5)
    z = np.array([-3.0, 0.0, 3.0, np.log(60.0), 6.0, 100.0])
    y = transform.forward(z)
    np.testing.assert_allclose(transform.inverse(y)[1:], z[1:], rtol=1e-12)
    assert y[0] == 0 and y[-1] == pytest.approx(60 * (1 + 100 - np.log(60)) - 0.5)
    step = 1e-6
    slope = (transform.inverse(y[1:] + step) - transform.inverse(y[1:] - step)) / (2 * step)
    np.testing.assert_allclose(transform.log_slope(y[1:]), np.log(slope), atol=1e-3)


# -- more ignorance ----------------------------------------------------------------------------------------------------


def test_an_extra_deviation_is_added_and_counts_as_ignorance():
    base, extra = student(df=6.0), np.array([[3.0], [0.0], [0.5]])
    wide = base.widened(extra)
    np.testing.assert_allclose(wide.std, np.hypot(base.std, extra[:, 0]), rtol=1e-12)
    np.testing.assert_allclose(wide.epistemic_std, np.hypot(base.epistemic_std, extra[:, 0]), rtol=1e-12)
    assert np.array_equal(wide.mean, base.mean) and np.array_equal(wide.aleatoric_std, base.aleatoric_std)
    exact = stats.t(6, base.mean, wide.std / np.sqrt(1.5))
    np.testing.assert_allclose(wide.quantile(0.9), exact.ppf(0.9), rtol=1e-9)
    between = wide.row_covariance() - base.row_covariance()  # all rows move together
    np.testing.assert_allclose(between, np.outer(extra, extra), atol=1e-12)


def test_amounts_widen_on_their_own_scale_and_atoms_stay():
    extra = np.full((3, 1), 0.7)
    rectified, chance = make(Rectified()), make(LogTransform(1.0), loc=-3)
    np.testing.assert_allclose(rectified.widened(extra).base.std, rectified.base.widened(extra).std)
    lognormal = make(LogTransform(60.0))
    wide, median = lognormal.widened(extra), lognormal.median
    added = np.sqrt(wide.base.std**2 - lognormal.base.std**2)
    np.testing.assert_allclose(added, np.log((median + 0.7) / median), rtol=1e-9)
    atom = AtomPrediction(0.0, chance, rectified)
    assert np.array_equal(atom.widened(extra).chance.mean, chance.mean)
    with pytest.raises(TypeError, match="cannot be widened"):
        super(StudentPrediction, rectified.base).widened(extra)
