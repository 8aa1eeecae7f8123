"""The compiled kernels against the same mathematics in PyTorch."""

import math
import os
import subprocess
import sys

import pytest
import torch
from sampling import arguments, sample_diagonal
from torch.utils._python_dispatch import TorchDispatchMode

import vmg
from vmg.fused import library
from vmg.fused.library import standard_normal
from vmg.likelihoods import GaussianLikelihood
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.nn import MLP

needs_kernels = pytest.mark.skipif(not library.available(), reason="no compiled kernels, or VMG_NATIVE=0")
# rows, inputs, outputs, pseudo-points; bias; zero mean: sizes around those of a vector and of a block, and of one
LAYERS = [
    ((7, 9, 5, 4), True, False),
    ((67, 20, 17, 6), False, True),
    ((3, 4, 1, 0), True, False),
    ((3, 8, 16, 0), False, False),
    ((1, 8, 2, 3), True, True),
    ((33, 37, 40, 18), False, False),
    ((32, 15, 16, 8), True, False),
]


def without_kernels(monkeypatch):
    monkeypatch.setattr(library, "native", lambda *tensors: None)


def draw_and_gradients(given, drawn, damping=1e-3):
    out = sample_diagonal(**given, **drawn, damping=damping)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).sin().view_as(out)
    asked = [tensor for tensor in given.values() if tensor is not None]
    return [out.detach(), *torch.autograd.grad((weight * out).sum(), asked)]


def assert_same(actual, expected, tolerance):
    for a, e in zip(actual, expected, strict=True):
        level = e.abs().max().clamp_min(1)
        torch.testing.assert_close(a / level, e / level, rtol=0, atol=tolerance)


@needs_kernels
@pytest.mark.parametrize(("sizes", "bias", "zero_mean"), LAYERS)
@pytest.mark.parametrize("batch_shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("noise", ["none", "layer", "factored"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-3)])
def test_kernels_equal_pytorch(monkeypatch, sizes, bias, zero_mean, batch_shape, noise, dtype, tolerance):
    given, drawn = arguments(sizes, batch_shape, bias, zero_mean, noise, dtype)
    actual = draw_and_gradients(given, drawn)
    without_kernels(monkeypatch)
    assert_same(actual, draw_and_gradients(given, drawn), tolerance)


@needs_kernels
def test_one_x_for_all_replicas_is_not_copied_but_counted(monkeypatch):
    given, drawn = arguments((5, 4, 3, 2), (2, 2))
    shared = given["x"].detach()[0, 0].clone().requires_grad_()

    def run():
        out = sample_diagonal(**{**given, "x": shared.expand(2, 2, 5, 4)}, **drawn)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [shared, given["M"]])]

    actual = run()
    without_kernels(monkeypatch)
    assert_same(actual, run(), 1e-10)


@needs_kernels
def test_strides_do_not_matter():
    given, drawn = arguments((5, 4, 3, 2))
    expected = draw_and_gradients(given, drawn)
    turned = {k: t if t is None or t.dim() < 2 else t.detach().mT.contiguous().mT for k, t in given.items()}
    for tensor in turned.values():
        if tensor is not None:
            tensor.requires_grad_()
    assert_same(draw_and_gradients(turned, drawn), expected, 1e-12)


@needs_kernels
def test_a_gradient_with_strides_is_understood():
    given, drawn = arguments((5, 4, 3, 2), (2,))
    out = sample_diagonal(**given, **drawn)
    weight = torch.randn(2, 3, 5, dtype=torch.float64).mT
    (expected,) = torch.autograd.grad((out * weight.contiguous()).sum(), given["M"], retain_graph=True)
    (expanded,) = torch.autograd.grad(out.sum(), given["M"], retain_graph=True)
    (actual,) = torch.autograd.grad(out, given["M"], weight, retain_graph=True)
    torch.testing.assert_close(actual, expected)
    (ones,) = torch.autograd.grad(out, given["M"], torch.ones_like(out))
    torch.testing.assert_close(expanded, ones)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_kernels), False])
def test_values_that_are_not_finite(monkeypatch, value, native):
    if not native:
        without_kernels(monkeypatch)
    given, drawn = arguments((4, 3, 2, 2))
    with torch.no_grad():
        given["x"][1, 2] = value
    if native:
        with pytest.raises(ValueError, match="x must be finite"):
            sample_diagonal(**given, **drawn, check_finite=True)
    out = sample_diagonal(**given, **drawn)  # unasked, they pass through, in their row only
    assert not torch.isfinite(out[1]).any()
    assert torch.isfinite(out[[0, 2, 3]]).all()

    given, drawn = arguments((4, 3, 2, 2))
    with torch.no_grad():
        given["points"][0, 0] = value
    with pytest.raises(NotPositiveDefiniteError, match="finite"):
        sample_diagonal(**given, **drawn)


