"""What every matrix Gaussian layer promises, whatever its options; and the functions that act on all layers."""

import copy
import itertools

import pytest
import torch
from layer_inputs import BATCH_SHAPES, IN, OUT, ROWS, assert_gradients, draw, every_dtype, inputs
from torch import nn

from reference import tensors_of
from vmg.nn import MLP, BayesianModule, MatrixGaussianLinear, kl_divergence, use_generator
from vmg.priors import GammaPrior

FAMILIES = ("diagonal", "rank_one", "dense")
SAMPLERS = ("marginal", "joint", "weights")


def cases():
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


def name(options):
    return "-".join(f"{key}={value}" for key, value in options.items() if key != "prior") + (
        "-gamma" if "prior" in options else ""
    )


CASES = list(cases())
every_option = pytest.mark.parametrize("options", CASES, ids=name)


@pytest.fixture
def build(perturb):
    return lambda dtype=torch.float64, **options: perturb(MatrixGaussianLinear(IN, OUT, **options), dtype)


@every_dtype
@every_option
def test_shape_and_dtype(build, options, dtype):
    layer, batch_shape = build(dtype, **options), options.get("batch_shape", ())
    for x in (inputs(dtype=dtype), inputs(*batch_shape, dtype=dtype)):
        assert layer(x).shape == (*batch_shape, ROWS, OUT)
        assert layer(x, (4,)).shape == (4, *batch_shape, ROWS, OUT)
        assert layer.forward_mean(x).shape == (*batch_shape, ROWS, OUT)
        assert layer(x).dtype == layer.forward_mean(x).dtype == dtype
        assert torch.isfinite(layer(x)).all()
    drawn = layer(inputs(4, *batch_shape, dtype=dtype), (4,))  # as the layer below it would hand over
    assert drawn.shape == (4, *batch_shape, ROWS, OUT)
    assert layer.mean_weight().shape == (*batch_shape, IN + options.get("bias", True), OUT)
    assert layer.kl_divergence().dtype == dtype


