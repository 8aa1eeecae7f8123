"""A layer's draw, on the kernels and in PyTorch, against the steps of ``vmg.math.preactivations``."""

import pytest
import torch
from sampling import arguments, sample_diagonal

from reference import assert_close, normal
from vmg.covariance import Diagonal
from vmg.fused import library
from vmg.math.preactivations import augment, sample_conditional, sample_marginal
from vmg.nn.matrix_gaussian import multiplicative_noise

N, R, C, P = 4, 5, 3, 2
over_batches = pytest.mark.parametrize("batch_shape", [(), (2,), (2, 2)])
over_means = pytest.mark.parametrize("zero_mean", [False, True])


@pytest.fixture(autouse=True, params=["kernels", "pytorch"])
def _passes(request, monkeypatch):
    """Every test runs through the compiled pass, and that in PyTorch."""
    if request.param == "pytorch":
        monkeypatch.setattr(library, "native", lambda *tensors: None)
    elif not library.available():
        pytest.skip("no compiled kernels")


def make(batch_shape=(), p=P, bias=False, **options):
    return arguments((N, R - bias, C, p), batch_shape, bias, **options)


def plain(x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, noise, point_noise, damping):
    """Step by step, by functions that are tested against dense Gaussians: augment, draw the pseudo-data, condition."""
    x = augment(x, bias=x.shape[-1] < R)
    U, V = Diagonal(log_row_scale.exp()), Diagonal(log_column_scale.exp())
    if points is None:
        return sample_marginal(x, M, U, V, noise)
    if point_noise is not None:
        if log_point_noise is None:
            kind = torch.tensor([0] * R + [1] * C)  # of each column: pseudo-input or pseudo-output
            scale = log_noise[..., kind].exp().unsqueeze(-2)
        else:
            scale = log_point_noise.exp().unsqueeze(-1) * log_noise.exp().unsqueeze(-2)
        points = multiplicative_noise(points, scale, point_noise)
    A, B = points[..., :R] / R**0.5, points[..., R:]
    return sample_conditional(x, M, U, V, A, B, noise, damping)


def asked(given):
    return [t for t in given.values() if t is not None and t.requires_grad]


def assert_equal_in_value_and_gradient(given, drawn, damping):
    before = {name: None if t is None else t.detach().clone() for name, t in given.items()}
    actual, expected = (function(**given, **drawn, damping=damping) for function in (sample_diagonal, plain))
    assert_close(actual, expected)
    weight = normal(*actual.shape, seed=99)
    found, gradients = (torch.autograd.grad((weight * out).sum(), asked(given)) for out in (actual, expected))
    for a, e in zip(found, gradients, strict=True):
        level = e.abs().max().clamp_min(1)
        assert_close(a / level, e / level)
    assert all(t is None or torch.equal(t, given[name]) for name, t in before.items()), "inputs are not changed"


@over_batches
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("noise", ["none", "layer", "factored"])
@over_means
@pytest.mark.parametrize(("p", "damping"), [(1, 1e-6), (P, 1e-6), (P, 0.1), (R, 1e-2), (R + 2, 1e-2), (0, 1e-6)])
def test_equals_the_plain_version_in_value_and_gradient(batch_shape, bias, noise, p, damping, zero_mean):
    """With fewer pseudo-points than inputs, as many, and more."""
    if p or not zero_mean:
        assert_equal_in_value_and_gradient(*make(batch_shape, p, bias, zero_mean=zero_mean, noise=noise), damping)


@over_means
@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("frozen", make(noise="factored")[0])
def test_each_input_may_go_without_a_gradient(frozen, batch_shape, zero_mean):
    given, drawn = make(batch_shape, zero_mean=zero_mean, noise="factored")
    if given[frozen] is not None:
        given[frozen] = given[frozen].detach()
    assert_equal_in_value_and_gradient(given, drawn, 0.01)


@over_means
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_clamped_variance_passes_no_gradient(batch_shape, zero_mean):
    """As many orthogonal pseudo-inputs as dimensions and next to no damping: the variance is zero but for rounding."""
    given, drawn = make(batch_shape, R, zero_mean=zero_mean, noise="none")
    with torch.no_grad():
        given["points"][..., :R] = R**0.5 * torch.eye(R)
    out = sample_diagonal(**given, **drawn, damping=1e-30)

    # the branch is really taken: the spread around the mean x̂Ã⁻¹B̃ is the floor's
    x, points = given["x"] / R**0.5, given["points"]
    floor = 10 * torch.finfo(torch.float64).eps * (x.square() @ (2 * given["log_row_scale"]).exp().unsqueeze(-1))
    spread = floor.sqrt() * given["log_column_scale"].exp().unsqueeze(-2) * drawn["noise"]
    mean = x @ torch.linalg.solve(points[..., :R] / R**0.5, points[..., R:])
    assert_close((out - mean) / spread, torch.ones_like(spread), 1e-5)

    assert_equal_in_value_and_gradient(given, drawn, 1e-30)
    weight = normal(*out.shape, seed=99)
    expected = torch.autograd.grad((weight * mean).sum(), [given["x"], points])
    others = [given[name] for name in ("log_row_scale", "M") if given[name] is not None]
    found = torch.autograd.grad((weight * out).sum(), [given["x"], points, *others])
    for a, e in zip(found[:2], expected, strict=True):
        assert_close(a, e, 1e-7)
    for a in found[2:]:  # with so much pseudo-data the mean does not depend on M or U
        assert_close(a, torch.zeros_like(a), 1e-7)


def test_some_rows_clamped_and_others_not():
    given, drawn = make(p=R - 1, noise="none")
    with torch.no_grad():
        given["points"][:, :R] = R**0.5 * torch.eye(R)[: R - 1]
        given["x"][:2, -1] = 0  # within the span of the pseudo-inputs
    assert_equal_in_value_and_gradient(given, drawn, 1e-30)
    out = sample_diagonal(**given, **drawn, damping=1e-30)
    (clamped,) = torch.autograd.grad(out[:2].sum(), given["log_column_scale"], retain_graph=True)
    (free,) = torch.autograd.grad(out[2:].sum(), given["log_column_scale"])
    assert clamped.abs().max() < 1e-6 < 1e-2 < free.abs().max()


def test_an_input_of_zeros_has_a_finite_gradient():
    given, drawn = make(noise="none")
    with torch.no_grad():
        given["x"][0] = 0
    assert_equal_in_value_and_gradient(given, drawn, 1e-6)
    out = sample_diagonal(**given, **drawn)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(out.sum(), asked(given)))


@pytest.mark.parametrize("p", [R, R + 2, 3 * R])
def test_single_precision_is_right_with_as_many_points_as_rows(p):
    """Where Σ₁₁ has directions in which the damping alone is left; values and gradients were off by 2 to 50 %."""
    found = []
    for dtype in (torch.float32, torch.float64):
        single, drawn = make(p=p, noise="none", dtype=torch.float32)
        given = {name: None if t is None else t.detach().to(dtype).requires_grad_() for name, t in single.items()}
        out = sample_diagonal(**given, noise=drawn["noise"].to(dtype))
        weight = normal(*out.shape, seed=9).to(dtype)
        found.append([out.detach(), *torch.autograd.grad((out * weight).sum(), asked(given))])
    for a, b in zip(*found, strict=True):
        assert a.dtype == torch.float32
        assert (a.double() - b).norm() < 1e-5 * b.norm() + 1e-7  # where a gradient is left of terms a million as large
