"""Layers given pseudo-data, against one large Gaussian and Bayesian linear regression."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_layer import C, Layer, P, R, assert_moments_equal, eye, over_damping, over_pairs

from reference import (
    FAMILIES,
    assert_close,
    layer_given_pseudo_data,
    normal,
    push_noise,
    regression_given_pseudo_data,
    vec,
)
from vmg.covariance import Diagonal
from vmg.math import preactivations as F
from vmg.math.matrix_normal import MatrixNormal

# The conditional


@over_pairs
@over_damping
@pytest.mark.parametrize("n_pseudo", [1, P, R, R + 2])
def test_condition_against_one_large_gaussian(row, column, damping, n_pseudo):
    layer = Layer(row, column, p=n_pseudo)
    mean, covariance = layer.conditional_moments(damping)
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping)
    row_covariance = given.row_covariance(layer.row)
    # more pseudo-points than dimensions contradict each other, and a small damping magnifies their residual
    assert_close(vec(given.mean), mean, 1e-10 if n_pseudo <= R or damping > 1e-3 else 1e-6)
    assert_close(torch.kron(layer.V, row_covariance), covariance)
    assert_close(given.row_variance(layer.x, layer.row), row_covariance.diagonal())


@over_pairs
@pytest.mark.parametrize("n_pseudo", [1, P, R, R + 2])
def test_condition_is_bayesian_linear_regression_of_the_pseudo_data(row, column, n_pseudo):
    layer, damping = Layer(row, column, p=n_pseudo), 0.1
    mean, covariance = regression_given_pseudo_data(layer.x, layer.M, layer.U, layer.V, layer.A, layer.B, damping)
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping)
    assert_close(vec(given.mean), mean)
    assert_close(torch.kron(layer.V, given.row_covariance(layer.row)), covariance)


@over_damping
def test_zero_mean_condition(damping):
    layer = Layer()
    mean, _ = layer.conditional_moments(damping, torch.zeros_like(layer.M))
    assert_close(vec(F.condition(layer.x, None, layer.row, layer.A, layer.B, damping).mean), mean)


def test_at_a_pseudo_input_the_layer_is_certain_of_the_pseudo_output():
    layer = Layer()
    given = F.condition(layer.A, layer.M, layer.row, layer.A, layer.B, damping=1e-12)
    assert_close(given.mean, layer.B, 1e-9)
    assert (given.row_variance(layer.A, layer.row) < 1e-11).all()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(FAMILIES), st.integers(1, 9), st.floats(1e-8, 10), st.integers(0, 1000))
def test_pseudo_data_only_reduce_the_variance(row, n_pseudo, damping, seed):
    layer = Layer(row, "diagonal", p=n_pseudo, seed=seed)
    prior = layer.row.quadratic(layer.x)
    variance = F.condition(layer.x, None, layer.row, layer.A, layer.B, damping).row_variance(layer.x, layer.row)
    assert (variance > 0).all()
    assert (variance <= prior).all()
    fewer = F.condition(layer.x, None, layer.row, layer.A[1:], layer.B[1:], damping)
    assert (variance <= fewer.row_variance(layer.x, layer.row) * (1 + 1e-6) + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_variance_is_kept_above_rounding_error(dtype):
    layer = Layer("diagonal", "diagonal", r=3, p=3)
    layer.A = torch.eye(3, dtype=torch.float64)
    x, A, B, U = layer.x.to(dtype), layer.A.to(dtype), layer.B.to(dtype), Diagonal(layer.row.scale.to(dtype))
    variance = F.condition(x, None, U, A, B, damping=1e-30).row_variance(x, U)
    rounding = torch.finfo(dtype).eps * U.quadratic(x)
    torch.testing.assert_close(variance / rounding, torch.full_like(variance, 10))


@over_pairs
@over_damping
def test_fold_mean_is_the_conditional_mean_at_any_input(row, column, damping):
    layer = Layer(row, column)
    other_inputs = 100 * normal(20, R, seed=9)
    for M in (layer.M, None):
        folded = F.fold_mean(M, layer.row, layer.A, layer.B, damping)
        mean = F.condition(other_inputs, M, layer.row, layer.A, layer.B, damping).mean
        assert_close(other_inputs @ folded, mean, 1e-9)


@over_pairs
@over_damping
@pytest.mark.parametrize("n_pseudo", [P, R + 2])
def test_conditioned_weights_have_exactly_the_conditional_mean_and_covariance(row, column, damping, n_pseudo):
    layer = Layer(row, column, p=n_pseudo)
    posterior = MatrixNormal(*layer.prior)

    def draw(noise):
        W = posterior.transform_noise(noise[:R])
        return F.condition_weights(W, layer.row, layer.column, layer.A, layer.B, noise[R:], damping)

    # the weights themselves are the outputs at the unit inputs
    expected = layer_given_pseudo_data(eye(R), layer.M, layer.U, layer.V, layer.A, layer.B, damping)
    tolerance = 1e-9 if n_pseudo < R or damping > 1e-3 else 1e-6
    assert_moments_equal(push_noise(draw, (R + n_pseudo, C)), expected, tolerance)