@needs_kernels
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_failed_factor_is_found_again_with_jitter(monkeypatch, batch_shape):
    given, drawn = arguments((4, 3, 2, 6), batch_shape, noise="none")
    with torch.no_grad():  # every entry of Σ₁₁ is one, without rounding, and its second pivot is zero
        given["log_row_scale"].zero_()
        given["points"][..., :4] = torch.tensor([2.0, 0.0, 0.0, 0.0])
    actual = sample_diagonal(**given, **drawn, damping=1e-30)
    without_kernels(monkeypatch)
    torch.testing.assert_close(actual, sample_diagonal(**given, **drawn, damping=1e-30), rtol=1e-8, atol=1e-8)


@needs_kernels
def test_shapes_are_checked():
    given, drawn = arguments((4, 3, 2, 2))
    with pytest.raises(ValueError, match="x must have 3 or 4 columns; got 2"):
        sample_diagonal(**{**given, "x": given["x"][:, :2]}, **drawn)
    for missing in ({"M": None, "points": None}, {"log_noise": None}):
        with pytest.raises(ValueError, match="M or points must be given, and log_noise and point_noise together"):
            sample_diagonal(**{**given, **missing}, **drawn)


# -- random numbers ----------------------------------------------------------------------------------------------------


@needs_kernels
def test_normal_numbers_are_normal():
    from scipy.stats import kstest

    n = 200_003  # not a multiple of what is made at once
    generator = torch.Generator().manual_seed(0)
    first, second = standard_normal((n,), (n,), like=torch.empty(0), generator=generator)
    for x in (first, second, first[1:] * first[:-1].sign(), (first + second) / math.sqrt(2)):
        assert kstest(x.numpy(), "norm").pvalue > 1e-3
    for lag in (1, 16, 32):  # of neighbours, of the pair of one angle, of one lane
        assert abs((first[lag:] * first[:-lag]).mean()) < 4 / math.sqrt(n)
        assert abs((first[lag:].square() * first[:-lag].square()).mean() - 1) < 4 * 3 / math.sqrt(n)
    assert first.abs().max() > 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers_follow_the_generator(dtype):
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        like = torch.empty(0, dtype=dtype)
        return [standard_normal((3, 4), (5,), like=like, generator=generator) for _ in range(2)]

    a, b, c = draw(1), draw(1), draw(2)
    assert all(torch.equal(s, t) for i in range(2) for s, t in zip(a[i], b[i], strict=True))
    assert a[0][0].shape == (3, 4) and a[0][0].dtype is dtype
    flat = torch.cat([t.flatten() for pair in (*a, *c) for t in pair])
    assert len(flat.unique()) == len(flat)


# -- dispatch ---------------------------------------------------------------------------------------


class CountOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


# Dispatched operations of one layer: forward (allocations, the seed, the projection of √α), its KL, the backward pass
# of both and the sums of their gradients. Small networks spend all their time on these; PyTorch alone needs some 250.
MAX_OPERATIONS_PER_LAYER = 45


@needs_kernels
def test_a_training_step_dispatches_few_operations():
    def count(n_layers):
        network = MLP(6, (8,) * (n_layers - 1), 1, n_pseudo=3, batch_shape=(4,))
        likelihood = GaussianLikelihood(1, batch_shape=(4,))
        x, y = torch.randn(4, 10, 6), torch.randn(4, 10, 1)
        with CountOperations() as operations:
            vmg.elbo(network, likelihood, x, y, n_data=100).total.sum().backward()
        return operations.count

    assert count(3) - count(2) <= MAX_OPERATIONS_PER_LAYER


def test_the_fallback_can_be_asked_for():
    code = "from vmg.fused import library; raise SystemExit(library.available())"
    environment = {**os.environ, "VMG_NATIVE": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


@needs_kernels
def test_kernels_are_for_one_dtype_on_the_cpu():
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    assert library.native(single, None, single) is not None
    assert library.native(double) is not None
    assert library.native(single, double) is None
    assert library.native(torch.zeros(1, dtype=torch.float16)) is None
    assert library.native(torch.zeros(1, device="meta")) is None
