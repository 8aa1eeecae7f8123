import pytest
import torch
from sampling import sample_diagonal

from reference import assert_close, members, normal
from vmg.covariance import Diagonal
from vmg.fused import library
from vmg.math.preactivations import DAMPING, augment, sample_conditional, sample_marginal
from vmg.nn.matrix_gaussian import multiplicative_noise

N, R, C, P = 4, 5, 3, 2
NAMES = ["x", "M", "log_row_scale", "log_column_scale", "A", "B"]
over_batches = pytest.mark.parametrize("batch_shape", [(), (2,), (2, 2)])
over_means = pytest.mark.parametrize("zero_mean", [False, True])
# (P, damping): fewer pseudo-points than inputs, as many, and more
over_pseudo = pytest.mark.parametrize(("p", "damping"), [(1, 1e-6), (P, 1e-6), (P, 0.1), (R, 1e-2), (R + 2, 1e-2)])


@pytest.fixture(autouse=True, params=["kernels", "pytorch"])
def _passes(request, monkeypatch):
    """Every test runs through the compiled pass, and that in PyTorch."""
    if request.param == "pytorch":
        monkeypatch.setattr(library, "native", lambda *tensors: None)
    elif not library.available():
        pytest.skip("no compiled kernels")


def arguments(batch_shape=(), p=P, n=N, zero_mean=False, seed=0):
    """x, M, log σ_r, log σ_c, Ã, B̃ and noise; all but the noise ask for a gradient."""
    tensors = [
        normal(*batch_shape, n, R, seed=seed + 1),
        normal(*batch_shape, R, C, seed=seed + 2),
        0.3 * normal(*batch_shape, R, seed=seed + 3),
        0.3 * normal(*batch_shape, C, seed=seed + 4),
        normal(*batch_shape, p, R, seed=seed + 5),
        normal(*batch_shape, p, C, seed=seed + 6),
    ]
    x, M, *rest = [t.requires_grad_() for t in tensors]
    return x, None if zero_mean else M, *rest, normal(*batch_shape, n, C, seed=seed + 7)


def plain(x, M, log_row_scale, log_column_scale, A, B, noise, damping):
    """The version of vmg.math.preactivations, which is tested against dense Gaussians."""
    return sample_conditional(
        x, M, Diagonal(log_row_scale.exp()), Diagonal(log_column_scale.exp()), A, B, noise, damping
    )


def sample_conditional_diagonal(x, M, log_row_scale, log_column_scale, A, B, noise, damping=DAMPING):
    """sample_diagonal of augmented inputs and pseudo-inputs."""
    root = log_row_scale.shape[-1] ** 0.5  # by which both are divided
    points = torch.cat([root * A, B], dim=-1)
    return sample_diagonal(root * x, M, log_row_scale, log_column_scale, points, noise=noise, damping=damping)


def gradients(function, inputs, damping, weight):
    wanted = [t for t in inputs[:-1] if t is not None and t.requires_grad]
    return torch.autograd.grad((weight * function(*inputs, damping)).sum(), wanted)


def assert_equal_in_value_and_gradient(inputs, damping, tolerance=1e-10):
    actual, expected = sample_conditional_diagonal(*inputs, damping), plain(*inputs, damping)
    assert_close(actual, expected, tolerance)
    weight = normal(*actual.shape, seed=99)
    pairs = zip(*(gradients(f, inputs, damping, weight) for f in (sample_conditional_diagonal, plain)), strict=True)
    for a, e in pairs:
        level = e.abs().max().clamp_min(1)
        assert_close(a / level, e / level, tolerance)


@over_batches
@over_means
@over_pseudo
def test_equals_the_plain_version_in_value_and_gradient(batch_shape, zero_mean, p, damping):
    assert_equal_in_value_and_gradient(arguments(batch_shape, p, zero_mean=zero_mean), damping)


@pytest.mark.parametrize(("n", "r", "c", "p"), [(37, 53, 71, 19), (16, 33, 32, 8), (9, 70, 10, 3)])
@pytest.mark.parametrize("needs_x", [True, False])
def test_equals_the_plain_version_for_whole_blocks_and_rests_of_the_products(n, r, c, p, needs_x):
    inputs = [normal(n, r, seed=1), normal(r, c, seed=2), 0.3 * normal(r, seed=3), 0.3 * normal(c, seed=4)]
    inputs = [t.requires_grad_() for t in (*inputs, normal(p, r, seed=5), normal(p, c, seed=6))]
    inputs[0].requires_grad_(needs_x)
    assert_equal_in_value_and_gradient([*inputs, normal(n, c, seed=7)], 0.1)


