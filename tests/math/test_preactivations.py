import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import (
    FAMILIES,
    assert_close,
    family_member,
    family_parameters,
    gaussian_linear,
    keep_row_blocks,
    kronecker,
    layer_given_pseudo_data,
    members,
    normal,
    push_noise,
    random_covariance,
    regression_given_pseudo_data,
    vec,
)
from vmg.covariance import Dense, Diagonal
from vmg.math import preactivations as F
from vmg.math.matrix_normal import MatrixNormal

N, R, C, P = 3, 6, 2, 3  # rows of the batch, inputs, outputs, pseudo-points; P + N <= R
over_pairs = pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))
over_damping = pytest.mark.parametrize("damping", [F.DAMPING, 1e-2, 1.0])


def eye(n):
    return torch.eye(n, dtype=torch.float64)


class Layer:
    """A random layer: its library objects, and U and V as plain matrices."""

    def __init__(self, row="dense", column="dense", n=N, p=P, r=R, batch_shape=(), seed=0):
        self.x = normal(*batch_shape, n, r, seed=seed + 1)
        self.M = normal(*batch_shape, r, C, seed=seed + 2)
        self.A = normal(*batch_shape, p, r, seed=seed + 3)
        self.B = normal(*batch_shape, p, C, seed=seed + 4)
        self.row, self.U = random_covariance(row, r, batch_shape, seed=seed + 5)
        self.column, self.V = random_covariance(column, C, batch_shape, seed=seed + 15)

    @property
    def prior(self):
        """M, U, V as the library takes them."""
        return self.M, self.row, self.column

    def function_moments(self, x=None):
        """Exact mean and covariance of vec(xW), W ~ MN(M, U, V), from the Gaussian of all weights."""
        T = kronecker(eye(C), self.x if x is None else x)
        return gaussian_linear(vec(self.M), kronecker(self.V, self.U), T)

    def conditional_moments(self, damping, M=None):
        return layer_given_pseudo_data(self.x, self.M if M is None else M, self.U, self.V, self.A, self.B, damping)


def assert_moments_equal(actual, expected, tolerance=1e-10):
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, tolerance)


# The input


def test_augment():
    x = normal(2, 5, 3, seed=0)
    augmented = F.augment(x)
    assert augmented.shape == (2, 5, 4)
    assert_close(augmented[..., :3], x / 2)
    assert_close(augmented[..., 3], torch.full((2, 5), 0.5, dtype=torch.float64))
    assert_close(F.augment(x, bias=False), x / math.sqrt(3))
    assert F.augment(x.float()).dtype == torch.float32


# The four samplers, each affine in its noise, so that unit noise vectors give its exact mean and covariance


@over_pairs
def test_weights_and_joint_draw_from_the_same_gaussian(row, column):
    layer = Layer(row, column)
    expected = layer.function_moments()
    weights = push_noise(lambda noise: F.sample_weights(layer.x, *layer.prior, noise), (R, C))
    joint = push_noise(lambda noise: F.sample_joint(layer.x, *layer.prior, noise), (N, C))
    assert_moments_equal(weights, expected)
    assert_moments_equal(joint, expected)


@over_pairs
def test_marginal_draws_each_row_as_the_joint_does(row, column):
    layer = Layer(row, column)
    mean, covariance = layer.function_moments()
    marginal = push_noise(lambda noise: F.sample_marginal(layer.x, *layer.prior, noise), (N, C))
    assert_moments_equal(marginal, (mean, keep_row_blocks(covariance, N)))


@over_pairs
@over_damping
def test_conditional_draws_each_row_given_the_pseudo_data(row, column, damping):
    layer = Layer(row, column)
    mean, covariance = layer.conditional_moments(damping)
    actual = push_noise(
        lambda noise: F.sample_conditional(layer.x, *layer.prior, layer.A, layer.B, noise, damping), (N, C)
    )
    assert_moments_equal(actual, (mean, keep_row_blocks(covariance, N)), 1e-9)


@over_pairs
@over_damping
def test_joint_conditional_draws_all_rows_given_the_pseudo_data(row, column, damping):
    layer = Layer(row, column)
    actual = push_noise(
        lambda noise: F.sample_conditional_joint(layer.x, *layer.prior, layer.A, layer.B, noise, damping), (N, C)
    )
    assert_moments_equal(actual, layer.conditional_moments(damping), 1e-9)


def test_the_joint_equals_the_matrix_normal_of_x_w():
    layer = Layer("rank_one", "dense")
    q = MatrixNormal(*layer.prior).affine(left=layer.x)
    joint = push_noise(lambda noise: F.sample_joint(layer.x, *layer.prior, noise), (N, C))
    assert_moments_equal(joint, (vec(q.mean), q.covariance_matrix))