@every_dtype
@every_option
def test_state_dict_round_trip(build, options, dtype):
    layer, other, x = build(dtype, **options), build(dtype, **options), inputs(dtype=dtype)
    assert not torch.equal(draw(other, x), draw(layer, x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(draw(other, x), draw(layer, x))
    assert torch.equal(other.kl_divergence(), layer.kl_divergence())


@every_dtype
@every_option
def test_deterministic_given_a_generator(build, options, dtype):
    layer, x = build(dtype, **options), inputs(dtype=dtype)
    ambient = torch.get_rng_state()
    first = draw(layer, x, seed=1)
    assert torch.equal(draw(layer, x, seed=1), first)
    assert not torch.equal(draw(layer, x, seed=2), first)
    assert not torch.equal(layer(x), layer(x)), "each call is a fresh draw"
    assert torch.equal(torch.get_rng_state(), ambient), "the default generator must stay untouched"


@every_dtype
@every_option
def test_deepcopy(build, options, dtype):
    layer, x = build(dtype, **options), inputs(dtype=dtype)
    expected = draw(layer, x)
    twin = copy.deepcopy(layer)  # with its generator
    assert torch.equal(draw(twin, x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(draw(layer, x), expected)
    assert not torch.equal(draw(twin, x), expected)


@every_dtype
@every_option
def test_gradients_reach_every_parameter(build, options, dtype):
    layer = build(dtype, **options)
    x = inputs(dtype=dtype).requires_grad_()
    (layer(x).square().sum() + layer.kl_divergence().sum()).backward()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name
    assert torch.isfinite(x.grad).all()
    assert x.grad.any(-1).all()


@every_option
def test_gradients_are_right(build, options):
    assert_gradients(build(**options), inputs())


@every_option
def test_kl_divergence_is_non_negative(build, options):
    layer = build(**options)
    kl = layer.kl_divergence()
    assert kl.shape == options.get("batch_shape", ())
    assert torch.isfinite(kl).all()
    assert (kl >= 0).all()


def replica(batch, index, options):
    """One replica of a batched layer as a layer of its own."""
    single = MatrixGaussianLinear(IN, OUT, **{**options, "batch_shape": ()}).double()
    single.load_state_dict({key: value[index] for key, value in tensors_of(batch)})
    return single


def repeated(batch, index, options):
    """A batched layer all of whose replicas are equal to one replica of the given layer."""
    same = MatrixGaussianLinear(IN, OUT, **options).double()
    same.load_state_dict({k: v[index].expand_as(v).clone() for k, v in tensors_of(batch)})
    return same


batched_option = pytest.mark.parametrize(
    "options", [o for o in CASES if o.get("batch_shape", ()) in ((), (2,))], ids=name
)


@batched_option
def test_batch_equals_loop(build, options):
    options = {**options, "batch_shape": (3,)}
    batch, x = build(**options), inputs()
    predictive, kernel = batch.predictive(x), batch.kernel(x, full=True)
    for k in range(3):
        single = replica(batch, k, options)
        alone = single.predictive(x)
        pairs = [
            (batch.kl_divergence()[k], single.kl_divergence()),
            (batch.forward_mean(x)[k], single.forward_mean(x)),
            (batch.mean_weight()[k], single.mean_weight()),
            (kernel[k], single.kernel(x, full=True)),
            (predictive.mean[k], alone.mean),
            (predictive.covariance_matrix[k], alone.covariance_matrix),
        ]
        for i, (of_batch, of_single) in enumerate(pairs):
            torch.testing.assert_close(of_batch, of_single, msg=lambda text, i=i: f"pair {i}: {text}")


@batched_option
def test_batch_draws_equal_loop_given_equal_noise(build, options):
    """A batch of one is the single layer; in a larger one each replica sees its own parameters, data and noise only."""
    one = {**options, "batch_shape": (1,)}
    batch, x = build(**one), inputs()
    torch.testing.assert_close(draw(batch, x)[0], draw(replica(batch, 0, one), x))

    three = {**options, "batch_shape": (3,)}
    batch, x = build(**three), inputs(3)
    drawn = draw(batch, x)
    for k in range(3):
        same = repeated(batch, k, three)
        torch.testing.assert_close(draw(same, x[k])[k], drawn[k])  # equal seeds: equal noise in slot k
        assert not torch.allclose(draw(same, x[k])[k - 1], drawn[k]), "slots have noise of their own"


@pytest.mark.parametrize("sampling", SAMPLERS)
@pytest.mark.parametrize("n_pseudo", [0, 3])
def test_leading_dimensions_are_data_as_in_linear(build, sampling, n_pseudo):
    layer = build(sampling=sampling, n_pseudo=n_pseudo)
    x = torch.randn(2, 3, IN, dtype=torch.float64)
    drawn = draw(layer, x)
    assert drawn.shape == (2, 3, OUT)
    assert draw(layer, x[0, 0]).shape == (OUT,)
    layer.sampling = "weights" if sampling == "marginal" else sampling  # tokens share their weights
    torch.testing.assert_close(drawn.reshape(6, OUT), draw(layer, x.reshape(6, IN)))
    torch.testing.assert_close(draw(layer, x[0, 0]), draw(layer, x[0, :1])[0])


def test_wrong_leading_dimensions(build):
    layer = build(batch_shape=(2,))
    with pytest.raises(
        ValueError, match=r"x must be \[B, 5\] or have leading dimensions \(2,\).*got shape \(3, 2, 5\)"
    ):
        layer(inputs(3))


# -- the two functions that act on all layers -------------------------------------------------------------------------


class Shift(BayesianModule):
    """A user's own layer."""

    def kl_divergence(self):
        return torch.tensor(2.5)


def test_kl_divergence_sums_over_nested_layers():
    network = MLP(3, (4,), 2, n_pseudo=2)
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 3), network), "shift": Shift()})
    expected = sum(layer.kl_divergence() for layer in network.layers) + 2.5
    torch.testing.assert_close(kl_divergence(model), expected)


def test_kl_divergence_counts_a_shared_layer_once():
    layer = MatrixGaussianLinear(3, 3)
    assert torch.equal(kl_divergence(nn.Sequential(layer, nn.ReLU(), layer)), layer.kl_divergence())


def test_kl_divergence_needs_a_bayesian_layer():
    with pytest.raises(ValueError, match="Sequential holds no Bayesian layer"):
        kl_divergence(nn.Sequential(nn.Linear(2, 2)))


def test_a_layer_without_kl_cannot_be_made():
    class Unfinished(BayesianModule):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()


def test_use_generator_reaches_nested_layers_and_none_gives_the_default_back():
    model = nn.Sequential(nn.Sequential(MatrixGaussianLinear(3, 4)), MatrixGaussianLinear(4, 1))
    x = torch.randn(5, 3)
    use_generator(model, torch.Generator().manual_seed(1))
    first = model(x)
    use_generator(model, torch.Generator().manual_seed(1))
    assert torch.equal(model(x), first)
    use_generator(model, None)
    torch.manual_seed(7)
    ambient = model(x)
    torch.manual_seed(7)
    assert torch.equal(model(x), ambient)
