"""The direct step is autograd's in every number; where it cannot be, autograd's is taken."""

import copy

import pytest
import torch
from torch import nn

from vmg.fused import library, pass_memory
from vmg.likelihoods import (
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
)
from vmg.nn import MLP
from vmg.nn.bayesian import use_generator
from vmg.objective import Objective
from vmg.priors import GammaPrior
from vmg.training import train
from vmg.training.direct_step import DirectStep
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.rows import Batch
from vmg.training.step import AutogradStep, make_step

B, D, C = 7, 5, 3
needs_kernels = pytest.mark.skipif(not library.available(), reason="the kernels are not there")


def likelihood_of(kind, batch_shape):
    if kind == "gaussian":
        return GaussianLikelihood(C, batch_shape=batch_shape)
    if kind == "learned noise":
        return GaussianLikelihood(C, concentration=2.0, rate=0.5, conjugate=False, batch_shape=batch_shape)
    if kind == "heteroscedastic":
        return HeteroscedasticLikelihood(C, balance=0.5, fade=(0, 8), batch_shape=batch_shape)
    return {"known": KnownNoiseLikelihood(0.3), "categorical": CategoricalLikelihood()}[kind]


def problem(kind="gaussian", batch_shape=(), dtype=torch.float64, hidden=(6, 4), **options):
    torch.manual_seed(0)
    likelihood = likelihood_of(kind, batch_shape)
    outputs = 2 * C if kind == "heteroscedastic" else C
    network = MLP(D, hidden, outputs, batch_shape=batch_shape, **{"n_pseudo": 2, "max_noise": 0.3} | options)
    if likelihood.state_dict().get("n_updates") is not None:
        likelihood.n_updates.fill_(5)
    x = torch.randn(*batch_shape, B, D, dtype=dtype)
    y = torch.randint(C, (*batch_shape, B)) if kind == "categorical" else torch.randn(*batch_shape, B, C, dtype=dtype)
    return network.to(dtype), likelihood.to(dtype), x, y


def evaluate(make, network, likelihood, x, y, weight=None, n_data=50.0, steps=2):
    """Outputs, terms and gradients of a few evaluations from one seed."""
    network, likelihood = copy.deepcopy((network, likelihood))
    parameters = GroupedParameters([*network.parameters(), *likelihood.parameters()])
    use_generator(network, torch.Generator().manual_seed(1))
    step = make(Objective(network, likelihood, n_data), parameters, x.shape)
    for _ in range(steps):
        terms = step(Batch(x, y, weight), 0.7)
    return [terms.f, terms.expected_log_likelihood, terms.kl, *(t.grad.clone() for t in parameters.tensors)]


def autograd(objective, parameters, shape):
    return AutogradStep(objective, parameters)


def assert_equal_steps(network, likelihood, x, y, **options):
    expected = evaluate(autograd, network, likelihood, x, y, **options)
    found = evaluate(DirectStep, network, likelihood, x, y, **options)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@needs_kernels
@pytest.mark.parametrize("batch_shape", [(), (3,)])
@pytest.mark.parametrize("kind", ["gaussian", "learned noise", "heteroscedastic", "known", "categorical"])
def test_direct_is_autograd_for_every_likelihood(kind, batch_shape):
    assert_equal_steps(*problem(kind, batch_shape))