@pytest.mark.parametrize("dropped", range(N))
def test_marginalising_a_row_of_the_joint_drops_that_input(dropped):
    layer = Layer()
    kept = [n for n in range(N) if n != dropped]
    mean, covariance = push_noise(lambda noise: F.sample_joint(layer.x, *layer.prior, noise), (N, C))
    index = [c * N + n for c in range(C) for n in kept]
    fewer = push_noise(lambda noise: F.sample_joint(layer.x[kept], *layer.prior, noise), (N - 1, C))
    assert_moments_equal(fewer, (mean[index], covariance[index][:, index]))


def test_more_rows_than_inputs_need_only_jitter():
    layer = Layer(n=R + 2)
    joint = push_noise(lambda noise: F.sample_joint(layer.x, *layer.prior, noise), (R + 2, C))
    assert_moments_equal(joint, layer.function_moments(), 1e-6)


SAMPLERS = {
    "weights": (lambda layer, M, noise: F.sample_weights(layer.x, M, layer.row, layer.column, noise), (R, C)),
    "joint": (lambda layer, M, noise: F.sample_joint(layer.x, M, layer.row, layer.column, noise), (N, C)),
    "marginal": (lambda layer, M, noise: F.sample_marginal(layer.x, M, layer.row, layer.column, noise), (N, C)),
    "conditional": (
        lambda layer, M, noise: F.sample_conditional(layer.x, M, layer.row, layer.column, layer.A, layer.B, noise),
        (N, C),
    ),
    "conditional joint": (
        lambda layer, M, noise: F.sample_conditional_joint(
            layer.x, M, layer.row, layer.column, layer.A, layer.B, noise
        ),
        (N, C),
    ),
}
over_samplers = pytest.mark.parametrize(("sampler", "noise_shape"), list(SAMPLERS.values()), ids=list(SAMPLERS))


@over_samplers
@pytest.mark.parametrize("zero_mean", [False, True])
def test_a_batch_of_layers_is_a_loop(sampler, noise_shape, zero_mean):
    batch_shape = (2, 2)
    layer = Layer("rank_one", "dense", batch_shape=batch_shape)
    noise = normal(*batch_shape, *noise_shape, seed=9)
    out = sampler(layer, None if zero_mean else layer.M, noise)
    assert out.shape == (*batch_shape, N, C)
    for index in members(batch_shape):
        one = Layer("rank_one", "dense", batch_shape=batch_shape)
        one.x, one.A, one.B = layer.x[index], layer.A[index], layer.B[index]
        one.row = family_member("rank_one", layer.row.scale[index], layer.row.vector[index])
        one.column = Dense(layer.column.scale_tril[index])
        assert_close(out[index], sampler(one, None if zero_mean else layer.M[index], noise[index]))


@over_samplers
def test_zero_mean_is_a_mean_of_zeros(sampler, noise_shape):
    layer, noise = Layer("dense", "rank_one"), normal(*noise_shape, seed=9)
    assert_close(sampler(layer, None, noise), sampler(layer, torch.zeros_like(layer.M), noise))


@over_samplers
def test_samples_broadcast_over_one_layer(sampler, noise_shape):
    layer, noise = Layer("diagonal", "rank_one"), normal(5, *noise_shape, seed=9)
    out = sampler(layer, layer.M, noise)
    assert out.shape == (5, N, C)
    for s in range(5):
        assert_close(out[s], sampler(layer, layer.M, noise[s]))


def test_pseudo_data_samples_broadcast_over_one_layer():
    layer, A, B = Layer("diagonal", "diagonal"), normal(5, P, R, seed=7), normal(5, P, C, seed=8)
    noise = normal(5, N, C, seed=9)
    for draw in (F.sample_conditional, F.sample_conditional_joint):
        out = draw(layer.x, *layer.prior, A, B, noise)
        for s in range(5):
            assert_close(out[s], draw(layer.x, *layer.prior, A[s], B[s], noise[s]))


@over_samplers
def test_an_input_of_zeros_has_a_finite_gradient(sampler, noise_shape):
    # a layer without bias meets this whenever all units of the layer below are off
    layer, noise = Layer("diagonal", "diagonal"), normal(*noise_shape, seed=9)
    layer.x[1] = 0
    layer.x.requires_grad_()
    scale = layer.row.scale.clone().requires_grad_()
    layer.row = Diagonal(scale)
    out = sampler(layer, layer.M, noise)
    assert_close(out[1], torch.zeros(C, dtype=torch.float64), 1e-3)
    for gradient in torch.autograd.grad(out.sum(), (layer.x, scale)):
        assert torch.isfinite(gradient).all()


