"""Propagated moments against many draws of whole networks, within their standard errors."""

import copy
import math

import pytest
import torch

from reference import tensors_of
from vmg.fused import library, moments
from vmg.nn import MLP
from vmg.prediction import propagate_moments, sample_outputs
from vmg_paper.layers import MeanFieldLinear

D, C = 4, 2
needs_kernels = pytest.mark.skipif(not library.available(), reason="no compiled kernels, or VMG_NATIVE=0")


@pytest.fixture(autouse=True, params=["kernels", "pytorch"])
def way(request, monkeypatch):
    """Every test runs the compiled pass and that in PyTorch."""
    if request.param == "pytorch":
        monkeypatch.setattr(library, "native", lambda *tensors: None)
    elif not library.available():
        pytest.skip("no compiled kernels")
    return request.param


def network(perturb, noise=1e-4, dtype=torch.float64, **options):
    made = perturb(MLP(D, **{"hidden": (12,), "out_features": C, "n_pseudo": 3, "max_noise": noise} | options), dtype)
    for layer in made.layers:
        if layer.pseudo_data is not None:
            layer.pseudo_data.project_()
    return made


def check_against_draws(made, x, *, n=40_000, slack=0.0):
    """Mean and variance within five standard errors of n draws, and ``slack`` of the standard deviation."""
    draws = sample_outputs(made, x, n)
    mean, centred = draws.mean(0), draws - draws.mean(0)
    variance = centred.square().mean(0)
    error = (centred.pow(4).mean(0) - variance.square()).clamp_min(0).div(n).sqrt()
    found = propagate_moments(made, x, ignore_correlation=True)
    std = variance.sqrt()
    assert ((found.mean - mean).abs() <= 5 * std / n**0.5 + slack * std).all()
    assert ((found.variance - variance).abs() <= 5 * error + 2 * slack * variance).all()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_one_hidden_layer_is_exact_but_for_the_pseudo_inputs_noise(activation, perturb):
    check_against_draws(network(perturb, activation=activation), torch.randn(5, D).double())


@pytest.mark.parametrize("options", [{"n_pseudo": 0}, {"zero_mean": True}, {"bias": False}], ids=str)
def test_every_kind_of_diagonal_layer(options, perturb):
    check_against_draws(network(perturb, **options), torch.randn(5, D).double())


def test_the_pseudo_outputs_noise_is_exact_whatever_its_size(perturb):
    made = network(perturb, 0.5)
    for layer in made.layers:
        layer.pseudo_data.log_noise.data[0] = -20.0  # of the inputs; below the bound, which project_ restores
        layer.pseudo_data.lowest = -20.0
    check_against_draws(made, torch.randn(5, D).double())


def test_the_pseudo_inputs_noise_is_right_to_leading_order(perturb):
    made = network(perturb, 0.05)
    check_against_draws(made, torch.randn(5, D).double(), slack=0.03)
    tiny = network(perturb, 1e-4)
    tiny.load_state_dict(dict(tensors_of(made)))
    x = torch.randn(5, D).double()
    assert (propagate_moments(made, x).variance > 1.02 * propagate_moments(tiny, x).variance).any()  # it does matter


def test_two_hidden_layers_stay_close(perturb):
    check_against_draws(network(perturb, hidden=(12, 12)), torch.randn(5, D).double(), n=10_000, slack=0.1)


def test_draws_of_pseudo_inputs_agree_with_the_first_order(perturb):
    made, x = network(perturb, 0.05), torch.randn(5, D).double()
    first, drawn = propagate_moments(made, x), propagate_moments(made, x, n_pseudo_draws=2_000)
    std = first.variance.sqrt()
    assert ((first.mean - drawn.mean).abs() < 0.1 * std).all()
    torch.testing.assert_close(drawn.variance.sqrt(), std, rtol=0.05, atol=0)
    one = propagate_moments(made, x, n_pseudo_draws=1)
    assert one.mean.shape == (5, C) and (one.variance > 0).all()


def test_deeper_networks_are_refused(perturb):
    """Copies of one unit move together: taken for independent, their sum has a fraction of its spread."""
    x, width = torch.ones(1, 1).double(), 50
    made = MLP(1, (1, width), 1, bias=False).double()
    with torch.no_grad():
        for layer, scale in zip(made.layers, (0.0, -10.0, -10.0), strict=True):
            layer.row.log_scale.fill_(scale)
            layer.column.log_scale.fill_(scale)
        for layer, mean in zip(made.layers, (5.0, 1.0, width**-0.5), strict=True):
            layer.loc.fill_(mean)
    with pytest.raises(ValueError, match="moments need at most one hidden layer; got 2, whose units are correlated"):
        propagate_moments(made, x)
    found = propagate_moments(made, x, ignore_correlation=True)
    assert found.variance.sqrt() < 0.2 * sample_outputs(made, x, 4_000).std(0)


