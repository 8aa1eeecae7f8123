import itertools

import pytest
import torch

from reference import (
    FAMILIES,
    assert_close,
    family_member,
    family_parameters,
    family_root,
    members,
    normal,
    random_covariance,
)
from vmg.covariance import Dense, Diagonal, RankOne
from vmg.math.covariance import Conditioned

N = 4
DAMPING = 0.05  # of a conditioned covariance
BATCH_SHAPES = [(), (2,), (3, 2)]
over_families = pytest.mark.parametrize("family", FAMILIES)
over_batches = pytest.mark.parametrize("batch_shape", BATCH_SHAPES)


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def diag(matrix):
    return matrix.diagonal(dim1=-2, dim2=-1)


def dense(matrix):
    return Dense(torch.linalg.cholesky(matrix))


def other_of(X):
    return eye(N) + X @ X.mT


METHODS = {  # each with what it is of the matrix C
    "to_dense": (lambda c, X: c.to_dense(), lambda C, X: C),
    "matmul": (lambda c, X: c.matmul(X), lambda C, X: C @ X),
    "solve": (lambda c, X: c.solve(X), torch.linalg.solve),
    "square of the root": (lambda c, X: c.sqrt_matmul(eye(N)) @ c.sqrt_matmul(eye(N)).mT, lambda C, X: C),
    "sqrt_solve": (lambda c, X: c.sqrt_solve(c.sqrt_matmul(X)), lambda C, X: X),
    "whitened": (lambda c, X: c.sqrt_solve(X).square().sum(-2), lambda C, X: diag(X.mT @ torch.linalg.solve(C, X))),
    "logdet": (lambda c, X: c.logdet(), lambda C, X: torch.linalg.slogdet(C).logabsdet),
    "diagonal": (lambda c, X: c.diagonal(), lambda C, X: diag(C)),
    "inverse_diagonal": (lambda c, X: c.inverse_diagonal(), lambda C, X: diag(torch.linalg.inv(C))),
    "trace": (lambda c, X: c.trace(), lambda C, X: diag(C).sum(-1)),
    "gram": (lambda c, X: c.gram(X.mT), lambda C, X: X.mT @ C @ X),
    "gram of two": (lambda c, X: c.gram(X.mT, 2 * X.mT[..., 1:, :]), lambda C, X: 2 * X.mT @ C @ X[..., 1:]),
    "quadratic": (lambda c, X: c.quadratic(X.mT), lambda C, X: diag(X.mT @ C @ X)),
    "trace_relative_to": (
        lambda c, X: c.trace_relative_to(dense(other_of(X))),
        lambda C, X: diag(torch.linalg.solve(other_of(X), C)).sum(-1),
    ),
}
over_methods = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))

# a family alone, or given pseudo-inputs: (U⁻¹ + ÃᵀÃ/σ²)⁻¹
KINDS = [(family, n_points) for family in FAMILIES for n_points in (0, 1, 6)]
over_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]} given {kind[1]}")


def parameters_of(kind, batch_shape=()):
    points = [normal(*batch_shape, kind[1], N, seed=5)] if kind[1] else []
    return [*family_parameters(kind[0], N, batch_shape), *points]


def member(kind, *parameters, damping=DAMPING):
    """A covariance, and its matrix."""
    family, n_points = kind
    own = parameters[:-1] if n_points else parameters
    root, covariance = family_root(family, *own), family_member(family, *own)
    if not n_points:
        return covariance, root @ root.mT
    A = parameters[-1]
    matrix = torch.linalg.inv(torch.linalg.inv(root @ root.mT) + A.mT @ A / damping)
    return Conditioned(covariance, A, damping), matrix


@over_kinds
@over_batches
@over_methods
def test_every_method_against_the_matrix(kind, batch_shape, method):
    of_covariance, of_matrix = method
    covariance, C = member(kind, *parameters_of(kind, batch_shape))
    X = normal(*batch_shape, N, 3, seed=7)
    assert_close(of_covariance(covariance, X), of_matrix(C, X))


@over_kinds
@over_methods
def test_a_batch_is_a_loop_and_has_gradients(kind, method):
    parameters, X = parameters_of(kind, (2,)), normal(2, N, 3, seed=7)
    result = method[0](member(kind, *parameters)[0], X)
    for index in members((2,)):
        assert_close(result[index], method[0](member(kind, *(p[index] for p in parameters))[0], X[index]))
    leaves = [p.requires_grad_() for p in (X, *parameters)]
    assert torch.autograd.gradcheck(lambda X, *p: method[0](member(kind, *p)[0], X), leaves)