# The conditional


@over_pairs
@over_damping
@pytest.mark.parametrize("n_pseudo", [1, P, R, R + 2])
def test_condition_against_one_large_gaussian(row, column, damping, n_pseudo):
    layer = Layer(row, column, p=n_pseudo)
    mean, covariance = layer.conditional_moments(damping)
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping)
    row_covariance = given.row_covariance(layer.x, layer.row)
    # more pseudo-points than dimensions contradict each other, and a small damping magnifies their residual
    assert_close(vec(given.mean), mean, 1e-10 if n_pseudo <= R or damping > 1e-3 else 1e-6)
    assert_close(kronecker(layer.V, row_covariance), covariance)
    assert_close(given.row_variance(layer.x, layer.row), row_covariance.diagonal())


@over_pairs
@pytest.mark.parametrize("n_pseudo", [1, P, R, R + 2])
def test_condition_is_bayesian_linear_regression_of_the_pseudo_data(row, column, n_pseudo):
    layer, damping = Layer(row, column, p=n_pseudo), 0.1
    mean, covariance = regression_given_pseudo_data(layer.x, layer.M, layer.U, layer.V, layer.A, layer.B, damping)
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping)
    assert_close(vec(given.mean), mean)
    assert_close(kronecker(layer.V, given.row_covariance(layer.x, layer.row)), covariance)


@over_damping
def test_zero_mean_condition(damping):
    layer = Layer()
    mean, _ = layer.conditional_moments(damping, torch.zeros_like(layer.M))
    assert_close(vec(F.condition(layer.x, None, layer.row, layer.A, layer.B, damping).mean), mean)


def test_cross_and_gain_are_what_they_say():
    layer = Layer()
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, 0.1)
    S11, S12 = layer.A @ layer.U @ layer.A.mT + 0.1 * eye(P), layer.A @ layer.U @ layer.x.mT
    assert_close(given.cross, S12.mT)
    assert_close(given.gain, torch.linalg.solve(S11, S12))


@over_pairs
def test_without_damping_it_is_the_matrix_normals_own_conditional(row, column):
    layer = Layer(row, column)
    joint = MatrixNormal(*layer.prior).affine(left=torch.cat([layer.A, layer.x]))
    expected = joint.condition_on_rows(range(P), layer.B)
    given = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping=0.0)
    assert_close(given.mean, expected.mean, 1e-9)
    assert_close(given.row_covariance(layer.x, layer.row), expected.row_covariance.to_dense(), 1e-9)


def test_at_a_pseudo_input_the_layer_is_certain_of_the_pseudo_output():
    layer = Layer()
    given = F.condition(layer.A, layer.M, layer.row, layer.A, layer.B, damping=1e-12)
    assert_close(given.mean, layer.B, 1e-9)
    assert (given.row_variance(layer.A, layer.row) < 1e-11).all()


def test_inputs_unlike_all_pseudo_inputs_do_not_feel_them():
    layer = Layer("rank_one", "rank_one")
    # remove from each x what the kernel shares with Ã, so that ÃUxᵀ = 0
    S11 = layer.A @ layer.U @ layer.A.mT
    far = layer.x - layer.x @ layer.U @ layer.A.mT @ torch.linalg.solve(S11, layer.A)
    assert layer.row.quadratic(far).min() > 0.01
    noise = normal(N, C, seed=9)
    away = F.sample_conditional(far, *layer.prior, layer.A, 1e3 * layer.B, noise)
    assert_close(away, F.sample_marginal(far, *layer.prior, noise), 1e-9)
    together = F.sample_conditional_joint(far, *layer.prior, layer.A, 1e3 * layer.B, noise)
    assert_close(together, F.sample_joint(far, *layer.prior, noise), 1e-9)


def test_very_noisy_pseudo_data_say_nothing():
    layer, noise = Layer(), normal(N, C, seed=9)
    out = F.sample_conditional(layer.x, *layer.prior, layer.A, layer.B, noise, damping=1e14)
    assert_close(out, F.sample_marginal(layer.x, *layer.prior, noise))


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


def test_fold_mean_of_zero_mean_is_a_mean_of_zeros():
    layer = Layer()
    zeros = torch.zeros_like(layer.M)
    assert_close(F.fold_mean(None, layer.row, layer.A, layer.B), F.fold_mean(zeros, layer.row, layer.A, layer.B))


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