def test_cosine_of_wide_pre_activations(perturb):
    made = network(perturb, activation="cos")
    with torch.no_grad():
        made.layers[0].row.log_scale.add_(2.5)
    check_against_draws(made, torch.randn(5, D).double())


def test_a_network_without_hidden_layer_is_its_layer(perturb):
    made, x = network(perturb, 1e-8, hidden=()), torch.randn(5, D).double()
    made.layers[0].pseudo_data.lowest = -30.0
    made.layers[0].pseudo_data.log_noise.data.fill_(-30.0)
    layer, found = made.layers[0], propagate_moments(made, x)
    predictive = layer.predictive(x)
    rows = predictive.row_covariance.to_dense().diagonal()
    torch.testing.assert_close(found.mean, predictive.loc, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        found.variance, rows.unsqueeze(-1) * torch.exp(2 * layer.column.log_scale), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("own_rows", [False, True])
def test_replicas_are_a_loop(own_rows, perturb):
    made = network(perturb, 0.2, batch_shape=(3,))
    x = torch.randn(*([3] if own_rows else []), 5, D).double()
    together = propagate_moments(made, x)
    for k in range(3):
        one = network(perturb, 0.2)
        state = {name: t[k] for name, t in tensors_of(made)}
        one.load_state_dict(state)
        alone = propagate_moments(one, x[k] if own_rows else x)
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[k], part)


def test_chunks_of_rows_change_nothing(perturb, monkeypatch):
    made, x = network(perturb, 0.2), torch.randn(23, D).double()
    whole = propagate_moments(made, x)
    monkeypatch.setattr("vmg.prediction.propagation.ENTRIES", 100)
    for a, b in zip(whole, propagate_moments(made, x), strict=True):
        torch.testing.assert_close(a, b)


def test_single_precision_is_close_to_double(perturb):
    made, x = network(perturb, 0.2), torch.randn(5, D)
    exact, single = propagate_moments(made, x), propagate_moments(copy.deepcopy(made).float(), x)
    assert single.mean.dtype == torch.float32 and exact.mean.dtype == torch.float64
    for a, b in zip(single, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_what_cannot_be_propagated_is_refused(perturb):
    x = torch.randn(5, D).double()
    for other in (
        network(perturb, row_covariance="dense"),
        MLP(D, (3,), 1, make_layer=lambda _, n_in, n_out: MeanFieldLinear(n_in, n_out)).double(),
    ):
        with pytest.raises(ValueError, match="every layer must be a MatrixGaussianLinear with diagonal covariances"):
            propagate_moments(other, x)
    with pytest.raises(ValueError, match="n_pseudo_draws must be >= 0; got -1"):
        propagate_moments(network(perturb), x, n_pseudo_draws=-1)
    with pytest.raises(ValueError, match="x must be finite"):
        propagate_moments(network(perturb), x * float("nan"))
    with pytest.raises(ValueError, match="x must have 4 features"):
        propagate_moments(network(perturb), x[:, :3])


# -- the compiled pass against that in PyTorch ------------------------------------------------------------------------

KINDS = [
    {},
    {"hidden": ()},
    {"hidden": (7, 33)},
    {"hidden": (5, 6, 7), "out_features": 1},
    {"n_pseudo": 0},
    {"zero_mean": True},
    {"bias": False},
    {"pseudo_noise": "factored"},
    {"batch_shape": (2, 2)},
]


def both_ways(made, x, monkeypatch, **options):
    """Moments from the kernel, which is seen to be called, and from PyTorch."""
    native, calls = library.native(x), []
    counted = copy.copy(native)
    counted.moments = lambda record: (calls.append(record), native.moments(record))
    monkeypatch.setattr(library, "native", lambda *tensors: counted)
    torch.manual_seed(3)
    options["ignore_correlation"] = True
    compiled = propagate_moments(made, x, **options)
    assert calls
    monkeypatch.setattr(library, "native", lambda *tensors: None)
    torch.manual_seed(3)
    return compiled, propagate_moments(made, x, **options), len(calls)


def assert_same(compiled, plain, dtype):
    """To rounding: relative for variances, of the spread for means, which cancel."""
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12}[dtype]
    assert compiled.mean.shape == plain.mean.shape and compiled.mean.dtype == compiled.variance.dtype == dtype
    spread = plain.variance.sqrt() + plain.mean.abs()
    assert ((compiled.mean - plain.mean).abs() <= tolerance * spread).all()
    assert ((compiled.variance - plain.variance).abs() <= tolerance * plain.variance).all()


