"""A training step on the compiled kernels is that of plain PyTorch in every number."""

import copy

import pytest
import torch
from torch import nn

from vmg.fused import library
from vmg.likelihoods import GaussianLikelihood
from vmg.math.linalg import randn
from vmg.nn import MLP
from vmg.nn.bayesian import use_generator
from vmg.objective import Objective
from vmg.priors import GammaPrior, IsotropicPrior
from vmg.training import train
from vmg.training.loop import differentiate
from vmg.training.rows import Batch

B, D, C = 7, 5, 3
needs_kernels = pytest.mark.skipif(not library.available(), reason="the kernels are not there")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(batch_shape=(), dtype=torch.float64, hidden=(6, 4), **options):
    torch.manual_seed(0)
    likelihood = GaussianLikelihood(C, batch_shape=batch_shape)
    network = MLP(D, hidden, C, batch_shape=batch_shape, **{"n_pseudo": 2, "max_noise": 0.3} | options)
    x, y = (torch.randn(*batch_shape, B, n, dtype=dtype) for n in (D, C))
    return network.to(dtype), likelihood.to(dtype), x, y


def evaluate(network, likelihood, x, y, weight=None, n_data=50.0, steps=2):
    """Outputs, terms and gradients of a few evaluations from one seed."""
    network, likelihood = copy.deepcopy((network, likelihood))
    parameters = [p for p in (*network.parameters(), *likelihood.parameters()) if p.requires_grad]
    use_generator(network, torch.Generator().manual_seed(1))
    objective = Objective(network, likelihood, n_data)
    for _ in range(steps):
        terms = differentiate(objective, parameters, Batch(x, y, weight))
    return [terms.f, terms.expected_log_likelihood, terms.kl, *(t.grad.clone() for t in parameters)]


def in_plain_pytorch(network, likelihood, x, y, **options):
    """The same without kernels; noise is drawn as before."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("native", "kernels"):
            patch.setattr(library, name, lambda *tensors: None)
        return evaluate(network, likelihood, x, y, **options)


def assert_equal_steps(network, likelihood, x, y, **options):
    expected = in_plain_pytorch(network, likelihood, x, y, **options)
    torch.testing.assert_close(evaluate(network, likelihood, x, y, **options), expected, rtol=1e-9, atol=1e-9)


@needs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_shape": (3,)},
        {"n_pseudo": 0},
        {"zero_mean": True},
        {"pseudo_noise": "factored"},
        {"prior": GammaPrior()},
        {"prior": GammaPrior(6, 2.0), "pseudo_noise": "factored", "batch_shape": (2, 3)},
        {"prior": IsotropicPrior(0.3), "zero_mean": True},
        {"prior": GammaPrior(2.0, 0.7, conjugate=False)},
        {"prior": GammaPrior(conjugate=False), "batch_shape": (3,)},
        {"prior": GammaPrior(conjugate=False), "zero_mean": True},
        {"activation": "tanh"},
        {"activation": lambda x: x * torch.sigmoid(x)},
        {"bias": False},
        {"hidden": ()},
        {"max_noise": torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64), "batch_shape": (3,)},
    ],
)
def test_kernels_are_plain_pytorch_for_every_layer(options):
    assert_equal_steps(*problem(**options))


@needs_kernels
@pytest.mark.filterwarnings("ignore:n_pseudo should be")
@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("options", [{}, {"zero_mean": True}, {"pseudo_noise": "factored"}], ids=str)
def test_kernels_are_plain_pytorch_where_single_precision_is_too_little(options, batch_shape, monkeypatch):
    """As many pseudo-points as rows, or more: such layers compute in double, others beside them do not."""
    network, likelihood, x, y = problem(
        batch_shape=batch_shape, dtype=torch.float32, hidden=(12, 4), n_pseudo=[8, 3, 5], **options
    )
    with torch.no_grad():
        for layer in network.layers:
            layer.pseudo_data.points.normal_()
    monkeypatch.setattr(library, "standard_normal", lambda *shapes, **like: [randn(shape, **like) for shape in shapes])
    expected = in_plain_pytorch(network, likelihood, x, y)
    for a, b in zip(evaluate(network, likelihood, x, y), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4 * b.abs().max().item())


@needs_kernels
@pytest.mark.parametrize(("batch_shape", "width"), [((), 400), ((5,), 120)])
def test_threads_change_no_bit(batch_shape, width, threads):
    """One layer's products are shared among threads, or the replicas."""
    network, likelihood, x, y = problem(batch_shape=batch_shape, dtype=torch.float32, hidden=(width, width), n_pseudo=4)
    x, y = (rows.repeat_interleave(20, -2) for rows in (x, y))
    found = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append(evaluate(network, likelihood, x, y)[3:])
        assert torch.get_num_threads() == n
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@needs_kernels
def test_kernels_count_weights_and_each_replicas_rows():
    network, likelihood, x, y = problem(batch_shape=(3,))
    weight = torch.rand(3, B, dtype=torch.float64)
    assert_equal_steps(
        network, likelihood, x, y, weight=weight, n_data=torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    )


def test_an_activation_with_parameters_is_trained_too():
    network, x = MLP(2, (6,), 1, n_pseudo=1, activation=nn.PReLU()), torch.randn(40, 2)
    before = network.activation.weight.clone()
    train(network, GaussianLikelihood(1), x, x[:, :1], n_steps=5, batch_size=20, averaging=None)
    assert not torch.equal(network.activation.weight, before)
