"""Nothing assumes the CPU. The meta device stands in for those not at hand: it mixes with none and has no values."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import vmg
from vmg.likelihoods import (
    CategoricalLikelihood,
    FullCovarianceLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
)
from vmg.math.linalg import on_device
from vmg.nn import MLP, BayesianHead, MatrixGaussianLinear, bayesianize
from vmg.priors import GammaPrior
from vmg.training import train
from vmg.training.rows import take_rows

DEVICE = torch.device("meta")
LIKELIHOODS = {
    "gaussian": (lambda: GaussianLikelihood(2), 2),
    "learned": (lambda: GaussianLikelihood(2, conjugate=False), 2),
    "known": (lambda: KnownNoiseLikelihood(0.5), 2),
    "input": (lambda: HeteroscedasticLikelihood(1), 1),
    "full": (lambda: FullCovarianceLikelihood(2), 2),
    "classes": (CategoricalLikelihood, None),
}


def step(model, likelihood, x, y):
    """One whole step of a user's loop."""
    optimiser = torch.optim.SGD([p for p in [*model.parameters(), *likelihood.parameters()] if p.requires_grad], lr=0.1)
    terms = vmg.elbo(model, likelihood, x, y, n_data=100)
    (-terms.total).backward()
    optimiser.step()
    return terms


@pytest.mark.works_with("other devices", "the meta device stands in; none was at hand to measure")
@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("prior", [None, GammaPrior()])
@pytest.mark.parametrize("pseudo_noise", ["layer", "factored"])
def test_a_step_stays_on_its_device_and_never_waits_for_it(name, prior, pseudo_noise):
    """Its tensors have no values: any look at one, which would make the host wait, raises."""
    make, n_targets = LIKELIHOODS[name]
    options = {"n_pseudo": 2, "prior": prior, "pseudo_noise": pseudo_noise}
    model, likelihood = MLP(3, (4,), 2, **options).to(DEVICE), make().to(DEVICE)
    x = torch.empty(5, 3, device=DEVICE)
    y = torch.empty(5, dtype=torch.long, device=DEVICE)
    if n_targets:
        y = torch.empty(5, n_targets, device=DEVICE)
    terms = step(model, likelihood, x, y)
    assert terms.total.device == DEVICE
    assert terms.f.device == DEVICE


@pytest.mark.parametrize("sampling", ["marginal", "joint", "weights"])
@pytest.mark.parametrize("family", ["diagonal", "rank_one", "dense"])
def test_every_draw_stays_on_its_device(sampling, family):
    with DEVICE:
        layer = MatrixGaussianLinear(3, 2, n_pseudo=2, sampling=sampling, row_covariance=family)
    x = torch.empty(5, 3, device=DEVICE)
    for out in (layer(x), layer.forward_mean(x), layer.kl_divergence(), layer.sample_weight((2,))):
        assert out.device == DEVICE


def test_converted_models_and_their_predictions_stay_on_their_device():
    model = bayesianize(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 2)).to(DEVICE), n_data=10)
    x = torch.empty(5, 1, 6, 6, device=DEVICE)
    assert all(p.device == DEVICE for p in model.parameters())
    for value in vmg.predict(model, x, likelihood=CategoricalLikelihood(), n_samples=2):
        assert value.device == DEVICE


def test_a_head_is_updated_on_the_device_of_its_model():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).to(DEVICE), torch.empty(5, 3, device=DEVICE)
    head = BayesianHead(model, GaussianLikelihood(2)).update(x, torch.empty(5, 2, device=DEVICE))
    assert head(x).device == DEVICE
    assert vmg.predict(head, x).std.device == DEVICE


def test_rows_are_taken_on_the_tables_device():
    table, index = torch.empty(6, 2, device="meta"), torch.tensor([[0, 1], [2, 3]])
    assert take_rows(table, index, own=False).device.type == "meta"
    assert take_rows(torch.empty(2, 6, 2, device="meta"), index, own=True).shape == (2, 2, 2)


def test_a_generator_of_the_cpu_serves_other_devices(monkeypatch):
    """Its numbers seed one of the device; that is asked for by its device alone, as no other is at hand."""
    asked = []

    class Recorder:
        def __init__(self, device):
            asked.append(device)

        def manual_seed(self, seed):
            asked.append(seed)
            return self

    generator = torch.Generator().manual_seed(0)
    assert on_device(generator, torch.device("cpu")) is generator
    monkeypatch.setattr(torch, "Generator", Recorder)
    other = torch.device("cuda", 0)
    on_device(generator, other)
    on_device(generator, other)
    assert asked[0] == asked[2] == other
    assert asked[1] != asked[3]


class CountWaits(TorchDispatchMode):
    """Counts whatever makes the host wait for a value; a tensor without values is said to hold ones."""

    n_waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.n_waits += 1
            return True if args[0].dtype is torch.bool else 1
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and kwargs.get("device") == torch.device("cpu"):
            self.n_waits += 1
            return torch.ones(args[0].shape, dtype=args[0].dtype)
        return func(*args, **(kwargs or {}))


def count_waits(n_steps):
    network, likelihood = MLP(3, (4,), 2, n_pseudo=2).to(DEVICE), CategoricalLikelihood()
    x, y = torch.empty(20, 3, device=DEVICE), torch.empty(20, dtype=torch.long, device=DEVICE)
    with CountWaits() as counting:
        train(network, likelihood, x, y, n_steps=n_steps, batch_size=5, report_every=100)
    return counting.n_waits


def test_the_trainer_waits_for_its_device_once_a_step():
    """It reads the bound, to go back where that is no number."""
    assert count_waits(9) - count_waits(4) == 5
