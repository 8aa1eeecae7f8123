import itertools

import pytest
import torch
from torch.distributions import Distribution, kl_divergence

from reference import (
    FAMILIES,
    assert_close,
    assert_moments,
    family_member,
    family_parameters,
    matrix_normal,
    members,
    normal,
    push_noise,
    random_covariance,
    vec,
)
from vmg.covariance import Diagonal, RankOne
from vmg.math.matrix_normal import MatrixNormal

R, C = 4, 3
PAIRS = list(itertools.product(FAMILIES, FAMILIES))
over_pairs = pytest.mark.parametrize(("row", "column"), PAIRS)
over_batches = pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)])


@pytest.fixture(autouse=True)
def _validation():
    Distribution.set_default_validate_args(True)  # PyTorch's default, which its compiler switches off


def random_matrix_normal(row="dense", column="dense", batch_shape=(), seed=0, shape=(R, C)):
    """A random matrix Gaussian, and its M, U and V as plain matrices."""
    M = normal(*batch_shape, *shape, seed=seed + 10)
    row_covariance, U = random_covariance(row, shape[0], batch_shape, seed=seed + 20)
    column_covariance, V = random_covariance(column, shape[1], batch_shape, seed=seed + 30)
    return MatrixNormal(M, row_covariance, column_covariance), M, U, V


def assert_is(distribution, mean, covariance):
    """The distribution has the given mean and covariance of vec(W)."""
    assert_close(vec(distribution.mean), mean)
    assert_close(distribution.covariance_matrix, covariance)


# Closed forms


@over_pairs
@over_batches
def test_density_entropy_and_moments(row, column, batch_shape):
    q, M, U, V = random_matrix_normal(row, column, batch_shape)
    value = normal(5, *batch_shape, R, C, seed=1)
    log_prob, entropy = q.log_prob(value), q.entropy()
    assert (q.batch_shape, q.event_shape) == (batch_shape, (R, C))
    assert (log_prob.shape, entropy.shape) == ((5, *batch_shape), batch_shape)
    assert torch.equal(q.mean, M) and torch.equal(q.mode, M)
    assert_close(kl_divergence(q, q), torch.zeros(batch_shape, dtype=torch.float64))
    for index in members(batch_shape):
        reference, covariance = matrix_normal(M[index], U[index], V[index]), torch.kron(V[index], U[index])
        assert_close(log_prob[(slice(None), *index)], reference.log_prob(vec(value[(slice(None), *index)])))
        assert_close(entropy[index], reference.entropy())
        assert_close(q.covariance_matrix[index], covariance)
        assert_close(vec(q.variance[index]), covariance.diagonal())
        assert_close(vec(q.stddev[index]), covariance.diagonal().sqrt())


@pytest.mark.parametrize(("q_pair", "p_pair"), list(itertools.product(PAIRS, PAIRS)))
def test_kl_of_every_combination(q_pair, p_pair):
    batch_shape = (2, 3) if q_pair == p_pair[::-1] else ()
    q, *q_parameters = random_matrix_normal(*q_pair, batch_shape, seed=0)
    p, *p_parameters = random_matrix_normal(*p_pair, batch_shape, seed=100)
    kl = kl_divergence(q, p)
    assert kl.shape == batch_shape
    for index in members(batch_shape):
        q_index, p_index = ([x[index] for x in parameters] for parameters in (q_parameters, p_parameters))
        assert_close(kl[index], kl_divergence(matrix_normal(*q_index), matrix_normal(*p_index)))


def test_kl_broadcasts_a_shared_prior():
    q, *_ = random_matrix_normal("diagonal", "rank_one", (2, 3))
    p, *_ = random_matrix_normal("dense", "diagonal", seed=100)
    assert_close(kl_divergence(q, p), kl_divergence(q, p.expand((2, 3))))
    assert_close(kl_divergence(p, q), kl_divergence(p.expand((2, 3)), q))


@pytest.mark.parametrize("row", FAMILIES)
@pytest.mark.parametrize("column", FAMILIES)
def test_gradients(row, column):
    r, c = 3, 2
    rows = family_parameters(row, r, seed=1)
    columns = family_parameters(column, c, seed=2)
    p, *_ = random_matrix_normal("rank_one", "dense", seed=100, shape=(r, c))
    value = normal(r, c, seed=4)

    def everything(M, *parameters):
        U = family_member(row, *parameters[: len(rows)])
        V = family_member(column, *parameters[len(rows) :])
        q = MatrixNormal(M, U, V)
        return kl_divergence(q, p), kl_divergence(p, q), q.log_prob(value), q.entropy(), q.transform_noise(value)

    inputs = [t.requires_grad_() for t in (normal(r, c, seed=3), *rows, *columns)]
    assert torch.autograd.gradcheck(everything, inputs)