@over_damping
def test_function_draws_agree_with_the_joint_conditional(damping):
    layer = Layer("rank_one", "dense")
    posterior = MatrixNormal(*layer.prior)

    def draw(noise):
        W = posterior.transform_noise(noise[:R])
        return layer.x @ F.condition_weights(W, layer.row, layer.column, layer.A, layer.B, noise[R:], damping)

    joint = push_noise(
        lambda noise: F.sample_conditional_joint(layer.x, *layer.prior, layer.A, layer.B, noise, damping), (N, C)
    )
    assert_moments_equal(push_noise(draw, (R + P, C)), joint, 1e-9)


def test_conditioning_twice_is_conditioning_once():
    layer, damping = Layer(), 0.1
    both = F.condition(layer.x, layer.M, layer.row, layer.A, layer.B, damping)
    # absorb the first pseudo-point into MN(M', U', V), then condition that layer on the others
    first, rest = slice(0, 1), slice(1, P)
    M1 = F.fold_mean(layer.M, layer.row, layer.A[first], layer.B[first], damping)
    Ua = layer.U @ layer.A[0]
    U1 = Dense.from_matrix(layer.U - torch.outer(Ua, Ua) / (layer.A[0] @ Ua + damping))
    again = F.condition(layer.x, M1, U1, layer.A[rest], layer.B[rest], damping)
    assert_close(again.mean, both.mean)
    assert_close(again.row_covariance(layer.x, U1), both.row_covariance(layer.x, layer.row))


def test_one_pseudo_point_by_hand():
    # U = V = 1, x = ã = 1, M = 0, b̃ = 3, σ² = 1: w | b̃ ~ N(3/2, 1/2)
    one = torch.ones(1, 1, dtype=torch.float64)
    U = Diagonal(torch.ones(1, dtype=torch.float64))
    given = F.condition(one, None, U, one, 3 * one, damping=1.0)
    assert given.mean.item() == pytest.approx(1.5, rel=1e-12)
    assert given.row_variance(one, U).item() == pytest.approx(0.5, rel=1e-12)
    assert F.fold_mean(None, U, one, 3 * one, damping=1.0).item() == pytest.approx(1.5, rel=1e-12)


# Pseudo-data noise and the log-uniform prior


def test_multiplicative_noise():
    mean, scale = normal(P, R, seed=1), normal(P, R, seed=2).exp()
    actual_mean, covariance = push_noise(lambda noise: F.multiplicative_noise(mean, scale, noise), (P, R))
    assert_close(actual_mean, vec(mean))
    assert_close(covariance, torch.diag(vec(mean * scale).square()))


# Gradients of every pure function


def gradcheck(function, *inputs):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("family", FAMILIES)
@over_samplers
def test_gradients_of_samplers(sampler, noise_shape, family, batch_shape):
    layer = Layer(family, family, batch_shape=batch_shape, r=4, p=2, n=2)
    rows = family_parameters(family, 4, batch_shape, seed=5)
    columns = family_parameters(family, C, batch_shape, seed=6)
    shape = (4, C) if noise_shape == (R, C) else (2, C)
    noise = normal(*batch_shape, *shape, seed=9)

    def draw(x, M, A, B, noise, *parameters):
        layer.x, layer.A, layer.B = x, A, B
        layer.row = family_member(family, *parameters[: len(rows)])
        layer.column = family_member(family, *parameters[len(rows) :])
        return sampler(layer, M, noise)

    gradcheck(draw, layer.x, layer.M, layer.A, layer.B, noise, *rows, *columns)


@pytest.mark.parametrize("zero_mean", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_the_conditional(family, zero_mean):
    layer = Layer(r=4, p=2, n=2)
    rows = family_parameters(family, 4, seed=5)
    damping = 0.01

    def everything(x, M, A, B, noise, *parameters):
        U = family_member(family, *parameters)
        mean = None if zero_mean else M
        given = F.condition(x, mean, U, A, B, damping)
        folded = F.fold_mean(mean, U, A, B, damping)
        weights = F.condition_weights(M, U, layer.column, A, B, noise, damping)
        return given.mean, given.row_variance(x, U), given.row_covariance(x, U), folded, weights

    gradcheck(everything, layer.x, layer.M, layer.A, layer.B, normal(2, C, seed=9), *rows)


def test_gradients_of_the_rest():
    x = normal(2, 3, seed=1)
    gradcheck(F.augment, x)
    gradcheck(lambda x: F.augment(x, bias=False), x)
    gradcheck(F.multiplicative_noise, x, normal(2, 3, seed=2).exp(), normal(2, 3, seed=3))
