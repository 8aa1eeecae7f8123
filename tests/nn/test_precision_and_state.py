"""Narrow numbers, states and empty memory: a layer is the same wherever it comes from."""

import copy
import pickle

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import BayesianHead, MatrixGaussianLinear, PseudoData, bayesianize, kl_divergence
from vmg.priors import GammaPrior, IsotropicPrior


def make_model(**options):
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 2))
    return bayesianize(plain, n_data=100, **options)


@pytest.mark.works_with("autocast", "layers compute in single precision")
def test_autocast_after_a_convolution():
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 2))
    x, y = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 0, 1])
    for model in (bayesianize(plain, only="2"), make_model()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = vmg.elbo(model, CategoricalLikelihood(), x, y, n_data=4)
        terms.total.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.works_with("bfloat16 and float16 parameters", "single precision inside")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["diagonal", "rank_one", "dense"])
def test_narrow_parameters(dtype, family):
    model = make_model(row_covariance=family).to(dtype)
    x = torch.randn(4, 1, 6, 6, dtype=dtype)
    out = model(x)
    assert out.dtype is dtype
    kl = kl_divergence(model)
    assert kl.dtype is torch.float32
    wide = copy.deepcopy(model).float()
    torch.testing.assert_close(kl, kl_divergence(wide), rtol=1e-3, atol=1e-2)
    (out.float().square().mean() + kl / 100).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model[3].to_linear().weight.dtype is dtype


@pytest.mark.filterwarnings("ignore:n_pseudo should be")
@pytest.mark.parametrize("n_pseudo", [2, 7])
@pytest.mark.parametrize("kl", ["marginal", "conditional"])
def test_narrow_layers_have_wide_weights(n_pseudo, kl):
    layer = MatrixGaussianLinear(4, 3, n_pseudo=n_pseudo, kl=kl).to(torch.bfloat16)
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    for weight in (layer.mean_weight(), layer.sample_weight(), layer.kl_divergence()):
        assert weight.dtype is torch.float32
    for out in (layer(x), layer.forward_mean(x)):
        assert out.dtype is torch.bfloat16


@pytest.mark.works_with(
    "`state_dict`, `deepcopy`, pickle", "the prior and the bound of the noise are part of the state"
)
@pytest.mark.parametrize("prior", [IsotropicPrior(0.2), GammaPrior(2.0, 3.0)])
def test_settings_of_the_objective_are_in_the_state(prior):
    """Once they were not: a divergence of 3689 was 1029 after loading."""
    layer = MatrixGaussianLinear(5, 3, n_pseudo=2, prior=prior, max_noise=0.05)
    other = MatrixGaussianLinear(5, 3, n_pseudo=2, prior=type(prior)(), max_noise=0.25)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.kl_divergence(), layer.kl_divergence())
    assert other.pseudo_data.max_noise == 0.05
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(copied.kl_divergence(), layer.kl_divergence())


def test_layers_do_not_share_a_prior_that_one_of_them_could_change():
    prior = IsotropicPrior(0.2)
    first, second = MatrixGaussianLinear(3, 2, prior=prior), MatrixGaussianLinear(3, 2, prior=prior)
    first.load_state_dict(MatrixGaussianLinear(3, 2).state_dict())
    assert (first.prior.scale, second.prior.scale, prior.scale) == (1.0, 0.2, 0.2)


def test_a_state_without_settings_leaves_them():
    layer = MatrixGaussianLinear(3, 2, n_pseudo=1, max_noise=0.1, prior=IsotropicPrior(0.2))
    state = {name: value for name, value in layer.state_dict().items() if not name.endswith("_extra_state")}
    layer.load_state_dict(state)
    assert layer.prior.scale == 0.2


def test_bounds_of_replicas_are_in_the_state():
    bounds = torch.tensor([0.1, 0.2])
    layer = MatrixGaussianLinear(3, 2, n_pseudo=1, max_noise=bounds, batch_shape=(2,))
    other = MatrixGaussianLinear(3, 2, n_pseudo=1, max_noise=torch.tensor([0.3, 0.3]), batch_shape=(2,))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.pseudo_data.max_noise, bounds)
    single = PseudoData(1, 4, 2)
    with pytest.raises(ValueError, match="must hold 1 numbers; got 2"):
        single.set_extra_state(layer.pseudo_data.get_extra_state())


@pytest.mark.works_with('`to("meta")`, `to_empty`', "then load a state")
@pytest.mark.parametrize("pseudo_noise", ["layer", "factored"])
def test_a_layer_survives_empty_memory(pseudo_noise):
    """Buffers that no state had were garbage after to_empty, and the divergence was -143."""
    layer = MatrixGaussianLinear(5, 3, n_pseudo=2, max_noise=0.1, pseudo_noise=pseudo_noise)
    empty = copy.deepcopy(layer).to("meta").to_empty(device="cpu")
    assert all(name in layer.state_dict() for name, _ in empty.named_buffers())
    empty.load_state_dict(layer.state_dict())
    torch.testing.assert_close(empty.kl_divergence(), layer.kl_divergence())
    assert torch.isfinite(empty(torch.randn(4, 5))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_head_keeps_its_sums_when_its_model_changes_precision(kind, dtype):
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long() if kind == "classes" else x[:, :1] + 0.1 * torch.randn(60, 1)
    head = BayesianHead(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2 if kind == "classes" else 1)))
    head.fit(x, y)
    before = vmg.predict(head, x, n_samples=2_000)
    head.to(dtype)
    found = vmg.predict(head, x.to(dtype), n_samples=2_000)
    tolerance = 0.05 if kind == "classes" or dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(found.mean, before.mean, atol=tolerance, rtol=tolerance)
    assert head.update(x.to(dtype), y if kind == "classes" else y.to(dtype)).output.count > 60
