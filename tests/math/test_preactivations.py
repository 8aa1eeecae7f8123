"""Draws of pre-activations against each other and against explicit matrices."""

import math

import pytest
import torch
from random_layer import C, Layer, N, P, R, assert_moments_equal, over_damping, over_pairs

from reference import (
    FAMILIES,
    assert_close,
    family_member,
    family_parameters,
    keep_row_blocks,
    members,
    normal,
    push_noise,
)
from vmg.covariance import Dense, Diagonal
from vmg.math import preactivations as F


def test_augment():
    x = normal(2, 5, 3, seed=0)
    augmented = F.augment(x)
    assert augmented.shape == (2, 5, 4)
    assert_close(augmented[..., :3], x / 2)
    assert_close(augmented[..., 3], torch.full((2, 5), 0.5, dtype=torch.float64))
    assert_close(F.augment(x, bias=False), x / math.sqrt(3))
    assert F.augment(x.float()).dtype == torch.float32


# The four samplers, each affine in its noise, so that unit noise vectors give its exact mean and covariance


def draw_given_pseudo_data(layer, M, noise, damping=F.DAMPING, joint=False):
    return F.sample_conditional(layer.x, M, layer.row, layer.column, layer.A, layer.B, noise, damping, joint=joint)


def draw_jointly_given_pseudo_data(layer, M, noise, damping=F.DAMPING):
    return draw_given_pseudo_data(layer, M, noise, damping, joint=True)


SAMPLERS = {
    "weights": (lambda layer, M, noise: F.sample_weights(layer.x, M, layer.row, layer.column, noise), (R, C)),
    "joint": (lambda layer, M, noise: F.sample_joint(layer.x, M, layer.row, layer.column, noise), (N, C)),
    "marginal": (lambda layer, M, noise: F.sample_marginal(layer.x, M, layer.row, layer.column, noise), (N, C)),
    "conditional": (draw_given_pseudo_data, (N, C)),
    "conditional joint": (draw_jointly_given_pseudo_data, (N, C)),
}
over_samplers = pytest.mark.parametrize(("sampler", "noise_shape"), list(SAMPLERS.values()), ids=list(SAMPLERS))


@over_pairs
def test_samplers_draw_from_the_gaussian_of_all_weights(row, column):
    """Weights and the joint exactly; the marginal each row as the joint does."""
    layer = Layer(row, column)
    mean, covariance = layer.function_moments()
    for name, expected in (
        ("weights", covariance),
        ("joint", covariance),
        ("marginal", keep_row_blocks(covariance, N)),
    ):
        sampler, shape = SAMPLERS[name]
        moments = push_noise(lambda noise, sampler=sampler: sampler(layer, layer.M, noise), shape)
        assert_moments_equal(moments, (mean, expected))


@over_pairs
@over_damping
def test_samplers_draw_given_the_pseudo_data(row, column, damping):
    layer = Layer(row, column)
    mean, covariance = layer.conditional_moments(damping)
    for joint, expected in ((False, keep_row_blocks(covariance, N)), (True, covariance)):
        moments = push_noise(
            lambda noise, joint=joint: draw_given_pseudo_data(layer, layer.M, noise, damping, joint), (N, C)
        )
        assert_moments_equal(moments, (mean, expected), 1e-9)


def test_more_rows_than_inputs_need_only_jitter():
    layer = Layer(n=R + 2)
    joint = push_noise(lambda noise: F.sample_joint(layer.x, *layer.prior, noise), (R + 2, C))
    assert_moments_equal(joint, layer.function_moments(), 1e-6)


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
    for joint in (False, True):
        out = F.sample_conditional(layer.x, *layer.prior, A, B, noise, joint=joint)
        for s in range(5):
            assert_close(out[s], F.sample_conditional(layer.x, *layer.prior, A[s], B[s], noise[s], joint=joint))


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
        return given.mean, given.row_variance(x, U), given.row_covariance(U), folded, weights

    gradcheck(everything, layer.x, layer.M, layer.A, layer.B, normal(2, C, seed=9), *rows)


def test_gradients_of_the_rest():
    x = normal(2, 3, seed=1)
    gradcheck(F.augment, x)
    gradcheck(lambda x: F.augment(x, bias=False), x)
