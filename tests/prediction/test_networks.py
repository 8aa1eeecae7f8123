"""Draws of a network: outputs and whole functions."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

import vmg.prediction.networks
from reference import assert_moments
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP, BayesianHead, HeadEnsemble, add_lora, bayesianize, fixed_draw, replicate
from vmg.prediction import draw_functions


def test_many_samples_are_drawn_in_groups(monkeypatch):
    network, x, groups = MLP(3, (4,), 2, n_pseudo=2), torch.randn(5, 3), []
    original = MLP.sample_functions
    monkeypatch.setattr(MLP, "sample_functions", lambda self, n: groups.append(n) or original(self, n))
    monkeypatch.setattr(vmg.prediction.networks, "WEIGHTS_AT_ONCE", 3 * (4 * 4 + 5 * 2))
    assert draw_functions(network, x, 7, seed=0).shape == (7, 5, 2)
    assert groups == [3, 3, 1]


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_a_row_gets_the_same_functions_in_any_company(batch_shape, monkeypatch):
    network, x = MLP(3, (4,), 2, n_pseudo=2, batch_shape=batch_shape), torch.randn(7, 3)
    together = draw_functions(network, x, 5, seed=3)
    assert together.shape == (5, *batch_shape, 7, 2)
    assert together.dtype == torch.float64
    order = torch.tensor([4, 0, 6])
    torch.testing.assert_close(draw_functions(network, x[order], 5, seed=3), together[..., order, :])
    for limit in (1, 20):
        monkeypatch.setattr(vmg.prediction.networks, "NUMBERS_AT_ONCE", limit)
        torch.testing.assert_close(draw_functions(network, x, 5, seed=3), together)
    assert (draw_functions(network, x, 5, seed=4) != together).all()


def test_memory_of_functions_does_not_grow_with_replicas(monkeypatch):
    sizes = []
    network = MLP(3, (1,), 1, batch_shape=(4,), activation=lambda h: sizes.append(h.shape[-2]) or h)
    monkeypatch.setattr(vmg.prediction.networks, "NUMBERS_AT_ONCE", 40)
    draw_functions(network, torch.randn(5, 3), 5, seed=0)
    assert sizes == [2, 2, 1]


def test_drawing_functions_leaves_the_network_as_it_is():
    network = MLP(3, (4,), 2, n_pseudo=2)
    generator = torch.Generator().manual_seed(1)
    network.layers[0].generator = generator
    before, state = [p.clone() for p in network.parameters()], generator.get_state()
    draw_functions(network, torch.randn(5, 3), 3, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), before, strict=True))
    assert all(p.dtype == torch.float32 for p in network.parameters())
    assert network.layers[0].generator is generator
    assert torch.equal(generator.get_state(), state)


def test_a_drawn_function_is_one_function():
    """Without hidden layers each draw is affine: the value between two points lies between their values."""
    network, (a, b) = MLP(3, (), 2, n_pseudo=2), torch.randn(2, 3, dtype=torch.float64)
    values = draw_functions(network, torch.stack([a, b, 0.25 * a + 0.75 * b]), 5, seed=0)
    torch.testing.assert_close(values[:, 2], 0.25 * values[:, 0] + 0.75 * values[:, 1])


def test_functions_have_the_joint_distribution_of_the_layer(perturb):
    """One layer without pseudo-data: f(x) of all rows is N(x̂M, (x̂Ux̂ᵀ) V)."""
    network, x = perturb(MLP(2, (), 1)), torch.randn(3, 2, dtype=torch.float64)
    with torch.no_grad():
        exact = network.layers[0].predictive(x)
        mean, covariance = exact.mean[:, 0], (exact.row_covariance.to_dense() * exact.column_covariance.to_dense())
    assert_moments(draw_functions(network, x, 20_000, seed=0)[..., 0], mean, covariance)


# -- questions that predictions of tables answer too ------------------------------------------------------------------


MODELS = {
    "converted": lambda net, x, y: bayesianize(net, initial_scale=0.5),
    "lora": lambda net, x, y: add_lora(net, initial_scale=0.5),
    "replicas": lambda net, x, y: replicate(net, 4),
    "head": lambda net, x, y: BayesianHead(net).fit(x, y),
    "heads": lambda net, x, y: HeadEnsemble([net, copy.deepcopy(net)]).fit(x, y),
    "a model and replicas": lambda net, x, y: [add_lora(net, initial_scale=0.5), replicate(net, 4)],
}


@pytest.mark.parametrize("kind", MODELS)
def test_predictions_of_numbers_answer_as_those_of_tables(kind):
    x, net = torch.randn(60, 3), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
    y = x[:, :2].sin() + 0.1 * torch.randn(60, 2)
    model, likelihood = MODELS[kind](net, x, y), None if "head" in kind else KnownNoiseLikelihood(0.3)
    if kind == "converted":
        likelihood = GaussianLikelihood(2)
        vmg.elbo(model, likelihood, x, y, n_data=60)
    found = vmg.predict(model, x, likelihood=likelihood, n_samples=20)
    middle, ends = found.quantile(0.5), found.interval(0.8)
    assert middle.shape == (60, 2) and ends.shape == (60, 2, 2)
    torch.testing.assert_close(found.cdf(ends[..., 0]), torch.full((60, 2), 0.1, dtype=torch.float64))
    torch.testing.assert_close(found.probability(above=ends[..., 1]), torch.full((60, 2), 0.1, dtype=torch.float64))
    step = 1e-4 * torch.eye(2)[0]
    slope = (found.cdf(middle + step) - found.cdf(middle - step))[:, 0] / 2e-4
    one = found.distribution()
    one = dataclasses.replace(one, loc=one.loc[..., :1], scale=one.scale[..., :1], df=one.df[..., :1])
    torch.testing.assert_close(slope, torch.as_tensor(one.log_prob(middle[:, 0])).exp(), rtol=1e-4, atol=1e-6)
    drawn = found.sample(4_000, 0)
    assert drawn.shape == (4_000, 60, 2)
    inside = ((drawn >= ends[..., 0]) & (drawn <= ends[..., 1])).double().mean()
    assert inside.item() == pytest.approx(0.8, abs=0.02)
    assert found.log_prob(middle).shape == (60,)


def test_densities_are_those_of_the_drawn_functions():
    model, x = bayesianize(nn.Linear(3, 1), initial_scale=0.5), torch.randn(5, 3)
    torch.manual_seed(1)
    found = vmg.predict(model, x, likelihood=KnownNoiseLikelihood(0.3), n_samples=6)
    torch.manual_seed(1)
    with torch.no_grad(), fixed_draw(model, 6) as draws:
        f = torch.stack([model(x) for _ in draws]).double()
    y = torch.randn(5, 1).double()
    expected = torch.distributions.Normal(f, 0.3).log_prob(y).logsumexp(0).squeeze(-1) - math.log(6)
    torch.testing.assert_close(found.log_prob(y), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_predictions_of_classes_have_their_entropies(kind):
    x, net = torch.randn(60, 3), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
    y = net(x).argmax(-1)
    found = vmg.predict(MODELS[kind](net, x, y), x, likelihood=CategoricalLikelihood(), n_samples=20)
    total = torch.special.entr(found.mean).sum(-1)
    torch.testing.assert_close(found.predictive_entropy.to(total), total, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.mutual_information, found.predictive_entropy - found.expected_entropy)
    assert found.mutual_information.min() > 0
    assert torch.equal(found.label, found.mean.argmax(-1))
    log_prob = found.mean.gather(-1, y[:, None]).squeeze(-1).log()
    torch.testing.assert_close(found.log_prob(y).to(log_prob), log_prob, rtol=1e-4, atol=1e-5)


def test_tokens_are_rows_of_the_distribution():
    model = bayesianize(nn.Linear(3, 2))
    found = vmg.predict(model, torch.randn(4, 5, 3), likelihood=CategoricalLikelihood(), n_samples=3)
    assert found.mean.shape == (4, 5, 2)
    assert found.mutual_information.shape == (20,)


@pytest.mark.parametrize("n_classes", [3, 400])
def test_heads_over_a_vocabulary_predict_tokens(n_classes):
    x, y = torch.randn(12, 5, 4), torch.randint(n_classes, (12, 5))
    head = BayesianHead(nn.Linear(4, n_classes)).fit(x, y)
    found = vmg.predict(head, x, n_samples=400, batch_size=4)
    assert found.mean.shape == (12, 5, n_classes)
    rows = vmg.predict(head, x.flatten(0, 1), n_samples=400)
    torch.testing.assert_close(found.mean.flatten(0, 1), rows.mean, atol=0.1, rtol=0)


def test_questions_without_draws_are_refused(monkeypatch):
    model, x = bayesianize(nn.Linear(3, 2)), torch.randn(5, 3)
    with pytest.raises(ValueError, match="the distribution needs draws with a known noise"):
        vmg.predict(model, x, n_samples=3).interval()
    monkeypatch.setattr(vmg.prediction.networks, "DRAWS_KEPT", 29)
    found = vmg.predict(model, x, likelihood=CategoricalLikelihood(), n_samples=3)
    with pytest.raises(ValueError, match="at most 29 numbers"):
        _ = found.mutual_information
    assert copy.deepcopy(found).std.shape == (5, 2)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vmg.predict(model, x[:1], likelihood=CategoricalLikelihood(), n_samples=3).nothing