@over_means
@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("frozen", NAMES)
def test_each_input_may_go_without_a_gradient(frozen, batch_shape, zero_mean):
    inputs = list(arguments(batch_shape, zero_mean=zero_mean))
    index = NAMES.index(frozen)
    if inputs[index] is not None:
        inputs[index] = inputs[index].detach()
    assert_equal_in_value_and_gradient(inputs, 0.01)


def clamped_arguments(batch_shape=(), zero_mean=False):
    """As many orthogonal pseudo-inputs as dimensions and next to no damping: the variance is zero but for rounding."""
    x, M, log_row_scale, log_column_scale, _, _, noise = arguments(batch_shape, n=2, zero_mean=zero_mean)
    A = torch.eye(R, dtype=torch.float64).expand(*batch_shape, R, R).clone().requires_grad_()
    B = normal(*batch_shape, R, C, seed=8).requires_grad_()
    return x, M, log_row_scale, log_column_scale, A, B, noise


@over_means
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_clamped_variance_passes_no_gradient(batch_shape, zero_mean):
    damping = 1e-30
    x, M, log_row_scale, log_column_scale, A, B, noise = inputs = clamped_arguments(batch_shape, zero_mean)
    out = sample_conditional_diagonal(*inputs, damping)

    # the branch is really taken: the spread around the mean x̂Ã⁻¹B̃ is the floor's
    eps = torch.finfo(torch.float64).eps
    floor = 10 * eps * (x.square() * (2 * log_row_scale).exp().unsqueeze(-2)).sum(-1, keepdim=True)
    spread = floor.sqrt() * log_column_scale.exp().unsqueeze(-2) * noise
    assert_close((out - x @ B) / spread, torch.ones_like(spread), 1e-5)

    assert_equal_in_value_and_gradient(inputs, damping)
    given = [t for t in (x, A, B, log_row_scale, M) if t is not None]
    weight = normal(*out.shape, seed=99)
    expected = torch.autograd.grad((weight * (x @ torch.linalg.solve(A, B))).sum(), [x, A, B])
    actual = torch.autograd.grad((weight * out).sum(), given)
    for a, e in zip(actual[:3], expected, strict=True):
        assert_close(a, e, 1e-7)
    for a in actual[3:]:  # with so much pseudo-data the mean does not depend on M or U
        assert_close(a, torch.zeros_like(a), 1e-7)


def test_some_rows_clamped_and_others_not():
    x, M, log_row_scale, log_column_scale, A, B, noise = arguments(p=R - 1)
    A = torch.eye(R, dtype=torch.float64)[: R - 1].clone().requires_grad_()
    x = x.detach().clone()
    x[:2, -1] = 0  # within the span of the pseudo-inputs
    x.requires_grad_()
    inputs = (x, M, log_row_scale, log_column_scale, A, B, noise)
    assert_equal_in_value_and_gradient(inputs, 1e-30)
    (g_column,) = torch.autograd.grad(sample_conditional_diagonal(*inputs, 1e-30)[:2].sum(), log_column_scale)
    assert g_column.abs().max() < 1e-6
    (g_column,) = torch.autograd.grad(sample_conditional_diagonal(*inputs, 1e-30)[2:].sum(), log_column_scale)
    assert g_column.abs().max() > 1e-2


def test_an_input_of_zeros_has_a_finite_gradient():
    x, *rest = arguments()
    x = x.detach().clone()
    x[0] = 0
    inputs = (x.requires_grad_(), *rest)
    assert_equal_in_value_and_gradient(inputs, 1e-6)
    for gradient in gradients(sample_conditional_diagonal, inputs, 1e-6, 1.0):
        assert torch.isfinite(gradient).all()


@over_means
def test_a_batch_is_a_loop(zero_mean):
    batch_shape = (2, 2)
    inputs = arguments(batch_shape, zero_mean=zero_mean)
    out = sample_conditional_diagonal(*inputs)
    for index in members(batch_shape):
        one = [None if t is None else t[index] for t in inputs]
        assert_close(out[index], sample_conditional_diagonal(*one))


