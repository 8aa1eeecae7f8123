import numpy as np
import pytest

from vmg_paper.data import cubic, osband


def test_cubic_has_the_papers_inputs_and_noise():
    x, y = cubic(seed=0)
    assert x.shape == (20, 1) and y.shape == (20,)
    assert x.dtype == y.dtype == np.float64
    x, y = cubic(20_000, seed=0)
    assert -4 <= x.min() < -3.99 and 3.99 < x.max() <= 4
    noise = y - x[:, 0] ** 3
    assert abs(noise.mean()) < 4 * 3 / np.sqrt(20_000)
    assert abs(noise.var() - 9) < 4 * 9 * np.sqrt(2 / 20_000)  # four standard errors of a Gaussian's variance


def test_osband_has_the_papers_inputs():
    x, y = osband(0)
    assert x.shape == (20, 1) and y.shape == (20,)
    assert x.dtype == y.dtype == np.float64
    assert x[:12].min() >= 0 and x[:12].max() <= 0.6
    assert x[12:].min() >= 0.8 and x[12:].max() <= 1


def test_osbands_noise_moves_the_input():
    generator = np.random.default_rng(0)
    draws = [osband(generator) for _ in range(2000)]
    x = np.concatenate([x[:, 0] for x, _ in draws])
    y = np.concatenate([y for _, y in draws])

    # Gauss-Hermite quadrature over ε gives the mean and the variance of y at each x.
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    moved = x[:, None] + np.sqrt(0.0009) * nodes  # [N, 20]
    curve = moved + np.sin(4 * moved) + np.sin(13 * moved)
    mean = curve @ weights
    variance = curve**2 @ weights - mean**2
    errors = (y - mean) / np.sqrt(variance)
    standard_error = 1 / np.sqrt(y.size)
    assert abs(errors.mean()) < 4 * standard_error
    assert abs(np.mean(errors**2) - 1) < 4 * np.std(errors**2) * standard_error


@pytest.mark.parametrize("problem", [lambda seed: cubic(seed=seed), osband])
def test_the_seed_decides(problem):
    np.testing.assert_array_equal(problem(1)[1], problem(1)[1])
    np.testing.assert_array_equal(problem(1)[1], problem(np.random.default_rng(1))[1])
    assert not np.array_equal(problem(1)[1], problem(2)[1])
    generator = np.random.default_rng(1)
    assert not np.array_equal(problem(generator)[1], problem(generator)[1])
    with pytest.raises(TypeError, match=r"integer or a numpy\.random\.Generator; got None"):
        problem(None)


def test_cubic_needs_a_point():
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        cubic(0, seed=0)
