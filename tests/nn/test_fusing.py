"""Layers drawn from by one node, with their divergence: numbers and gradients of layers called one by one."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import vmg
from vmg.fused import library
from vmg.likelihoods import KnownNoiseLikelihood
from vmg.nn import MLP, MatrixGaussianLinear, kl_divergence
from vmg.nn.bayesian import use_generator
from vmg.nn.fusing import fused_runs
from vmg.priors import GammaPrior

B, D, C = 5, 3, 2
needs_kernels = pytest.mark.skipif(not library.available(), reason="the kernels are not there")
OPTIONS = [
    {"n_pseudo": 2},
    {"n_pseudo": 2, "activation": "tanh", "zero_mean": True, "pseudo_noise": "factored"},
    {"n_pseudo": 0, "prior": GammaPrior()},
    {"n_pseudo": 2, "prior": GammaPrior(2.0, 0.7, conjugate=False), "batch_shape": (2,)},
    {"n_pseudo": 2, "max_noise": torch.tensor([0.2, 0.8], dtype=torch.float64), "batch_shape": (2,), "bias": False},
]


def make(seed=0, dtype=torch.float64, hidden=(4,), **options):
    torch.manual_seed(seed)
    network = MLP(D, hidden, C, **{"n_pseudo": 2} | options).to(dtype)
    with torch.no_grad():
        for layer in network.layers:
            if layer.pseudo_data is not None:
                layer.pseudo_data.points.normal_()
                for log_noise in layer.pseudo_data.log_noises():
                    log_noise.sub_(0.5)  # off the bound, at which a difference would be moved back
    return network, torch.randn(*network.layers[0].batch_shape, B, D, dtype=dtype)


def draw(network, x, seed=1):
    """Outputs and divergence, from one draw."""
    use_generator(network, torch.Generator().manual_seed(seed))
    with fused_runs(network) as drawn:
        return network(x), kl_divergence(network, drawn)


def gradients(network, outputs, **options):
    loss = sum(((k + 1) * output.square()).sum() for k, output in enumerate(outputs))
    return torch.autograd.grad(loss, list(network.parameters()), **options)


@needs_kernels
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_gradcheck(options):
    network, x = make(**options)
    names, values = zip(*network.named_parameters(), strict=True)
    has_learned_prior = any("prior" in name for name in names)  # whose divergence is not the kernels'

    def outputs(x, *values):
        use_generator(network, torch.Generator().manual_seed(1))
        with fused_runs(network) as drawn:
            out = functional_call(network, dict(zip(names, values, strict=True)), x)
            fused = [list(run.layers) for run in drawn]
            assert fused == ([] if has_learned_prior else [list(network.layers)])
            return out, kl_divergence(network, drawn)

    inputs = (x.requires_grad_(), *(value.detach().clone().requires_grad_() for value in values))
    assert gradcheck(outputs, inputs, fast_mode=True)
    assert gradgradcheck(outputs, inputs, fast_mode=True)


@needs_kernels
def test_memory_is_used_again_only_when_no_graph_needs_it():
    """Graphs that live at the same time, one that is gone through twice, and one whose gradient has a graph."""
    network, x = make(hidden=(4, 6))
    expected = [gradients(network, draw(network, x, seed)) for seed in range(4)]
    alive = [draw(network, x, seed) for seed in range(4)]
    for seed in (2, 0, 3, 1):
        first = gradients(network, alive[seed], retain_graph=True)
        assert all(map(torch.equal, first, gradients(network, alive[seed])))
        assert all(map(torch.equal, first, expected[seed]))

    def second(between):
        outputs = draw(network, x)
        found = gradients(network, outputs, create_graph=True)
        del outputs
        between()
        return torch.autograd.grad(sum(g.square().sum() for g in found), list(network.parameters()))

    def others():
        for seed in range(4):
            gradients(network, draw(network, 2 * x, seed))

    assert all(map(torch.equal, second(others), second(lambda: None)))


@needs_kernels
def test_parameters_changed_before_the_backward_pass_are_refused():
    network, x = make()
    outputs = draw(network, x)
    with torch.no_grad():
        network.layers[0].loc.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(network, outputs)


@needs_kernels
def test_parameters_may_be_moved_before_the_backward_pass():
    """As FSDP2 does, which frees them between the passes; the old memory is no longer theirs."""
    network, x = make(hidden=(4, 4))
    expected, outputs = gradients(network, draw(network, x)), draw(network, x)
    for p in network.parameters():
        old, p.data = p.data, p.data.clone()
        old.fill_(math.nan)
    assert all(map(torch.equal, gradients(network, outputs), expected))


@needs_kernels
def test_threads_that_train_at_the_same_time_do_not_meet():
    """Memory is a thread's own, also where a step ends in another thread than it began."""
    network, x = make(hidden=(6, 6))
    expected = [gradients(network, draw(network, x, seed)) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        networks = [copy.deepcopy(network) for _ in range(8)]
        for _ in range(3):
            drawn = list(pool.map(draw, networks, [x] * 8, range(8)))
            for a, b in zip(pool.map(gradients, networks, drawn), expected, strict=True):
                assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_network_neither_loses_nor_doubles_its_divergence(reentrant):
    network, x = make(hidden=(4, 6))
    likelihood, y = KnownNoiseLikelihood(0.5), torch.randn(B, C, dtype=torch.float64)

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x):
            return checkpoint(self.network, x.clone().requires_grad_(), use_reentrant=reentrant)

    found = []
    for model in (network, Checkpointed()):
        network.zero_grad()
        torch.manual_seed(5)
        (-vmg.elbo(model, likelihood, x, y, n_data=3).total).backward()
        found.append([p.grad.clone() for p in network.parameters()])
    torch.testing.assert_close(*found)