@over_kinds
@over_batches
def test_attributes_and_shapes(kind, batch_shape):
    covariance, C = member(kind, *parameters_of(kind, batch_shape))
    assert (covariance.n, covariance.batch_shape, covariance.dtype) == (N, batch_shape, torch.float64)
    assert f"(n=4, batch_shape={batch_shape})" in repr(covariance)
    expanded = covariance.expand((5, *batch_shape))
    assert type(expanded) is type(covariance) and expanded.batch_shape == (5, *batch_shape)
    assert_close(expanded.to_dense(), C.expand(5, *C.shape))
    assert_close(expanded.logdet(), covariance.logdet().expand(5, *batch_shape))
    for X in (normal(7, *batch_shape, N, 3, seed=7), normal(N, 3, seed=8)):  # operands broadcast
        assert_close(covariance.sqrt_solve(covariance.sqrt_matmul(X)), X + 0 * (C @ X))
        assert_close(covariance.solve(X), torch.linalg.inv(C) @ X)
    single = covariance.to(torch.float32)
    assert single.dtype == single.to_dense().dtype == torch.float32
    assert_close(single.to(torch.float64).logdet(), covariance.logdet(), 1e-5)


@over_families
@over_batches
def test_square_roots_are_those_of_the_parameters(family, batch_shape):
    parameters = family_parameters(family, N, batch_shape)
    root, X = family_root(family, *parameters), normal(*batch_shape, N, 3, seed=7)
    assert_close(family_member(family, *parameters).sqrt_matmul(X), root @ X)


@pytest.mark.parametrize(("family", "other_family"), list(itertools.product(FAMILIES, FAMILIES)))
@pytest.mark.parametrize(
    ("batch_shape", "other_shape"), [((), ()), ((3, 2), (3, 2)), ((3, 2), ()), ((), (2,)), ((3, 1), (2,))]
)
def test_trace_for_every_pair(family, other_family, batch_shape, other_shape):
    covariance, C = random_covariance(family, N, batch_shape, seed=1)
    other, D = random_covariance(other_family, N, other_shape, seed=5)
    assert_close(other.trace_relative_to(covariance), diag(torch.linalg.inv(C) @ D).sum(-1))


def test_rank_one_broadcasts_its_parameters():
    scale, u = torch.rand(N) + 0.5, normal(3, 2, N, seed=1).float()
    assert RankOne(scale, u).batch_shape == (3, 2)
    assert RankOne(scale.expand(2, N), u).to_dense().shape == (3, 2, N, N)


def test_dense_reads_the_lower_triangle_only():
    full = normal(N, N, seed=0) + 4 * eye(N)
    assert_close(Dense(full).to_dense(), full.tril() @ full.tril().mT)


@over_batches
def test_diagonal_from_log_scale(batch_shape):
    log_scale = normal(*batch_shape, N, seed=0)
    diagonal = Diagonal.from_log_scale(log_scale)
    assert_close(diagonal.to_dense(), torch.diag_embed((2 * log_scale).exp()))
    assert torch.equal(diagonal.log_scale, log_scale)
    assert_close(Diagonal(log_scale.exp()).log_scale, log_scale)
    assert torch.equal(diagonal.to(torch.float32).log_scale, log_scale.float())
    assert_close(diagonal.expand((5, *batch_shape)).log_scale, log_scale.expand(5, *batch_shape, N))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_parameters_are_checked(bad):
    scale = torch.tensor([1.0, bad])
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        Diagonal(scale)
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        RankOne(scale, torch.zeros(2))
    with pytest.raises(ValueError, match="the diagonal of scale_tril must be positive and finite"):
        Dense(torch.diag(scale))
    assert Diagonal(scale, validate=False).n == 2
    for make, message in (
        (lambda: RankOne(torch.ones(3), torch.ones(2)), "same length; got 3 and 2"),
        (lambda: Dense(torch.ones(3, 2)), "square"),
        (lambda: Dense(torch.ones(3)), "square"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@over_families
def test_the_determinant_keeps_its_digits_at_a_small_damping(family):
    """With as many points as rows, where the difference U − UÃᵀΣ₁₁⁻¹ÃU has none left."""
    given, C = member((family, 4), *parameters_of((family, 4)), damping=1e-8)
    assert_close(given.logdet(), torch.logdet(C), 1e-6)


def test_one_covariance_serves_many_draws_of_points():
    U, _ = random_covariance("diagonal", N)
    A = normal(5, 3, N, seed=5)
    together = Conditioned(U, A, DAMPING)
    assert together.batch_shape == (5,)
    for k in range(5):
        assert_close(together.to_dense()[k], Conditioned(U, A[k], DAMPING).to_dense())
        assert_close(together.expand((2, 5)).logdet()[1, k], Conditioned(U, A[k], DAMPING).logdet())


def test_arguments_of_a_conditioned_covariance_are_checked():
    U = Dense(torch.eye(N))
    with pytest.raises(ValueError, match="inputs must have 4 columns; got 3"):
        Conditioned(U, torch.ones(2, 3), DAMPING)
    with pytest.raises(ValueError, match=r"damping must be positive; got 0.0"):
        Conditioned(U, torch.ones(2, N), 0.0)