@needs_kernels
@pytest.mark.parametrize("way", ["kernels"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_pseudo_draws", [0, 3])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_compiled_pass_is_that_of_pytorch(options, n_pseudo_draws, dtype, perturb, monkeypatch):
    made = network(perturb, 0.2, dtype, **options)
    for lead in {(), options.get("batch_shape", ())}:
        for n in (1, 45):  # less than a strip of rows, and more
            x = torch.randn(*lead, n, D, dtype=dtype)
            compiled, plain, _ = both_ways(made, x, monkeypatch, n_pseudo_draws=n_pseudo_draws)
            assert_same(compiled, plain, dtype)
            assert compiled.mean.shape == (*options.get("batch_shape", ()), n, options.get("out_features", C))
            monkeypatch.undo()


@needs_kernels
@pytest.mark.parametrize("way", ["kernels"], indirect=True)
@pytest.mark.parametrize("batch_shape", [(), (3,)])
def test_rows_on_several_threads_change_nothing(batch_shape, perturb, monkeypatch):
    made, x = network(perturb, 0.2, batch_shape=batch_shape), torch.randn(70, D).double()
    whole = propagate_moments(made, x)
    monkeypatch.setattr(moments, "THREAD", 1)
    monkeypatch.setattr(moments, "SHORTEST", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    compiled, _, calls = both_ways(made, x, monkeypatch)
    assert calls == (6 if batch_shape else 4)
    for a, b in zip(whole, compiled, strict=True):
        assert torch.equal(a, b)


@needs_kernels
@pytest.mark.parametrize("way", ["kernels"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_rectifier_is_exact_from_one_tail_to_the_other(dtype, perturb, monkeypatch):
    made = network(perturb, dtype=dtype, n_pseudo=0, bias=False, hidden=(1,), out_features=1)
    hidden, last = made.layers
    for layer in (hidden, last):
        layer.row.log_scale.data.fill_(-40.0)
        layer.column.log_scale.data.fill_(0.0)
    hidden.row.log_scale.data[0] = math.log(hidden.n_rows) / 2  # variance x₀² of the pre-activation, mean that of x₁
    hidden.loc.data.copy_(torch.tensor([[0.0], [1.0], [0.0], [0.0]]) * math.sqrt(hidden.n_rows))
    last.loc.data.fill_(1.0)
    a = torch.linspace(-12, 12, 4_001, dtype=dtype)
    x = torch.stack([torch.full_like(a, 1.0), a, torch.zeros_like(a), torch.zeros_like(a)], dim=-1)
    found = propagate_moments(made, x)
    above, density = torch.special.ndtr(a.double()), torch.exp(-0.5 * a.double() ** 2) / math.sqrt(2 * math.pi)
    mean = a.double() * above + density
    variance = (a.double() ** 2 + 1) * above + a.double() * density - mean**2
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    assert ((found.mean[:, 0].double() - mean).abs() <= tolerance * (1 + mean)).all()
    assert ((found.variance[:, 0].double() - variance).abs() <= tolerance).all()


@pytest.mark.parametrize("way", ["kernels"], indirect=True)
def test_large_layers_are_left_to_pytorch(perturb, monkeypatch):
    made, x = network(perturb, 0.2), torch.randn(5, D).double()
    compiled = propagate_moments(made, x)
    monkeypatch.setattr(moments, "LARGEST", 1)
    native = copy.copy(library.native(x))
    native.moments = lambda record: pytest.fail("the kernel was called")
    monkeypatch.setattr(library, "native", lambda *tensors: native)
    assert_same(compiled, propagate_moments(made, x), torch.float64)


def test_without_pseudo_data_there_is_nothing_to_draw(perturb):
    made, x = network(perturb, n_pseudo=0), torch.randn(5, D).double()
    for a, b in zip(propagate_moments(made, x), propagate_moments(made, x, n_pseudo_draws=4), strict=True):
        assert torch.equal(a, b)
