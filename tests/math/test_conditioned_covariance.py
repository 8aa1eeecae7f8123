"""What pseudo-inputs leave of a covariance, against explicit matrices."""

import pytest
import torch

from reference import FAMILIES, assert_close, family_member, family_parameters, normal, random_covariance
from vmg.covariance import Dense, Diagonal
from vmg.math.conditioned_covariance import Conditioned

N, DAMPING = 4, 0.05

over_families = pytest.mark.parametrize("family", FAMILIES)
over_points = pytest.mark.parametrize("n_points", [1, 3, 4, 6])


def conditioned(family, n_points, batch_shape=(), damping=DAMPING):
    """A conditioned covariance and its matrix, (U⁻¹ + ÃᵀÃ/σ²)⁻¹."""
    U, dense = random_covariance(family, N, batch_shape)
    A = normal(*batch_shape, n_points, N, seed=5)
    return Conditioned(U, A, damping), torch.linalg.inv(torch.linalg.inv(dense) + A.mT @ A / damping)


@over_families
@over_points
@pytest.mark.parametrize("batch_shape", [(), (2,), (3, 2)])
def test_every_method_against_the_matrix(family, n_points, batch_shape):
    found, C = conditioned(family, n_points, batch_shape)
    other, D = random_covariance("dense", N, batch_shape, seed=9)
    X = normal(*batch_shape, N, 3, seed=7)
    assert_close(found.to_dense(), C)
    assert_close(found.matmul(X), C @ X)
    assert_close(found.solve(X), torch.linalg.solve(C, X))
    assert_close(found.logdet(), torch.logdet(C))
    assert_close(found.diagonal(), C.diagonal(dim1=-2, dim2=-1))
    assert_close(found.inverse_diagonal(), torch.linalg.inv(C).diagonal(dim1=-2, dim2=-1))
    assert_close(other.trace_solve(found), torch.linalg.solve(D, C).diagonal(dim1=-2, dim2=-1).sum(-1))
    assert_close(found.sqrt_solve(found.sqrt_matmul(X)), X)
    root = found.sqrt_matmul(torch.eye(N, dtype=torch.float64).expand(*batch_shape, N, N))
    assert_close(root @ root.mT, C)
    assert (found.n, found.batch_shape, found.dtype) == (N, batch_shape, torch.float64)


@over_families
def test_the_determinant_keeps_its_digits_at_a_small_damping(family):
    """With as many points as rows, where the difference U − UÃᵀΣ₁₁⁻¹ÃU has none left."""
    found, C = conditioned(family, 4, damping=1e-8)
    assert_close(found.logdet(), torch.logdet(C), 1e-6)


def test_one_covariance_serves_many_draws_of_points():
    U, _ = random_covariance("diagonal", N)
    A = normal(5, 3, N, seed=5)
    together = Conditioned(U, A, DAMPING)
    assert together.batch_shape == (5,)
    for k in range(5):
        assert_close(together.to_dense()[k], Conditioned(U, A[k], DAMPING).to_dense())
        assert_close(together.expand((2, 5)).logdet()[1, k], Conditioned(U, A[k], DAMPING).logdet())


@over_families
def test_other_precisions(family):
    found, _ = conditioned(family, 3)
    single = found.to(torch.float32)
    assert single.dtype == single.to_dense().dtype == torch.float32
    assert_close(single.to(torch.float64).logdet(), found.logdet(), 1e-5)
    diagonal = Diagonal.from_log_scale(normal(N, seed=1)).to(torch.float32)
    assert torch.equal(diagonal.log_scale, normal(N, seed=1).float())


@over_families
def test_gradients(family):
    parameters = [p.requires_grad_() for p in family_parameters(family, N)]
    A = normal(3, N, seed=5).requires_grad_()

    def values(A, *parameters):
        found = Conditioned(family_member(family, *parameters), A, DAMPING)
        return found.logdet(), found.trace(), found.to_dense()

    assert torch.autograd.gradcheck(values, (A, *parameters))


def test_arguments_are_checked():
    U = Dense(torch.eye(N))
    with pytest.raises(ValueError, match="inputs must have 4 columns; got 3"):
        Conditioned(U, torch.ones(2, 3), DAMPING)
    with pytest.raises(ValueError, match=r"damping must be positive; got 0.0"):
        Conditioned(U, torch.ones(2, N), 0.0)
    assert "n_inputs=2" in repr(Conditioned(U, torch.ones(2, N), DAMPING))
