"""What every layer promises, of whatever kind and with whatever options, the baselines' too."""

import copy
import itertools

import pytest
import torch
from layer_inputs import BATCH_SHAPES, IN, OUT, ROWS, assert_gradients, draw, every_dtype, inputs

from reference import tensors_of
from vmg.nn import MLP, MatrixGaussianLinear, kl_divergence, to_plain
from vmg.priors import GammaPrior
from vmg_paper.layers import (
    BayesByBackpropLinear,
    DeterministicLinear,
    DropConnectLinear,
    DropoutLinear,
    GravesLinear,
    MeanFieldLinear,
    VariationalDropoutLinear,
)

KINDS = {
    "matrix-gaussian": (MatrixGaussianLinear, {}),
    "mean-field": (MeanFieldLinear, {}),
    "mean-field-gamma": (MeanFieldLinear, {"prior": GammaPrior()}),
    "graves": (GravesLinear, {}),
    "bayes-by-backprop": (BayesByBackpropLinear, {}),
    "variational-dropout": (VariationalDropoutLinear, {}),
    "dropout": (DropoutLinear, {"rate": 0.4, "precision": 0.5}),
    "dropconnect": (DropConnectLinear, {"rate": 0.4, "precision": 0.5}),
    "deterministic": (DeterministicLinear, {"precision": 0.5}),
}
FAMILIES = ("diagonal", "rank_one", "dense")
SAMPLERS = ("marginal", "joint", "weights")


def options_of_the_matrix_gaussian():
    """Every family pair, every sampler with every batch shape, and the options of pseudo-data with every sampler."""
    for row, column, n_pseudo in itertools.product(FAMILIES, FAMILIES, (0, 3)):
        yield {"row_covariance": row, "column_covariance": column, "n_pseudo": n_pseudo}
    for sampling, batch_shape, n_pseudo in itertools.product(SAMPLERS, BATCH_SHAPES, (0, 3)):
        yield {"sampling": sampling, "batch_shape": batch_shape, "n_pseudo": n_pseudo}
    for sampling, noise, zero_mean in itertools.product(SAMPLERS, ("layer", "factored"), (False, True)):
        yield {"sampling": sampling, "pseudo_noise": noise, "zero_mean": zero_mean, "n_pseudo": 3, "batch_shape": (2,)}
    for sampling, n_pseudo in itertools.product(SAMPLERS, (0, 3)):
        yield {"sampling": sampling, "n_pseudo": n_pseudo, "bias": False, "row_covariance": "rank_one"}
    for conjugate in (True, False):
        yield {"prior": GammaPrior(conjugate=conjugate), "n_pseudo": 3, "batch_shape": (2,)}
    for row in FAMILIES:
        yield {"kl": "conditional", "prior": GammaPrior(), "n_pseudo": 3, "row_covariance": row}


def name(case):
    kind, options = case
    return "-".join([kind, *(f"{key}={'gamma' if key == 'prior' else value}" for key, value in options.items())])


OTHERS = [kind for kind in KINDS if kind != "matrix-gaussian"]
SHAPES = [{"batch_shape": shape, "bias": bias} for shape, bias in itertools.product(BATCH_SHAPES, (True, False))]
CASES = [
    *(("matrix-gaussian", options) for options in options_of_the_matrix_gaussian()),
    *itertools.product(OTHERS, SHAPES),
]
every_case = pytest.mark.parametrize("case", CASES, ids=name)
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(case, **others):
    kind, options = case
    layer, fixed = KINDS[kind]
    return layer(IN, OUT, **{**fixed, **options, **others})


@pytest.fixture
def make(perturb):
    return lambda case, dtype=torch.float64, **others: perturb(build(case, **others), dtype)


