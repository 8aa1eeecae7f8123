"""Programs that are recorded, compiled, exported or transformed: no value is looked at, no memory misread."""

import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from layer_inputs import Divergence
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

import vmg
from vmg.fused import library
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.math.linalg import cholesky, is_traced, values_readable
from vmg.nn import MLP, MatrixGaussianLinear, bayesianize, fixed_draw, kl_divergence


def make_model(**options):
    plain = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    return bayesianize(plain, n_data=50, initial_scale=0.3, **options)


TRACE = """
import torch, warnings
from torch import nn
from vmg.nn import bayesianize
warnings.simplefilter("ignore")
model = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
traced = torch.jit.trace(model, torch.randn(5, 3), check_trace=False)
print(tuple(traced(torch.randn(7, 3)).shape), (traced(torch.ones(7, 3)) - traced(torch.ones(7, 3))).abs().max() > 0)
"""


@pytest.mark.works_with("`torch.jit.trace`", "draws")
def test_a_traced_model_draws_and_corrupts_nothing():
    """Sizes are tensors while tracing, and adding to one changed those before it: the process died."""
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "(7, 2) tensor(True)"


def test_recording_is_noticed():
    x = torch.zeros(2)
    assert not is_traced(x)
    assert values_readable(x)
    assert not values_readable(torch.zeros(2, device="meta"))
    seen = []
    grad(lambda t: seen.append(is_traced(t)) or t.sum())(x)
    with torch._subclasses.FakeTensorMode():
        seen.append(is_traced(torch.zeros(2)))
    assert seen == [True, True]


def test_the_careful_factor_without_looking():
    """The branch-free one is the same for healthy members and helps those that need jitter."""
    root = torch.randn(2, 3, 3, dtype=torch.float64)
    healthy = root @ root.mT + torch.eye(3)
    singular = torch.ones(1, 3, 3, dtype=torch.float64)
    both = torch.cat([healthy, singular])
    unseen = vmap(cholesky)(both)
    torch.testing.assert_close(unseen[:2], cholesky(healthy))
    assert torch.isfinite(unseen).all()
    torch.testing.assert_close(unseen[2] @ unseen[2].mT, singular[0], atol=1e-4, rtol=0)
    assert torch.isnan(vmap(cholesky)(-torch.eye(2).expand(1, 2, 2))).any()


@pytest.mark.works_with("`torch.func.grad`, `functional_call`", "")
@pytest.mark.parametrize("n_pseudo", [0, 2])
@pytest.mark.parametrize("pseudo_noise", ["layer", "factored"])
def test_gradients_of_transforms_are_those_of_autograd(n_pseudo, pseudo_noise):
    model = make_model(n_pseudo=n_pseudo, pseudo_noise=pseudo_noise, max_noise=0.2).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def divergence(values):
        with torch.nn.utils.parametrize.cached():
            return sum(
                functional_call(Divergence(layer), {f"layer.{k[2:]}": v for k, v in values.items() if k[0] == number})
                for number, layer in model.named_children()
                if isinstance(layer, MatrixGaussianLinear)
            )

    found = grad(divergence)(parameters)
    kl_divergence(model).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], torch.zeros_like(p) if p.grad is None else p.grad, msg=name)
    assert torch.isfinite(functional_call(model, parameters, (x,)) - y).all()


@pytest.mark.works_with("`vmap`, `jacrev`", '`fixed_draw`, or `randomness="different"` to draw')
def test_jacobians_of_the_inputs():
    model, x = make_model(), torch.randn(4, 3)
    with fixed_draw(model):
        jacobian = vmap(jacrev(model))(x)
        expected = torch.stack([torch.autograd.functional.jacobian(model, row) for row in x])
    torch.testing.assert_close(jacobian, expected)
    assert vmap(model, randomness="different")(x.unsqueeze(1)).shape == (4, 1, 2)


@pytest.mark.works_with("second derivatives", "")
def test_the_divergence_can_be_differentiated_twice():
    model = make_model(n_pseudo=2).double()
    parameters = [p for p in model.parameters() if p.requires_grad]

    def second():
        first = torch.autograd.grad(kl_divergence(model), parameters, create_graph=True, allow_unused=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first if g is not None), parameters, allow_unused=True)

    fused = second()
    original, library.native = library.native, lambda *tensors: None
    try:
        parts = second()
    finally:
        library.native = original
    for a, b in zip(fused, parts, strict=True):
        torch.testing.assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)


def eager_backend(graph, inputs):
    return graph.forward


