"""What every kind of layer promises, the baselines' too."""

import copy

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
    "matrix-gaussian": lambda **options: MatrixGaussianLinear(IN, OUT, **options),
    "mean-field": lambda **options: MeanFieldLinear(IN, OUT, **options),
    "mean-field-gamma": lambda **options: MeanFieldLinear(IN, OUT, prior=GammaPrior(), **options),
    "graves": lambda **options: GravesLinear(IN, OUT, **options),
    "bayes-by-backprop": lambda **options: BayesByBackpropLinear(IN, OUT, **options),
    "variational-dropout": lambda **options: VariationalDropoutLinear(IN, OUT, **options),
    "dropout": lambda **options: DropoutLinear(IN, OUT, rate=0.4, precision=0.5, **options),
    "dropconnect": lambda **options: DropConnectLinear(IN, OUT, rate=0.4, precision=0.5, **options),
    "dropconnect-matched": lambda **options: DropConnectLinear(IN, OUT, rate=0.4, matched=True, **options),
    "deterministic": lambda **options: DeterministicLinear(IN, OUT, precision=0.5, **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
random_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "deterministic"])


@pytest.fixture
def make(perturb):
    return lambda kind, dtype=torch.float64, **options: perturb(KINDS[kind](**options), dtype)


@every_dtype
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_shape", BATCH_SHAPES, ids=str)
@every_kind
def test_kinds_shape_and_dtype(make, kind, batch_shape, bias, dtype):
    layer = make(kind, dtype, batch_shape=batch_shape, bias=bias)
    assert layer.n_rows == IN + bias
    for x in (inputs(dtype=dtype), inputs(*batch_shape, dtype=dtype)):
        values = (layer(x), layer.forward_mean(x), layer.kl_divergence(), layer(x, (4,)), layer.sample_function(4)(x))
        shape = (*batch_shape, ROWS, OUT)
        assert [v.shape for v in values] == [shape, shape, batch_shape, (4, *shape), (4, *shape)]
        assert {v.dtype for v in values} == {dtype}
        assert all(torch.isfinite(v).all() for v in values)
    assert layer(inputs(4, *batch_shape, dtype=dtype), (4,)).shape == (4, *batch_shape, ROWS, OUT)
    assert layer.mean_weight().shape == (*batch_shape, IN + bias, OUT)
    assert layer.sample_weight((4,)).shape == (4, *batch_shape, IN + bias, OUT)
    layer.reset_parameters()
    assert torch.isfinite(layer(inputs(dtype=dtype))).all()


@every_kind
def test_kinds_take_leading_dimensions_as_data(make, kind):
    layer, x = make(kind), torch.randn(2, 3, IN, dtype=torch.float64)
    assert layer(x).shape == (2, 3, OUT)
    drawn = draw(layer, x)
    if isinstance(layer, MatrixGaussianLinear):
        layer.sampling = "weights"  # as tokens are drawn
    torch.testing.assert_close(drawn.reshape(6, OUT), draw(layer, x.reshape(6, IN)))
    with pytest.raises(
        ValueError, match=r"x must be \[B, 5\] or have leading dimensions \(2,\).*got shape \(3, 2, 5\)"
    ):
        make(kind, batch_shape=(2,))(inputs(3))
    with pytest.raises(ValueError, match="x must be finite"):
        layer(torch.full((1, IN), torch.nan, dtype=torch.float64))