@every_dtype
@every_case
def test_shape_and_dtype(make, case, dtype):
    layer, batch_shape = make(case, dtype), case[1].get("batch_shape", ())
    n_rows = IN + case[1].get("bias", True)
    assert layer.n_rows == n_rows
    for x in (inputs(dtype=dtype), inputs(*batch_shape, dtype=dtype)):
        values = (layer(x), layer.forward_mean(x), layer.kl_divergence(), layer.sample_function(4)(x))
        shape = (*batch_shape, ROWS, OUT)
        assert [v.shape for v in values] == [shape, shape, batch_shape, (4, *shape)]
        assert {v.dtype for v in values} == {dtype}
        assert all(torch.isfinite(v).all() for v in values)
    assert layer.mean_weight().shape == (*batch_shape, n_rows, OUT)
    assert layer.sample_weight((4,)).shape == (4, *batch_shape, n_rows, OUT)
    if case[0] in ("matrix-gaussian", "mean-field"):
        assert (layer.kl_divergence() >= 0).all()
    layer.reset_parameters()
    assert torch.isfinite(layer(inputs(dtype=dtype))).all()


@every_dtype
@every_case
def test_state_dict_round_trip(make, case, dtype):
    layer, other, x = make(case, dtype), make(case, dtype), inputs(dtype=dtype)
    assert not torch.equal(draw(other, x), draw(layer, x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(draw(other, x), draw(layer, x))
    assert torch.equal(other.kl_divergence(), layer.kl_divergence())


@every_dtype
@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "deterministic"], ids=name)
def test_deterministic_given_a_generator_and_copied_with_it(make, case, dtype):
    layer, x = make(case, dtype), torch.randn(8, IN, dtype=dtype)
    ambient = torch.get_rng_state()
    first = draw(layer, x, seed=1)
    assert torch.equal(draw(layer, x, seed=1), first)
    assert not torch.equal(draw(layer, x, seed=2), first)
    assert not torch.equal(layer(x), layer(x)), "each call is a fresh draw"
    function = layer.sample_function(3)
    assert torch.equal(function(x), function(x))
    torch.testing.assert_close(function(x[2:4]), function(x)[..., 2:4, :])
    twin = copy.deepcopy(layer)
    assert torch.equal(draw(twin, x, seed=1), first)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(draw(layer, x, seed=1), first)
    assert not torch.equal(draw(twin, x, seed=1), first)
    assert torch.equal(torch.get_rng_state(), ambient), "the default generator must stay untouched"


@every_kind
def test_reset_by_a_generator(make, kind):
    layer, states = make((kind, {})), []
    for seed in (1, 1, 2):
        layer.reset_parameters(torch.Generator().manual_seed(seed))
        states.append(layer.mean_weight().clone())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@every_dtype
@every_case
def test_gradients_reach_every_parameter(make, case, dtype):
    layer, x = make(case, dtype), torch.randn(8, IN, dtype=dtype).requires_grad_()
    (layer(x).square().sum() + layer.kl_divergence().sum()).backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name
    assert torch.isfinite(x.grad).all()
    assert x.grad.any(-1).all() or case[0] in ("dropout", "dropconnect")


@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "graves"], ids=name)  # biased by design
def test_gradients_are_right(make, case):
    assert_gradients(make(case), inputs())


def replica(case, batch, index):
    """One replica of a batched layer as a layer of its own."""
    single = build(case, batch_shape=()).double()
    single.load_state_dict({key: value[index] for key, value in tensors_of(batch)})
    return single


def repeated(case, batch, index):
    """A batched layer all of whose replicas are equal to one replica of the given layer."""
    same = build(case, batch_shape=batch.batch_shape).double()
    same.load_state_dict({k: v[index].expand_as(v).clone() for k, v in tensors_of(batch)})
    return same