def test_a_call_without_a_graph_is_no_run():
    network, x = make()
    with fused_runs(network) as drawn:
        with torch.no_grad():
            network(x)
        assert drawn == []
    before = kl_divergence(network).item()
    with torch.no_grad():
        network.layers[0].loc.mul_(2)
    assert kl_divergence(network).item() > before


def test_a_divergence_of_ones_own_is_the_one_that_counts():
    class Tempered(MatrixGaussianLinear):
        def kl_divergence(self):
            return 0.5 * super().kl_divergence()

    torch.manual_seed(0)
    network = MLP(D, (4,), C, make_layer=lambda k, a, b: Tempered(a, b, n_pseudo=2))
    x, y = torch.randn(B, D), torch.randn(B, C)
    terms = vmg.elbo(network, KnownNoiseLikelihood(0.5), x, y, n_data=1)
    plain = sum(MatrixGaussianLinear.kl_divergence(layer) for layer in network.layers)
    torch.testing.assert_close(terms.kl, 0.5 * plain)


def test_frozen_parameters_have_no_gradient_and_others_theirs():
    network, x = make()
    network.layers[0].loc.requires_grad_(False)
    network.layers[1].requires_grad_(False)
    likelihood, y = KnownNoiseLikelihood(0.5), torch.zeros(B, C, dtype=torch.float64)
    (-vmg.elbo(network, likelihood, x, y, n_data=10).total).backward()
    assert {name for name, p in network.named_parameters() if p.grad is not None} == {
        name for name, p in network.named_parameters() if p.requires_grad
    }


# -- runs in models of one's own ---------------------------------------------------------------------------------------


def layer(n_in, n_out, **options):
    return MatrixGaussianLinear(n_in, n_out, **{"n_pseudo": 2} | options)


def sequential(*modules):
    torch.manual_seed(0)
    return torch.nn.Sequential(*modules).double(), torch.randn(B, D, dtype=torch.float64)


def lengths(model, x):
    """Number of layers of each run, where a draw, its divergence and gradients are those of the layers one by one."""
    apart = copy.deepcopy(model)
    for part in apart.modules():
        if isinstance(part, MatrixGaussianLinear):
            part.register_forward_hook(lambda *arguments: None)
    outputs = []
    for network in (model, apart):
        use_generator(network, torch.Generator().manual_seed(1))
        with fused_runs(network) as drawn:
            outputs.append((network(x), kl_divergence(network, drawn)))
        if network is model:
            runs = [len(run.layers) for run in drawn]
    assert not any("forward" in part.__dict__ for part in model.modules())
    torch.testing.assert_close(*outputs)
    for a, b in zip(*map(gradients, (model, apart), outputs), strict=True):
        torch.testing.assert_close(a, b)
    return runs


@needs_kernels
def test_a_sequential_is_one_run():
    modules = [layer(D, 4), torch.nn.ReLU(), layer(4, 6), torch.nn.Tanh(), layer(6, C), torch.nn.SiLU()]
    assert lengths(*sequential(*modules)) == [3]


@needs_kernels
def test_other_modules_end_a_run():
    inner = torch.nn.Sequential(layer(4, 4), torch.nn.GELU(), layer(4, 4))
    modules = [layer(D, 4), torch.nn.ReLU(), layer(4, 4), torch.nn.LayerNorm(4), inner, torch.nn.PReLU(), layer(4, C)]
    assert lengths(*sequential(*modules)) == [2, 2, 1]


@needs_kernels
def test_layers_of_another_kind_are_called():
    modules = [layer(D, 4), torch.nn.ReLU(), layer(4, 4, row_covariance="dense"), torch.nn.ReLU(), layer(4, C)]
    assert lengths(*sequential(*modules)) == [1, 1]
    modules = [layer(D, 4), torch.nn.ReLU(), layer(4, 4, kl="conditional"), torch.nn.ReLU(), layer(4, C)]
    model, x = sequential(*modules)
    with fused_runs(model) as drawn:
        model(x)
    assert drawn == [], "the conditional divergence is not the kernels'"


@needs_kernels
def test_a_layer_used_twice_is_counted_once():
    shared = layer(D, D)
    assert lengths(*sequential(shared, torch.nn.ReLU(), shared)) == [1, 1]


@needs_kernels
def test_converted_models_and_layers_in_a_forward_of_ones_own():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.body = torch.nn.Linear(D, 4), torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU())
            self.body.append(torch.nn.Linear(5, C))

        def forward(self, x):
            return self.body(torch.sin(self.first(x)))

    torch.manual_seed(0)
    model = vmg.nn.bayesianize(Own(), n_pseudo=2, initial_scale=0.5).double()
    assert lengths(model, torch.randn(B, D, dtype=torch.float64)) == [1, 2]


@needs_kernels
def test_a_model_is_as_it_was_after_an_error():
    model, _ = sequential(layer(D, 4), torch.nn.ReLU(), layer(4, C))
    with pytest.raises(ValueError, match="x must have 3 features"), fused_runs(model):
        model(torch.zeros(2, 7, dtype=torch.float64))
    assert not any("forward" in part.__dict__ for part in model.modules())