@needs_kernels
@pytest.mark.parametrize(
    "options",
    [
        {"n_pseudo": 0},
        {"zero_mean": True},
        {"pseudo_noise": "factored"},
        {"prior": GammaPrior()},
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
def test_direct_is_autograd_for_every_layer(options):
    assert_equal_steps(*problem(**options))


@needs_kernels
@pytest.mark.parametrize("options", [{}, {"zero_mean": True}, {"n_pseudo": 0}])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_direct_is_autograd_for_large_layers(options, batch_shape, monkeypatch):
    monkeypatch.setattr("vmg.fused.pass_memory.SMALL", 0)
    from vmg.fused.pass_memory import make_plan

    make_plan.cache_clear()
    try:
        assert_equal_steps(*problem(batch_shape=batch_shape, **options))
    finally:
        make_plan.cache_clear()


@needs_kernels
@pytest.mark.filterwarnings("ignore:n_pseudo should be")
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
@pytest.mark.parametrize("options", [{}, {"zero_mean": True}, {"pseudo_noise": "factored"}], ids=str)
def test_direct_is_autograd_where_single_precision_is_too_little(options, batch_shape, small, monkeypatch):
    """As many pseudo-points as rows, or more: such layers compute in double, others beside them do not."""
    if not small:
        monkeypatch.setattr(pass_memory, "SMALL", 0)
        pass_memory.make_plan.cache_clear()
    network, likelihood, x, y = problem(
        batch_shape=batch_shape, dtype=torch.float32, hidden=(12, 4), n_pseudo=[8, 3, 5], **options
    )
    with torch.no_grad():
        for layer in network.layers:
            layer.pseudo_data.points.normal_()
    try:
        expected = evaluate(autograd, network, likelihood, x, y)
        found = evaluate(DirectStep, network, likelihood, x, y)
    finally:
        pass_memory.make_plan.cache_clear()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4 * b.abs().max().item())


@needs_kernels
def test_direct_counts_weights_and_each_replicas_rows():
    network, likelihood, x, y = problem(batch_shape=(3,))
    weight = torch.rand(3, B, dtype=torch.float64)
    assert_equal_steps(
        network, likelihood, x, y, weight=weight, n_data=torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    )


def frozen_network():
    network, likelihood, *_ = problem()
    network.layers[0].loc.requires_grad_(False)
    return network, likelihood


@pytest.mark.parametrize(
    ("network", "likelihood"),
    [
        problem(row_covariance="dense")[:2],
        frozen_network(),
        (nn.Sequential(problem()[0]), problem()[1]),
    ],
    ids=["dense", "frozen", "another module"],
)
def test_what_has_no_direct_step_takes_autograds(network, likelihood):
    parameters = GroupedParameters(p for m in (network, likelihood) for p in m.parameters())
    assert isinstance(make_step(Objective(network, likelihood, 1.0), parameters, (B, D)), AutogradStep)


def test_an_activation_with_parameters_is_trained_too():
    network, x = MLP(2, (6,), 1, n_pseudo=1, activation=nn.PReLU()), torch.randn(40, 2)
    before = network.activation.weight.clone()
    train(network, GaussianLikelihood(1), x, x[:, :1], n_steps=5, batch_size=20, averaging=None)
    assert not DirectStep.allows(network) and not torch.equal(network.activation.weight, before)


@needs_kernels
def test_training_is_the_same_either_way(monkeypatch):
    network, likelihood, x, y = problem(batch_shape=(2,))
    trained = []
    for allowed in (True, False):
        monkeypatch.setattr(DirectStep, "allows", staticmethod(lambda *modules, allowed=allowed: allowed))
        pair = copy.deepcopy((network, likelihood))
        options = {"n_steps": 30, "batch_size": 4, "learning_rate": 0.01, "batch_shape": (2,)}
        train(*pair, x, y, **options, generator=torch.Generator().manual_seed(3))
        trained.append([*pair[0].state_dict().values(), *pair[1].state_dict().values()])
    for direct, plain in zip(*trained, strict=True):
        torch.testing.assert_close(direct, plain, rtol=1e-7, atol=1e-7)


# -- memory -----------------------------------------------------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("most", [pass_memory.MOST, 0])
def test_layers_share_what_outlasts_no_pass(most, monkeypatch):
    """However large it is; and what is large is gone with the step."""
    monkeypatch.setattr(pass_memory, "SMALL", 0)
    monkeypatch.setattr(pass_memory, "MOST", most)
    monkeypatch.setattr(pass_memory, "_SCRATCH", type(pass_memory._SCRATCH)())
    pass_memory.make_plan.cache_clear()
    network, likelihood, x, _ = problem("known", hidden=(5, 5))
    taken = []
    take = pass_memory._SCRATCH.take
    monkeypatch.setattr(pass_memory._SCRATCH, "take", lambda *size: taken.append(take(*size)) or taken[-1])
    step = DirectStep(Objective(network, likelihood, 50.0), GroupedParameters(network.parameters()), x.shape)
    pass_memory.make_plan.cache_clear()
    assert len(taken) >= 3 and len({memory.data_ptr() for memory in taken}) == 1
    taken.clear()
    del step
    assert len(pass_memory._SCRATCH._large) == 0


@needs_kernels
def test_parameters_that_were_moved_are_refused():
    """The passes know addresses: new memory for a parameter would be left as it is, and the old trained, in silence."""
    network, likelihood, x, y = problem()

    def move(progress):
        network.layers[0].loc.data = network.layers[0].loc.data.clone()

    with pytest.raises(RuntimeError, match=r"layers\.0\.loc must stay where it is"):
        train(network, likelihood, x, y, n_steps=3, report_every=1, callbacks=[move])