@pytest.mark.parametrize("p", [P, R, R + 2])
def test_single_precision_stays_finite_with_the_default_damping(p):
    inputs = [t.detach().float().requires_grad_(t.requires_grad) for t in arguments(p=p)]
    out = sample_conditional_diagonal(*inputs)
    assert out.dtype == torch.float32
    out.sum().backward()
    for t in inputs[:-1]:
        assert t.grad.dtype == torch.float32
        assert torch.isfinite(t.grad).all()


@pytest.mark.parametrize("p", [R, R + 2, 3 * R])
def test_single_precision_is_right_with_as_many_points_as_rows(p):
    """Where Σ₁₁ has directions in which the damping alone is left; values and gradients were off by 2 to 50 %."""
    single = [t.detach().float() for t in arguments(p=p)]
    found = []
    for dtype in (torch.float32, torch.float64):
        inputs = [t.clone().to(dtype).detach().requires_grad_() for t in single]
        out = sample_conditional_diagonal(*inputs)
        (out * normal(*out.shape, seed=9).to(dtype)).sum().backward()
        found.append([out.detach(), *(t.grad for t in inputs[:-1])])
    for a, b in zip(*found, strict=True):
        assert a.dtype == torch.float32
        assert (a.double() - b).norm() < 1e-5 * b.norm() + 1e-7  # where a gradient is left of terms a million as large


def test_inputs_are_not_changed():
    inputs = arguments()
    before = [t.detach().clone() for t in inputs]
    sample_conditional_diagonal(*inputs).sum().backward()
    for t, b in zip(inputs, before, strict=True):
        assert torch.equal(t.detach(), b)


# The same draw from a layer's raw quantities


def raw_arguments(batch_shape=(), p=P, bias=True, zero_mean=False, kind="layer", n=N):
    """Arguments of sample_diagonal by name: those that take a gradient, and the noise."""
    given = {
        "x": normal(*batch_shape, n, R - bias, seed=1),
        "M": None if zero_mean else normal(*batch_shape, R, C, seed=2),
        "log_row_scale": 0.3 * normal(*batch_shape, R, seed=3),
        "log_column_scale": 0.3 * normal(*batch_shape, C, seed=4),
        "points": normal(*batch_shape, p, R + C, seed=5) if p else None,
        "log_noise": None,
        "log_point_noise": None,
    }
    drawn = {"noise": normal(*batch_shape, n, C, seed=7), "point_noise": None}
    if p and kind != "none":
        drawn["point_noise"] = normal(*batch_shape, p, R + C, seed=8)
        given["log_noise"] = 0.3 * normal(*batch_shape, 2 if kind == "layer" else R + C, seed=9) - 1
        given["log_point_noise"] = 0.3 * normal(*batch_shape, p, seed=10) if kind == "factored" else None
    for tensor in given.values():
        if tensor is not None:
            tensor.requires_grad_()
    return given, drawn


def plain_raw(x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, noise, point_noise, damping):
    """Step by step: augment, draw the pseudo-data, scale them like the input, condition."""
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


@over_batches
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["none", "layer", "factored"])
@pytest.mark.parametrize(("p", "zero_mean"), [(P, False), (P, True), (R, False), (R + 2, False), (0, False)])
def test_from_raw_quantities(batch_shape, bias, kind, p, zero_mean):
    given, drawn = raw_arguments(batch_shape, p, bias, zero_mean, kind)
    wanted = [t for t in given.values() if t is not None]
    damping = 1e-6 if p < R else 1e-2
    actual = sample_diagonal(**given, **drawn, damping=damping)
    expected = plain_raw(**given, **drawn, damping=damping)
    assert_close(actual, expected)
    weight = normal(*actual.shape, seed=99)
    pairs = (torch.autograd.grad((weight * out).sum(), wanted) for out in (actual, expected))
    for a, e in zip(*pairs, strict=True):
        level = e.abs().max().clamp_min(1)
        assert_close(a / level, e / level)


@over_means
def test_it_can_be_differentiated_twice(zero_mean):
    inputs = arguments(zero_mean=zero_mean)
    wanted = [t for t in inputs[:-1] if t is not None]

    def second(function):
        first = torch.autograd.grad(function(*inputs, 0.1).square().sum(), wanted, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), wanted)

    for actual, expected in zip(second(sample_conditional_diagonal), second(plain), strict=True):
        assert_close(actual, expected, 1e-8)