@every_kind
def test_kinds_state_dict_round_trip(make, kind):
    layer, other, x = make(kind), make(kind), inputs()
    assert not torch.equal(draw(other, x), draw(layer, x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(draw(other, x), draw(layer, x))
    assert torch.equal(other.kl_divergence(), layer.kl_divergence())


@random_kind
def test_kinds_are_deterministic_given_a_generator(make, kind):
    layer, x = make(kind), torch.randn(8, IN, dtype=torch.float64)
    ambient = torch.get_rng_state()
    first = draw(layer, x, seed=1)
    assert torch.equal(draw(layer, x, seed=1), first)
    assert not torch.equal(draw(layer, x, seed=2), first)
    assert not torch.equal(layer(x), layer(x)), "each call is a fresh draw"
    function = layer.sample_function(3)
    assert torch.equal(function(x), function(x))
    torch.testing.assert_close(function(x[2:4]), function(x)[:, 2:4])
    twin = copy.deepcopy(layer)
    assert torch.equal(draw(twin, x, seed=1), first)
    assert torch.equal(torch.get_rng_state(), ambient), "the default generator must stay untouched"


@every_kind
def test_kinds_reset_by_a_generator(make, kind):
    layer = make(kind)
    states = []
    for seed in (1, 1, 2):
        layer.reset_parameters(torch.Generator().manual_seed(seed))
        states.append(layer.mean_weight().clone())
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@every_kind
def test_kinds_batch_equals_loop(make, kind):
    """A batch of one is the single layer; in a larger one each replica has its own parameters, data and noise."""
    batch, x = make(kind, batch_shape=(1,)), inputs()
    single = KINDS[kind]().double()
    single.load_state_dict({key: value[0] for key, value in tensors_of(batch)})
    torch.testing.assert_close(draw(batch, x)[0], draw(single, x))
    torch.testing.assert_close(batch.kl_divergence()[0], single.kl_divergence())

    batch, x = make(kind, batch_shape=(3,)), torch.randn(3, 8, IN, dtype=torch.float64)
    drawn, kl = draw(batch, x), batch.kl_divergence()
    for k in range(3):
        same = KINDS[kind](batch_shape=(3,)).double()
        same.load_state_dict({key: value[k].expand_as(value).clone() for key, value in tensors_of(batch)})
        torch.testing.assert_close(draw(same, x[k])[k], drawn[k])  # equal seeds: equal noise in slot k
        torch.testing.assert_close(same.kl_divergence()[k], kl[k])
        single.load_state_dict({key: value[k] for key, value in tensors_of(batch)})
        torch.testing.assert_close(batch.forward_mean(x)[k], single.forward_mean(x[k]))


@every_kind
def test_kinds_gradients_reach_every_parameter(make, kind):
    layer, x = make(kind), torch.randn(8, IN, dtype=torch.float64).requires_grad_()
    (layer(x).square().sum() + layer.kl_divergence()).backward()
    for parameter in layer.parameters():
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "graves"])  # whose gradient is biased by design
def test_kinds_gradients_are_right(make, kind):
    assert_gradients(make(kind), inputs())


@every_kind
def test_kinds_mean_is_a_plain_linear_layer(make, kind):
    layer, x = make(kind), inputs()
    torch.testing.assert_close(layer.to_linear()(x), layer.forward_mean(x))
    with pytest.raises(ValueError, match=r"to_linear need single layers; got one of \(2,\) replicas"):
        make(kind, batch_shape=(2,)).to_linear()


@every_kind
def test_kinds_make_a_network(make, kind):
    def layer_of(position, n_in, n_out):
        return make(kind) if position == 0 else MatrixGaussianLinear(n_in, n_out).double()

    network = MLP(IN, (OUT,), 3, make_layer=layer_of)
    x = inputs()
    assert network(x, (2,)).shape == (2, ROWS, 3)
    assert network.sample_functions(4)(x).shape == (4, ROWS, 3)
    torch.testing.assert_close(to_plain(network, centre=False)(x), network.forward_mean(x))
    assert kl_divergence(network).shape == ()


def test_make_layer_excludes_options_of_the_matrix_gaussian():
    with pytest.raises(
        ValueError, match=r"make_layer must come without options of MatrixGaussianLinear; got n_pseudo=2"
    ):
        MLP(IN, (4,), OUT, n_pseudo=2, make_layer=lambda position, n_in, n_out: DeterministicLinear(n_in, n_out))


@pytest.mark.parametrize("kind", ["mean-field", "graves", "bayes-by-backprop", "matrix-gaussian"])
def test_kinds_with_a_prior_draw_from_it(make, kind):
    assert make(kind, batch_shape=(2,)).sample_function(3, prior=True)(inputs()).shape == (3, 2, ROWS, OUT)


@pytest.mark.parametrize("kind", ["deterministic", "dropout", "dropconnect", "variational-dropout"])
def test_kinds_without_a_prior_say_so(make, kind):
    with pytest.raises(NotImplementedError, match="Linear has no prior to draw weights from"):
        make(kind).sample_function(3, prior=True)
