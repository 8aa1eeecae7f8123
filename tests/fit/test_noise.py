"""Noise that depends on the input, found where it is and left alone where it is not."""

import numpy as np
import pytest

from vmg.fit import noise
from vmg.fit.calibration import Calibration, HeldOut, calibrate
from vmg.fit.noise import LIMIT, MIN_ROWS, fit_noise_field


def rows(n, slope, seed=0, degrees=200.0):
    """Errors whose log variance is linear in the first of two inputs."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.5, 1.5, (n, 2))
    error = np.exp(slope * x[:, 0] / 2) * rng.standard_t(degrees, n)
    return x, HeldOut(error, np.full(n, 1e-6), np.ones(n))


def fit(x, held_out, seed=1):
    calibration = calibrate(held_out, None, 0.0)
    return calibration, fit_noise_field(x, held_out, calibration, np.ones(2), np.random.default_rng(seed))


@pytest.mark.parametrize("slope", [1.0, -2.0])
def test_log_linear_noise_is_recovered(slope):
    calibration, field = fit(*rows(4_000, slope))
    grid = np.column_stack([np.linspace(-1.2, 1.2, 9), np.zeros(9)])
    found = np.log(field.factor(grid))
    assert np.abs(found - found.mean() - slope * grid[:, 0]).max() < 0.15
    # scales of a Student t that was calibrated to all errors at once: its tails take a part of the level
    assert np.log(calibration.noise) + found.mean() == pytest.approx(0.0, abs=0.6)
    flat = np.log(field.factor(np.column_stack([np.zeros(9), np.linspace(-1.2, 1.2, 9)])))
    assert np.ptp(flat) < 0.5


def test_constant_noise_is_left_constant():
    answers = [fit(*rows(400, 0.0, seed=seed))[1] for seed in range(8)]
    assert sum(answer is None for answer in answers) >= 6


def test_few_rows_say_nothing():
    assert fit(*rows(MIN_ROWS - 1, 3.0))[1] is None


def test_the_field_stays_inside_its_limit():
    _, field = fit(*rows(1_000, 2.0))
    far = np.log(field.factor(np.array([[1e6, 0.0], [-1e6, 0.0]])))
    assert np.abs(far).max() <= LIMIT + 1e-9


def test_ignorance_is_not_taken_for_noise():
    """Where the stated variance explains the errors' size, the noise need not change."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.5, 1.5, (2_000, 2))
    variance = np.exp(2 * x[:, 0])
    held_out = HeldOut(np.sqrt(0.2 + variance) * rng.normal(size=2_000), variance, np.ones(2_000))
    field = fit_noise_field(x, held_out, Calibration(0.2, 1.0, 103.0), np.ones(2), np.random.default_rng(1))
    assert field is None or np.ptp(np.log(field.factor(x))) < 1.5


def test_fewer_rows_than_inputs_have_the_field_of_all_features():
    """Weights of 300 inputs for 80 errors are found among 80 directions; their modes are those of all weights."""
    rng = np.random.default_rng(0)
    phi = np.column_stack([rng.normal(size=(80, 300)) / 15, np.ones(80)])
    held_out = HeldOut(np.exp(phi[:, 0] * 5) * rng.normal(size=80), np.full(80, 1e-6), np.ones(80))
    small, basis = noise._spanned(phi)
    assert small.shape == (80, 81)
    whole, few = (
        noise._fit_fields(one, held_out, Calibration(1.0, 1.0, 10.0), (3.0,), np.ones((1, 80), bool))[0, 0]
        for one in (phi, small)
    )
    np.testing.assert_allclose(basis @ few, whole, rtol=0, atol=1e-8)