# Sampling


@over_pairs
def test_transform_noise_has_exactly_the_mean_and_covariance(row, column):
    q, M, U, V = random_matrix_normal(row, column)
    mean, covariance = push_noise(q.transform_noise, (R, C))
    assert_close(mean, vec(M))
    assert_close(covariance, torch.kron(V, U))


@over_pairs
def test_transform_noise_of_a_batch_is_a_loop(row, column):
    M, noise = normal(2, 3, R, C, seed=0), normal(5, 2, 3, R, C, seed=1)
    rows, columns = family_parameters(row, R, (2, 3)), family_parameters(column, C, (2, 3))
    W = MatrixNormal(M, family_member(row, *rows), family_member(column, *columns)).transform_noise(noise)
    for i, j in members((2, 3)):
        U, V = family_member(row, *(p[i, j] for p in rows)), family_member(column, *(p[i, j] for p in columns))
        for s in range(5):
            assert_close(W[s, i, j], MatrixNormal(M[i, j], U, V).transform_noise(noise[s, i, j]))


@pytest.mark.parametrize(("row", "column"), [("diagonal", "diagonal"), ("rank_one", "dense"), ("dense", "rank_one")])
def test_rsample_moments(row, column):
    torch.manual_seed(1)
    q, M, U, V = random_matrix_normal(row, column, shape=(3, 2))
    assert_moments(vec(q.rsample((20_000,))), vec(M), torch.kron(V, U))


def test_rsample_shapes_determinism_and_gradient():
    q, *_ = random_matrix_normal("diagonal", "rank_one", (2,))
    assert q.has_rsample
    assert q.rsample().shape == (2, R, C)
    assert q.rsample((5, 6)).shape == (5, 6, 2, R, C)
    torch.manual_seed(3)
    first = q.rsample((2,))
    torch.manual_seed(3)
    assert torch.equal(q.rsample((2,)), first)
    assert not torch.equal(q.rsample((2,)), first)

    scale = torch.ones(R, dtype=torch.float64, requires_grad=True)
    p = MatrixNormal(q.loc, Diagonal(scale), q.column_covariance)
    assert p.rsample().requires_grad
    assert not p.sample().requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_expand(family):
    q, *_ = random_matrix_normal(family, family, (3,))
    wide = q.expand((5, 3))
    assert isinstance(wide, MatrixNormal)
    assert (wide.batch_shape, wide.event_shape) == ((5, 3), (R, C))
    value = normal(5, 3, R, C, seed=1)
    assert_close(wide.log_prob(value), q.log_prob(value))
    assert_close(wide.entropy(), q.entropy().expand(5, 3))
    assert wide.rsample((2,)).shape == (2, 5, 3, R, C)


def test_parameters_broadcast():
    U, V = Diagonal(torch.ones(3, R)), RankOne(torch.ones(C), torch.ones(2, 1, C))
    q = MatrixNormal(torch.zeros(R, C), U, V)
    assert q.batch_shape == (2, 3)
    assert q.loc.shape == (2, 3, R, C)
    assert q.entropy().shape == (2, 3)


# Contract


def test_arguments_are_checked():
    U, V, M = Diagonal(torch.ones(R)), Diagonal(torch.ones(C)), torch.zeros(R, C)
    assert isinstance(MatrixNormal(M, U, V), Distribution) and "MatrixNormal" in repr(MatrixNormal(M, U, V))
    for arguments, message in (
        ((torch.zeros(C), U, V), r"loc must be a matrix or a batch of matrices; got shape \(3,\)"),
        ((M, V, V), r"row_covariance must have size 4 to fit loc of shape \(4, 3\); got 3"),
        ((M, U, U), "column_covariance must have size 3"),
        ((M, U, torch.ones(C)), r"column_covariance must be a vmg.covariance.Covariance.*got Tensor"),
        ((torch.full((R, C), torch.nan), U, V), "loc"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            MatrixNormal(*arguments)


def test_values_are_checked():
    q, *_ = random_matrix_normal()
    p, *_ = random_matrix_normal(shape=(C, R))
    for ask, message in (
        (lambda: q.log_prob(torch.zeros(C, R)), "shape"),
        (lambda: q.log_prob(torch.full((R, C), torch.nan, dtype=torch.float64)), "support"),
        (lambda: kl_divergence(q, p), r"one shape; got \(4, 3\) and \(3, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    assert q.log_prob(torch.zeros(R, C, dtype=torch.float64)).isfinite()
