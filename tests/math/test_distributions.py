import numpy as np
import pytest
from scipy import special, stats

from vmg.math.distributions import find_quantiles, lowest

LEVELS = np.array([1e-9, 0.05, 0.5, 0.95, 1 - 1e-9])


@pytest.mark.parametrize("df", [2.1, 5.0, 1e6])
def test_quantiles_of_a_student_t(df):
    ends = np.full(LEVELS.shape, 1e6)
    found = find_quantiles(lambda x: special.stdtr(df, x), LEVELS, -ends, ends)
    np.testing.assert_allclose(special.stdtr(df, found), LEVELS, rtol=1e-9)
    np.testing.assert_allclose(found, stats.t.ppf(LEVELS, df), rtol=1e-7, atol=1e-12)


def test_few_evaluations_and_none_that_change_what_is_found():
    calls = []

    def cdf(x):
        calls.append(1)
        return special.ndtr(x) * 0.7 + special.ndtr((x - 8) / 0.1) * 0.3

    together = find_quantiles(cdf, 0.9, np.array([-1.0, 0.0, 7.0]), np.array([9.0, 50.0, 8.5]))
    assert len(calls) < 30  # bisection takes 55
    alone = [
        find_quantiles(cdf, 0.9, np.array([a]), np.array([b]))[0] for a, b in ((-1.0, 9.0), (0.0, 50.0), (7.0, 8.5))
    ]
    assert together.tolist() == alone
    np.testing.assert_allclose(cdf(together), 0.9, rtol=1e-12)


def test_jumps_flat_parts_and_ends():
    def atom(x):  # half of the probability is at zero
        return np.where(x < 0, 0.0, 0.5 + 0.5 * (1 - np.exp(-np.maximum(x, 0))))

    ends = np.zeros(3), np.full(3, 5.0)
    found = find_quantiles(atom, np.array([0.2, 0.5, 0.75]), *ends)
    np.testing.assert_allclose(found, [0, 0, np.log(2)], atol=1e-15)
    inside = find_quantiles(atom, np.array([0.2]), np.array([-3.0]), np.array([4.0]))
    np.testing.assert_allclose(inside, [0], atol=2.0**-56)
    same = find_quantiles(atom, 0.7, np.array([2.0]), np.array([2.0]))
    assert same.tolist() == [2.0]
    beyond = find_quantiles(special.ndtr, 0.99, np.array([-1.0]), np.array([1.0]))
    assert beyond.tolist() == [1.0]  # rounding may leave an end just short of the level


def test_the_lowest_point_is_the_best_of_all_starts():
    def valleys(x):
        return (x[0] ** 2 - 1) ** 2 + 0.3 * x[0] + (x[1] - 2) ** 2  # the left one is deeper

    options = {"first_step": 0.2, "rounds": 200, "x_tolerance": 1e-8, "loss_tolerance": 1e-12}
    right, both = (lowest(valleys, np.array(starts), **options) for starts in ([[1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]))
    assert right[0] > 0.9 and both[0] < -1
    np.testing.assert_allclose([right[1], both[1]], 2, atol=1e-6)
    assert lowest(valleys, np.array([[1.0, 0.0]]), **{**options, "rounds": 2})[1] < 1
