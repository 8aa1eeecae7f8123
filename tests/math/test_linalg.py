import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import assert_close, normal
from vmg.math.linalg import NotPositiveDefiniteError, all_finite, cholesky


def singular(gap=0.0, n=2):
    """A matrix of ones with ``gap`` taken off one diagonal entry: jitter must exceed about gap/2."""
    matrix = torch.ones(n, n, dtype=torch.float64)
    matrix[-1, -1] -= gap
    return matrix


def jitter_of(factor, matrix):
    """What was added to the diagonal, relative to the mean diagonal."""
    added = (factor @ factor.mT - matrix).diagonal(dim1=-2, dim2=-1).mean(-1)
    return (added / matrix.diagonal(dim1=-2, dim2=-1).mean(-1)).item()


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 6), st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 10_000))
def test_positive_definite_matrices_are_factorised_exactly(n, batch_shape, seed):
    root = normal(*batch_shape, n, n, seed=seed)
    matrix = root @ root.mT + torch.eye(n, dtype=torch.float64)
    factor = cholesky(matrix)
    assert_close(factor @ factor.mT, matrix, 1e-12)
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()


def test_no_jitter_without_need():
    # a tiny but positive definite matrix: any jitter relative to something else would show
    matrix = torch.diag(torch.tensor([1e-30, 4e-30], dtype=torch.float64))
    assert torch.equal(cholesky(matrix), matrix.sqrt())


@pytest.mark.parametrize(
    ("matrix", "options", "expected"),
    [
        (singular(), {}, 1e-8),
        (singular(), {"jitter": 1e-5}, 1e-5),
        (1e6 * singular(n=3), {"jitter": 1e-6}, 1e-6),  # relative to the mean diagonal
        *((singular(gap), {}, jitter) for gap, jitter in ((3e-8, 1e-7), (3e-6, 1e-5), (3e-4, 1e-3))),
    ],
)
def test_jitter_grows_tenfold_until_it_suffices(matrix, options, expected):
    assert jitter_of(cholesky(matrix, **options), matrix) == pytest.approx(expected, rel=1e-3)


def test_single_precision_uses_no_less_than_its_rounding():
    last_pivot = cholesky(singular().float(), jitter=1e-12, max_tries=1)[1, 1].square().item()
    assert 0.5e-7 < last_pivot < 5e-7  # two jitters, in exact arithmetic


def test_only_failing_members_of_a_batch_are_changed():
    root = normal(2, 2, seed=0)
    healthy = root @ root.mT
    batch = torch.stack([healthy, singular(), 2 * healthy])
    factor = cholesky(batch.expand(2, 3, 2, 2))[1]
    assert torch.equal(factor[[0, 2]], torch.linalg.cholesky(batch[[0, 2]]))
    assert jitter_of(factor[1], batch[1]) == pytest.approx(1e-8, rel=1e-6)


@pytest.mark.parametrize("gaps", [(0.0, 3e-8), (0.0, 3e-7), (0.0, 3e-8, 3e-6), (3e-5, 0.0)])
def test_each_member_gets_the_jitter_that_it_would_get_alone(gaps):
    batch = torch.stack([singular(gap) for gap in gaps])
    alone = torch.stack([cholesky(matrix) for matrix in batch])
    assert_close(cholesky(batch), alone, 1e-12)


def test_gradient_flows_with_and_without_jitter():
    root = normal(3, 3, seed=3)
    matrix = (root @ root.mT).requires_grad_()
    assert torch.autograd.gradcheck(lambda C: cholesky((C + C.mT) / 2), matrix)
    singular_matrix = singular().requires_grad_()
    cholesky(singular_matrix, jitter=1e-3).sum().backward()
    assert torch.isfinite(singular_matrix.grad).all()


def test_an_indefinite_matrix_is_an_error_that_says_which():
    matrix = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    with pytest.raises(NotPositiveDefiniteError, match=r"row kernel is not positive definite, even with 1e-03"):
        cholesky(matrix, name="row kernel")
    with pytest.raises(ValueError, match="even with 1e-08"):
        cholesky(matrix, max_tries=1)


@pytest.mark.parametrize("entry", [(0, 0), (1, 0), (2, 2)])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_nan_is_an_error_that_says_so(entry, batch_shape):
    matrix = torch.eye(3, dtype=torch.float64).expand(*batch_shape, 3, 3).clone()
    matrix[(*[0] * len(batch_shape), *entry)] = torch.nan
    with pytest.raises(NotPositiveDefiniteError, match="row kernel has non-finite entries"):
        cholesky(matrix, name="row kernel")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("position", [0, 5, -1])
def test_one_number_that_is_not_finite_is_noticed(bad, position):
    x = torch.randn(3, 4)
    assert all_finite(x) and all_finite(torch.arange(4))
    x.view(-1)[position] = bad
    assert not all_finite(x) and not all_finite(x.mT)
    assert not all_finite(torch.tensor([bad, -bad, 1.0]))  # infinities that cancel
    assert all_finite(torch.full((4,), torch.finfo(torch.float32).max))  # a sum that overflows