@pytest.mark.parametrize("case", [case for case in CASES if len(case[1].get("batch_shape", ())) < 2], ids=name)
def test_a_batch_equals_a_loop(make, case):
    """A batch of one is the single layer; in a larger one each replica sees its own parameters, data and noise only."""
    batch, x = make(case, batch_shape=(1,)), inputs()
    single = replica(case, batch, 0)
    torch.testing.assert_close(draw(batch, x)[0], draw(single, x))
    torch.testing.assert_close(batch.kl_divergence()[0], single.kl_divergence())

    batch, x = make(case, batch_shape=(3,)), torch.randn(3, 8, IN, dtype=torch.float64)
    drawn, kl = draw(batch, x), batch.kl_divergence()
    mean, weight = batch.forward_mean(x), batch.mean_weight()
    for k in range(3):
        same, single = repeated(case, batch, k), replica(case, batch, k)
        again = draw(same, x[k])  # and then the divergence, whose noise comes after it
        torch.testing.assert_close(again[k], drawn[k])  # equal seeds: equal noise in slot k
        if case[0] == "matrix-gaussian":
            assert not torch.allclose(again[k - 1], drawn[k]), "slots have noise of their own"
        torch.testing.assert_close(same.kl_divergence()[k], kl[k])
        torch.testing.assert_close(single.forward_mean(x[k]), mean[k])
        torch.testing.assert_close(single.mean_weight(), weight[k])
        if isinstance(batch, MatrixGaussianLinear):
            torch.testing.assert_close(single.kernel(x[k], full=True), batch.kernel(x, full=True)[k])
            alone, together = single.predictive(x[k]), batch.predictive(x)
            torch.testing.assert_close(alone.mean, together.mean[k])
            torch.testing.assert_close(alone.covariance_matrix, together.covariance_matrix[k])


@pytest.mark.parametrize(
    "case",
    [
        *((kind, {}) for kind in OTHERS),
        *(("matrix-gaussian", {"sampling": s, "n_pseudo": n}) for s, n in itertools.product(SAMPLERS, (0, 3))),
    ],
    ids=name,
)
def test_leading_dimensions_are_data_as_in_linear(make, case):
    layer, x = make(case), torch.randn(2, 3, IN, dtype=torch.float64)
    drawn = draw(layer, x)
    assert drawn.shape == (2, 3, OUT)
    assert draw(layer, x[0, 0]).shape == (OUT,)
    if case[1].get("sampling") == "marginal":
        layer.sampling = "weights"  # tokens share their weights
    torch.testing.assert_close(drawn.reshape(6, OUT), draw(layer, x.reshape(6, IN)))
    torch.testing.assert_close(draw(layer, x[0, 0]), draw(layer, x[0, :1])[0])
    message = r"x must be \[B, 5\] or have leading dimensions \(2,\).*got shape \(3, 2, 5\)"
    with pytest.raises(ValueError, match=message):
        make(case, batch_shape=(2,))(inputs(3))
    with pytest.raises(ValueError, match="x must be finite"):
        layer(torch.full((1, IN), torch.nan, dtype=torch.float64))


@every_kind
def test_the_mean_is_a_plain_linear_layer(make, kind):
    layer, x = make((kind, {})), inputs()
    torch.testing.assert_close(layer.to_linear()(x), layer.forward_mean(x))
    with pytest.raises(ValueError, match=r"to_linear need single layers; got one of \(2,\) replicas"):
        make((kind, {}), batch_shape=(2,)).to_linear()


@every_kind
def test_layers_make_a_network(make, kind):
    def layer_of(position, n_in, n_out):
        return make((kind, {})) if position == 0 else MatrixGaussianLinear(n_in, n_out).double()

    network, x = MLP(IN, (OUT,), 3, make_layer=layer_of), inputs()
    assert network(x).shape == (ROWS, 3)
    assert network.sample_functions(4)(x).shape == (4, ROWS, 3)
    torch.testing.assert_close(to_plain(network)(x), network.forward_mean(x))
    assert kl_divergence(network).shape == ()


def test_make_layer_excludes_options_of_the_matrix_gaussian():
    message = r"make_layer must come without options of MatrixGaussianLinear; got n_pseudo=2"
    with pytest.raises(ValueError, match=message):
        MLP(IN, (4,), OUT, n_pseudo=2, make_layer=lambda position, n_in, n_out: DeterministicLinear(n_in, n_out))


@every_kind
def test_layers_draw_from_their_prior_or_have_none(make, kind):
    layer = make((kind, {}), batch_shape=(2,))
    if isinstance(layer, MatrixGaussianLinear):
        assert layer.sample_function(3, prior=True)(inputs()).shape == (3, 2, ROWS, OUT)
    else:
        with pytest.raises(NotImplementedError, match="Linear has no prior to draw weights from"):
            layer.sample_function(3, prior=True)
