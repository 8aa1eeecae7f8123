import numpy as np
import pytest
from scipy import integrate, stats

from vmg.prediction import StudentPrediction, widen


@pytest.fixture
def wide():
    """One row, a Student t with 6 degrees of freedom, location 2 and scale 1, with an extra deviation of 3."""
    base = StudentPrediction(
        np.array([[2.0]]), np.array([[0.6]]), np.array([[0.8]]), np.array([6.0]), lambda: np.zeros((1, 1, 1))
    )
    return base, widen(base, np.array([[3.0]]))


def test_the_extra_deviation_is_added_and_counts_as_ignorance(wide):
    base, found = wide
    assert found.std[0] == pytest.approx(np.hypot(base.std[0], 3))
    assert found.mean[0] == base.mean[0] and found.aleatoric_std[0] == base.aleatoric_std[0]
    assert found.epistemic_std[0] == pytest.approx(np.hypot(base.epistemic_std[0], 3))


def test_it_is_the_distribution_with_a_larger_scale(wide):
    base, found = wide
    exact = stats.t(6, 2, found.std[0] / base.std[0])
    for level in (0.01, 0.5, 0.95):
        at = found.quantile(level)
        assert at[0] == pytest.approx(exact.ppf(level), rel=1e-6)
        assert found.cdf(at)[0] == pytest.approx(level, rel=1e-6)
        assert found.log_prob(at)[0] == pytest.approx(exact.logpdf(at[0]), rel=1e-6)
    assert integrate.quad(lambda y: np.exp(found.log_prob([y])[0]), -200, 200, points=[2])[0] == pytest.approx(
        1, abs=1e-4
    )
    draws = found.sample(20_000, random_state=0)[:, 0]
    assert stats.kstest(draws, exact.cdf).pvalue > 0.001


def test_no_extra_deviation_changes_nothing(wide):
    base, _ = wide
    same = widen(base, np.zeros((1, 1)))
    np.testing.assert_array_equal(same.interval(0.9), base.interval(0.9))