@pytest.fixture
def quiet():
    """PyTorch's compiler warns of matters of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


@pytest.mark.works_with("`torch.compile(fullgraph=True)`", "plain PyTorch inside, slower than the kernels on a CPU")
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("n_pseudo", [0, 2])
def test_a_compiled_model_is_one_graph_with_the_same_draws(n_pseudo):
    model, x = make_model(n_pseudo=n_pseudo), torch.randn(5, 3)
    compiled = torch.compile(model, fullgraph=True, backend=eager_backend)
    original, library.native = library.native, lambda *tensors: None
    loaded, library._library = library._library, lambda: None  # so that both draw by PyTorch's generator
    try:
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        actual = compiled(x)
    finally:
        library.native, library._library = original, loaded
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    assert model[0].loc.grad is not None


@pytest.mark.works_with("`torch.export`", "draws; also `to_plain` and `freeze_draws`")
@pytest.mark.usefixtures("quiet")
def test_an_exported_model_draws():
    exported = torch.export.export(make_model(), (torch.randn(5, 3),)).module()
    x = torch.randn(5, 3)
    assert (exported(x) - exported(x)).abs().min() > 0


@pytest.mark.usefixtures("quiet")
def test_the_mean_network_is_exported_without_a_trace_of_the_library():
    model, x = make_model(), torch.randn(5, 3)
    mean = vmg.nn.to_plain(model)
    assert b"vmg" not in pickle.dumps(mean)
    exported = torch.export.export(mean, (x,)).module()
    torch.testing.assert_close(exported(x), mean(x))
    with fixed_draw(model):
        expected = model(x)
        drawn = vmg.nn.to_plain(model)
    torch.testing.assert_close(drawn(x), expected)


# -- memory -----------------------------------------------------------------------------------------------------------


def test_tokens_are_trained_on():
    from vmg.training import train

    network = MLP(3, (4,), 2)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    x, y = torch.randn(6, 5, 3), torch.randint(2, (6, 5))
    train(network, CategoricalLikelihood(), x, y, n_steps=2, batch_size=4)
    for start, parameter in zip(before, network.parameters(), strict=True):
        assert parameter.isfinite().all() and not torch.equal(parameter, start)


# -- serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [None, CategoricalLikelihood(), KnownNoiseLikelihood(0.3)])
def test_frozen_draws_predict_what_the_draws_do(likelihood):
    model, x = make_model().train(), torch.randn(5, 3)
    torch.manual_seed(1)
    served = vmg.freeze_draws(model, 4, likelihood)
    torch.manual_seed(1)
    expected = vmg.predict(model, x, likelihood=likelihood, n_samples=4)
    torch.testing.assert_close(served(x), expected, atol=1e-5, rtol=1e-4)
    assert not any(type(m).__module__.startswith("vmg.nn") for m in served.modules())
    with torch.no_grad():
        model[0].loc.add_(1)
    torch.testing.assert_close(served(x).mean, expected.mean, atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("quiet")
def test_frozen_draws_are_exported_as_one_graph():
    model, x = make_model(), torch.randn(5, 3)
    served = vmg.freeze_draws(model, 3, CategoricalLikelihood())
    exported = torch.export.export(served, (x,)).module()
    torch.testing.assert_close(exported(x), served(x))


@pytest.mark.works_with(
    "ONNX", "`to_plain`, or `freeze_draws`: mean and standard deviations in one graph; run in onnxruntime"
)
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("what", ["mean", "draws", "numbers", "replicas", "head", "class head", "heads"])
def test_onnx_gives_the_same_numbers(what, tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason="the exporter of PyTorch needs it; see the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="runs what was exported; see the extra onnx")
    if torch.__version__ < (2, 6):
        pytest.skip("the exporter of older versions of PyTorch")
    x, module = torch.randn(5, 3), make_served(what)
    rows = {0: torch.export.Dim("rows")}
    shapes = (rows,) if what == "mean" else ((rows,),)  # a frozen model takes any inputs
    torch.onnx.export(module, (x,), str(tmp_path / "model.onnx"), dynamo=True, dynamic_shapes=shapes)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    x = torch.randn(9, 3)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = module(x)
    for a, b in zip(found, (expected,) if what == "mean" else expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(a), b.detach(), atol=1e-5, rtol=1e-5)


def make_served(what):
    if what == "mean":
        return vmg.nn.to_plain(make_model()).eval()
    if what == "draws":
        return vmg.freeze_draws(make_model(), 3, CategoricalLikelihood())
    x = torch.randn(40, 3)
    y = x[:, :1].long() % 2 if what == "class head" else x[:, :2].sin()
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    if what == "numbers":
        model, noise = vmg.nn.bayesianize(net, n_data=40), GaussianLikelihood(2)
        vmg.elbo(model, noise, x, y, n_data=40)
        return vmg.freeze_draws(model, 3, noise)
    if what == "replicas":
        return vmg.freeze_draws(vmg.nn.replicate(net, 3, start_scale=1), likelihood=KnownNoiseLikelihood(0.1))
    if what == "heads":
        return vmg.freeze_draws([vmg.nn.BayesianHead(net).fit(x, y) for _ in range(2)])
    return vmg.freeze_draws(vmg.nn.BayesianHead(net).fit(x, y.flatten() if what == "class head" else y))


@pytest.mark.parametrize("what", ["head", "heads", "replicas"])
def test_a_frozen_model_predicts_as_the_model_itself(what):
    x = torch.randn(40, 3)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    other = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    heads = [vmg.nn.BayesianHead(one).fit(x, x[:, :2].sin()) for one in (net, other)]
    model = {"head": heads[0], "heads": heads, "replicas": vmg.nn.replicate(net, 3, start_scale=1)}[what]
    likelihood = KnownNoiseLikelihood(0.1) if what == "replicas" else None
    expected = vmg.predict(model, x, likelihood=likelihood)
    torch.testing.assert_close(vmg.freeze_draws(model, likelihood=likelihood)(x), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.usefixtures("quiet")
def test_a_model_can_be_compiled_before_the_kernels_were_looked_for():
    library.available.cache_clear()
    model = bayesianize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(3, 1, 4, 4)).shape == (3, 2)
