import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vmg.fit.scaling import Standardiser


def values(n=20, d=3, seed=0):
    return np.random.default_rng(seed).normal([1.0, -20.0, 300.0][:d], [0.1, 5.0, 1000.0][:d], size=(n, d))


def test_columns_get_mean_zero_and_standard_deviation_one():
    X = values()
    scaling = Standardiser.fit(X)
    np.testing.assert_allclose(scaling.mean, X.mean(0))
    np.testing.assert_allclose(scaling.scale, X.std(0))
    standard = scaling.transform(X)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(0), 1)


def test_weights_count_rows():
    X, counts = values(), np.arange(20) % 4
    weighted, repeated = Standardiser.fit(X, counts.astype(float)), Standardiser.fit(X.repeat(counts, 0))
    np.testing.assert_allclose(weighted.mean, repeated.mean)
    np.testing.assert_allclose(weighted.scale, repeated.scale)
    tenth = Standardiser.fit(X, 0.1 * counts)
    np.testing.assert_allclose(tenth.scale, weighted.scale)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, -3.7e9, 1e-30, 1e300])
def test_a_constant_column_gets_scale_one(constant):
    X = np.stack([np.full(7, constant), np.arange(7.0)], 1)
    scaling = Standardiser.fit(X)
    assert scaling.scale[0] == 1
    assert scaling.scale[1] == 2
    assert abs(scaling.transform(X)[:, 0]).max() <= 1e-9 * abs(constant)


def test_rounding_is_no_variation():
    X = 0.1 * np.arange(1, 8)[:, None] / np.arange(1, 8)[:, None]
    X = np.concatenate([X, X + 1e-12 * np.arange(7)[:, None]], 1)
    np.testing.assert_array_equal(Standardiser.fit(X).scale[0], 1)
    wide = np.array([[1e6], [1e6 + 1]])
    np.testing.assert_allclose(Standardiser.fit(wide).scale, 0.5)


def test_one_row():
    X = values(1)
    scaling = Standardiser.fit(X)
    np.testing.assert_array_equal(scaling.scale, 1)
    np.testing.assert_array_equal(scaling.transform(X), 0)


@pytest.mark.parametrize("unit", [1e-250, 1e-6, 1e6, 1e250])
def test_units_do_not_matter(unit):
    X = values()
    moved = Standardiser.fit(unit * X)
    np.testing.assert_allclose(moved.scale, unit * X.std(0))
    np.testing.assert_allclose(moved.transform(unit * X), Standardiser.fit(X).transform(X), atol=1e-9)


@settings(deadline=None)
@given(hnp.arrays(np.float64, (5, 2), elements=st.floats(-1e12, 1e12)))
def test_inverse_undoes_transform(X):
    scaling = Standardiser.fit(X)
    standard = scaling.transform(X)
    assert np.isfinite(standard).all()
    assert abs(standard).max() <= max(5.0, 1e-9 * abs(X).max()), "n rows are at most √(n − 1) deviations away"
    np.testing.assert_allclose(scaling.inverse(standard), X, rtol=1e-9, atol=1e-9 * abs(X).max())
