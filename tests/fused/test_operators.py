"""The registered operator against the function that it wraps, by PyTorch's own checks too."""

import pytest
import torch
from sampling import sample_diagonal
from torch.func import vmap

from reference import normal
from vmg.nn.fusing import operator

N, R, C, P = 4, 5, 3, 2


def arguments(n_pseudo=P, factored=False, zero_mean=False, dtype=torch.float64):
    points = normal(P, R + C, seed=5)
    log_noise = -2 + 0.1 * normal(R + C if factored else 2, seed=6)
    tensors = [
        normal(N, R - 1, seed=1),
        None if zero_mean else normal(R, C, seed=2),
        0.3 * normal(R, seed=3),
        0.3 * normal(C, seed=4),
        *([points, log_noise, -1 + 0.1 * normal(P, seed=7) if factored else None, normal(P, R + C, seed=8)]),
        normal(N, C, seed=9),
    ]
    if not n_pseudo:
        tensors[4:8] = [None] * 4
    tensors = [None if t is None else t.to(dtype) for t in tensors]
    for k in range(7):
        if tensors[k] is not None:
            tensors[k].requires_grad_()
    return [*tensors, R**-0.5, 1e-2]


CASES = [{}, {"n_pseudo": 0}, {"factored": True}, {"zero_mean": True}]
over_cases = pytest.mark.parametrize("options", CASES, ids=str)


def plain(*given):
    *tensors, noise = given[:9]
    return sample_diagonal(*tensors, noise=noise, input_scale=given[9], damping=given[10])


@over_cases
def test_values_and_gradients(options):
    given = arguments(**options)
    learned = [t for t in given[:7] if t is not None]
    torch.testing.assert_close(operator(*given), plain(*given))
    weight = normal(N, C, seed=99)
    found = torch.autograd.grad((weight * operator(*given)).sum(), learned)
    expected = torch.autograd.grad((weight * plain(*given)).sum(), learned)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@over_cases
def test_pytorchs_own_checks(options):
    torch.library.opcheck(operator, arguments(**options))


def test_it_is_batched_as_replicas():
    given = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments()]
    x = normal(3, N, R - 1, seed=11)
    M = normal(R, C, 3, seed=12)
    found = vmap(lambda x, M: operator(x, M, *given[2:]), in_dims=(0, 2))(x, M)
    for k in range(3):
        torch.testing.assert_close(found[k], plain(x[k], M[..., k], *given[2:]))


@pytest.mark.parametrize("record", [False, True])
def test_single_precision_is_double_where_it_is_too_little(record):
    """With more pseudo-points than rows, eager and while a program is recorded: values and gradients."""
    n_points = 2 * R
    exact = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments()]
    exact[4], exact[7] = normal(n_points, R + C, seed=5), normal(n_points, R + C, seed=8)
    exact = [t.float().double() if isinstance(t, torch.Tensor) else t for t in exact]
    exact[10] = 1e-6
    found = []
    for dtype in (torch.float32, torch.float64):
        given = [t.to(dtype) if isinstance(t, torch.Tensor) else t for t in exact]
        learned = [t.requires_grad_() for t in given[:7] if t is not None]
        if record:
            out = vmap(lambda x, given=given: plain(x, *given[1:]))(given[0].expand(1, N, R - 1))[0]
        else:
            out = operator(*given)
        assert out.dtype == dtype
        found.append([t.double() for t in (out, *torch.autograd.grad(out.sum(), learned))])
    for a, b in zip(*found, strict=True):
        assert (a - b).norm() < 1e-4 * b.norm()
