import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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


@st.composite
def covariances(draw, n):
    """A member of any family with any parameters in a moderate range, and its matrix."""

    def numbers(low, high, *shape):
        return torch.tensor(draw(hnp.arrays(float, shape, elements=st.floats(low, high))))

    family = draw(st.sampled_from(FAMILIES))
    scale = numbers(0.3, 3, n)
    if family == "diagonal":
        parameters = (scale,)
    elif family == "rank_one":
        parameters = scale, numbers(-2, 2, n)
    else:
        parameters = (numbers(-1, 1, n, n).tril(-1) + torch.diag(scale),)
    root = family_root(family, *parameters)
    return family_member(family, *parameters), root @ root.mT


@over_families
@over_batches
class TestAgainstDenseMatrices:
    def test_to_dense(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        assert_close(covariance.to_dense(), C)

    def test_attributes(self, family, batch_shape):
        covariance, _ = random_covariance(family, N, batch_shape)
        assert (covariance.n, covariance.batch_shape, covariance.dtype) == (N, batch_shape, torch.float64)
        assert f"(n=4, batch_shape={batch_shape})" in repr(covariance)

    def test_sqrt_matmul(self, family, batch_shape):
        parameters = family_parameters(family, N, batch_shape)
        root, X = family_root(family, *parameters), normal(*batch_shape, N, 3, seed=7)
        assert_close(family_member(family, *parameters).sqrt_matmul(X), root @ X)

    def test_sqrt_solve(self, family, batch_shape):
        parameters = family_parameters(family, N, batch_shape)
        root, X = family_root(family, *parameters), normal(*batch_shape, N, 3, seed=7)
        assert_close(family_member(family, *parameters).sqrt_solve(X), torch.linalg.solve(root, X))

    def test_matmul(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        X = normal(*batch_shape, N, 3, seed=7)
        assert_close(covariance.matmul(X), C @ X)

    def test_solve(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        X = normal(*batch_shape, N, 3, seed=7)
        assert_close(covariance.solve(X), torch.linalg.solve(C, X))

    def test_logdet(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        assert_close(covariance.logdet(), torch.linalg.slogdet(C).logabsdet)

    def test_diagonal_and_trace(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        assert_close(covariance.diagonal(), C.diagonal(dim1=-2, dim2=-1))
        assert_close(covariance.trace(), sum(C[..., i, i] for i in range(N)))

    def test_inverse_diagonal(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        assert_close(covariance.inverse_diagonal(), torch.linalg.inv(C).diagonal(dim1=-2, dim2=-1))

    def test_gram(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        X1, X2 = normal(*batch_shape, 3, N, seed=7), normal(*batch_shape, 5, N, seed=8)
        assert_close(covariance.gram(X1), X1 @ C @ X1.mT)
        assert_close(covariance.gram(X1, X2), X1 @ C @ X2.mT)

    def test_quadratic(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        X = normal(*batch_shape, 5, N, seed=7)
        assert_close(covariance.quadratic(X), (X @ C @ X.mT).diagonal(dim1=-2, dim2=-1))

    def test_congruence(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        A = normal(*batch_shape, 3, N, seed=7)
        assert_close(covariance.congruence(A).to_dense(), A @ C @ A.mT)

    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_marginal(self, family, batch_shape, as_tensor):
        covariance, C = random_covariance(family, N, batch_shape)
        index = [3, 0, 2]
        marginal = covariance.marginal(torch.tensor(index) if as_tensor else index)
        assert_close(marginal.to_dense(), C[..., index, :][..., index])
        assert (marginal.n, marginal.batch_shape) == (3, batch_shape)

    def test_expand(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        expanded = covariance.expand((5, *batch_shape))
        assert type(expanded) is type(covariance)
        assert expanded.batch_shape == (5, *batch_shape)
        assert_close(expanded.to_dense(), C.expand(5, *C.shape))
        assert_close(expanded.logdet(), covariance.logdet().expand(5, *batch_shape))

    def test_operands_broadcast(self, family, batch_shape):
        covariance, C = random_covariance(family, N, batch_shape)
        more, fewer = normal(7, *batch_shape, N, 3, seed=7), normal(N, 3, seed=8)
        for X in (more, fewer):
            assert_close(covariance.sqrt_solve(covariance.sqrt_matmul(X)), X + 0 * (C @ X))
            assert_close(covariance.matmul(X), C @ X)
            assert_close(covariance.solve(X), torch.linalg.inv(C) @ X)
            assert_close(covariance.gram(X.mT), X.mT @ C @ X)
            assert_close(covariance.quadratic(X.mT), (X.mT @ C @ X).diagonal(dim1=-2, dim2=-1))


@pytest.mark.parametrize(("family", "other_family"), list(itertools.product(FAMILIES, FAMILIES)))
@pytest.mark.parametrize(
    ("batch_shape", "other_shape"), [((), ()), ((2,), (2,)), ((3, 2), (3, 2)), ((3, 2), ()), ((), (2,)), ((3, 1), (2,))]
)
def test_trace_solve_for_every_pair(family, other_family, batch_shape, other_shape):
    covariance, C = random_covariance(family, N, batch_shape, seed=1)
    other, D = random_covariance(other_family, N, other_shape, seed=5)
    expected = (torch.linalg.inv(C) @ D).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_close(covariance.trace_solve(other), expected)
    assert_close(other.trace_after(covariance), expected)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.data(), st.integers(1, 5))
def test_properties_of_any_member(data, n):
    covariance, C = data.draw(covariances(n))
    X = normal(n, 2, seed=n)
    assert_close(covariance.to_dense(), C)
    assert_close(covariance.solve(covariance.matmul(X)), X, 1e-9)
    assert_close(covariance.sqrt_solve(covariance.sqrt_matmul(X)), X)
    whitened = covariance.sqrt_solve(X)
    assert_close(whitened.square().sum(), (X * covariance.solve(X)).sum(), 1e-9)  # L⁻ᵀL⁻¹ = C⁻¹
    assert_close(covariance.logdet(), torch.logdet(C), 1e-9)
    assert_close(covariance.trace_solve(covariance), torch.tensor(float(n), dtype=torch.float64), 1e-9)
    assert (covariance.quadratic(X.mT) > 0).all()
    assert (covariance.inverse_diagonal() * covariance.diagonal() >= 1 - 1e-9).all()  # Cauchy and Schwarz


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.data(), st.integers(1, 5))
def test_trace_solve_of_any_pair(data, n):
    (covariance, C), (other, D) = data.draw(covariances(n)), data.draw(covariances(n))
    assert_close(covariance.trace_solve(other), torch.trace(torch.linalg.solve(C, D)), 1e-9)


METHODS = {
    "sqrt_matmul": lambda c, X: c.sqrt_matmul(X),
    "sqrt_solve": lambda c, X: c.sqrt_solve(X),
    "matmul": lambda c, X: c.matmul(X),
    "solve": lambda c, X: c.solve(X),
    "logdet": lambda c, X: c.logdet(),
    "diagonal": lambda c, X: c.diagonal(),
    "inverse_diagonal": lambda c, X: c.inverse_diagonal(),
    "to_dense": lambda c, X: c.to_dense(),
    "trace": lambda c, X: c.trace(),
    "gram": lambda c, X: c.gram(X.mT),
    "quadratic": lambda c, X: c.quadratic(X.mT),
    "congruence": lambda c, X: c.congruence(X.mT).scale_tril,
    "marginal": lambda c, X: c.marginal([2, 0]).to_dense(),
    "trace_solve": lambda c, X: c.trace_solve(Dense.from_matrix(eye(N) + X @ X.mT)),
    "trace_after": lambda c, X: c.trace_after(Dense.from_matrix(eye(N) + X @ X.mT)),
}
over_methods = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))


@over_methods
@over_batches
def test_diagonal_is_dense_with_a_diagonal(method, batch_shape):
    (scale,) = family_parameters("diagonal", N, batch_shape)
    X = normal(*batch_shape, N, 3, seed=7)
    assert_close(method(Diagonal(scale), X), method(Dense(torch.diag_embed(scale)), X))


@over_methods
@over_batches
def test_rank_one_without_its_vector_is_diagonal(method, batch_shape):
    (scale,) = family_parameters("diagonal", N, batch_shape)
    X = normal(*batch_shape, N, 3, seed=7)
    assert_close(method(RankOne(scale, torch.zeros(N, dtype=torch.float64)), X), method(Diagonal(scale), X))


@over_methods
@over_families
def test_a_batch_is_a_loop(method, family):
    batch_shape = (3, 2)
    parameters = family_parameters(family, N, batch_shape)
    X = normal(*batch_shape, N, 3, seed=7)
    result = method(family_member(family, *parameters), X)
    assert result.shape[:2] == batch_shape
    for index in members(batch_shape):
        assert_close(result[index], method(family_member(family, *(p[index] for p in parameters)), X[index]))


@over_methods
@over_families
def test_gradients(method, family):
    parameters = [p.requires_grad_() for p in family_parameters(family, N, (2,))]
    X = normal(2, N, 3, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(lambda X, *p: method(family_member(family, *p), X), (X, *parameters))


def test_the_rank_one_square_root_is_symmetric_and_footnote_1():
    scale, u = family_parameters("rank_one", N)
    root = RankOne(scale, u).sqrt_matmul(eye(N))
    assert_close(root, torch.diag(scale) + torch.outer(u, u))
    assert_close(root, root.mT)


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
    assert_close(diagonal.expand((5, *batch_shape)).log_scale, log_scale.expand(5, *batch_shape, N))
    assert_close(diagonal.marginal([2, 0]).log_scale, log_scale[..., [2, 0]])


def test_dense_from_matrix():
    _, C = random_covariance("rank_one", N, (2,))
    assert_close(Dense.from_matrix(C).to_dense(), C)
    with pytest.raises(ValueError, match="covariance_matrix is not positive definite"):
        Dense.from_matrix(-C)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_must_be_positive_and_finite(bad):
    scale = torch.tensor([1.0, bad])
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        Diagonal(scale)
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        RankOne(scale, torch.zeros(2))
    with pytest.raises(ValueError, match="the diagonal of scale_tril must be positive and finite"):
        Dense(torch.diag(scale))
    assert Diagonal(scale, validate=False).n == 2


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="same length; got 3 and 2"):
        RankOne(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="square"):
        Dense(torch.ones(3, 2))
    with pytest.raises(ValueError, match="square"):
        Dense(torch.ones(3))


# -- what pseudo-inputs leave of a covariance, against explicit matrices

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
def test_other_precisions_of_a_conditioned_covariance(family):
    found, _ = conditioned(family, 3)
    single = found.to(torch.float32)
    assert single.dtype == single.to_dense().dtype == torch.float32
    assert_close(single.to(torch.float64).logdet(), found.logdet(), 1e-5)
    diagonal = Diagonal.from_log_scale(normal(N, seed=1)).to(torch.float32)
    assert torch.equal(diagonal.log_scale, normal(N, seed=1).float())


@over_families
def test_gradients_of_a_conditioned_covariance(family):
    parameters = [p.requires_grad_() for p in family_parameters(family, N)]
    A = normal(3, N, seed=5).requires_grad_()

    def values(A, *parameters):
        found = Conditioned(family_member(family, *parameters), A, DAMPING)
        return found.logdet(), found.trace(), found.to_dense()

    assert torch.autograd.gradcheck(values, (A, *parameters))


def test_arguments_of_a_conditioned_covariance_are_checked():
    U = Dense(torch.eye(N))
    with pytest.raises(ValueError, match="inputs must have 4 columns; got 3"):
        Conditioned(U, torch.ones(2, 3), DAMPING)
    with pytest.raises(ValueError, match=r"damping must be positive; got 0.0"):
        Conditioned(U, torch.ones(2, N), 0.0)
    assert "n_inputs=2" in repr(Conditioned(U, torch.ones(2, N), DAMPING))
