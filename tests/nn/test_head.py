"""The Bayesian output layer on any features: one pass or several, one network or replicas, any module."""

import copy

import pytest
import torch
from torch import nn

from vmg.math.evidence import NoisePrior, condition, row_statistics
from vmg.nn.head import BayesianHead


class Backbone(nn.Module):
    """A user's own features."""

    def __init__(self, n_in=3, n_features=5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 7), nn.Tanh(), nn.Linear(7, n_features), nn.SiLU())

    def forward(self, x):
        return self.layers(x)


class Replicas(nn.Module):
    """Several sets of random features in one module."""

    def __init__(self, n=2):
        super().__init__()
        self.directions = nn.Parameter(torch.randn(n, 3, 5, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x @ self.directions)


def rows(n=40, c=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, c, generator=generator, dtype=torch.float64)
    return x, x[:, :1] - x[:, 1:2].square() + 0.1 * noise


def make(c=1, **options):
    return BayesianHead(Backbone().double(), 5, c, **options)


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("full", [False, True])
def test_a_fit_in_batches_is_a_fit_at_once(n_outputs, full):
    head = make(n_outputs, noise_prior=NoisePrior(full=full))
    other = copy.deepcopy(head)
    x, y = rows(c=n_outputs)
    head.fit([(x, y)])
    other.fit([(x[:7], y[:7]), (x[7:31], y[7:31]), (x[31:], y[31:])])
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)
    for a, b in zip(head.statistics, other.statistics, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_an_update_is_a_fit_to_all_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    head.fit([(x[:20], y[:20])], learn_precision=False).update(x[20:], y[20:])
    other.fit([(x, y)], learn_precision=False)
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    head.fit([(x, y)], learn_precision=False)  # a new fit forgets
    assert head.count == 40


def test_weights_are_repeated_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    weight = torch.arange(40).remainder(3)
    head.update(x, y, weight)
    other.update(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b)


def test_the_posterior_is_that_of_linear_regression():
    head = make(bias=True)
    x, y = rows()
    head.fit([(x, y)])
    phi = torch.cat([head.features(x), torch.ones(40, 1).double()], -1).detach()
    expected = condition(row_statistics(phi, y), head.prior_precision().detach().double(), head.noise_prior)
    mean, noise, epistemic, df = head.predict(x)
    torch.testing.assert_close(mean, phi @ expected.mean)
    torch.testing.assert_close(noise[0], expected.noise_variance)
    torch.testing.assert_close(epistemic[:, 0], expected.relative_variance(phi) * expected.noise_variance)
    assert df == 2 * head.noise_prior.concentration + 40
    torch.testing.assert_close(head(x), mean)


def test_replicas_are_a_loop():
    features = Replicas()
    head = BayesianHead(features, 5, batch_shape=(2,))
    x, y = rows()
    head.fit([(x, y)], learn_precision=False)
    evidence = head.log_evidence(x, y)
    for i in range(2):
        alone = Replicas(1)
        with torch.no_grad():
            alone.directions.copy_(features.directions[i : i + 1])
        one = BayesianHead(nn.Sequential(alone, nn.Flatten(0, 1)), 5)
        one.fit([(x, y)], learn_precision=False)
        for a, b in zip(head.predict(x), one.predict(x), strict=True):
            torch.testing.assert_close(a[i], b)
        torch.testing.assert_close(evidence[i], one.log_evidence(x, y))


def test_a_users_network_learns_by_the_evidence():
    torch.manual_seed(0)
    head = make()
    x, y = rows(100)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    values = []
    for _ in range(100):
        optimiser.zero_grad()
        value = head.log_evidence(x, y) + head.log_prior()
        (-value).backward()
        optimiser.step()
        values.append(value.item())
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert values[-1] > values[0] + 50
    head.fit([(x, y)])
    x_new, y_new = rows(100, seed=1)
    assert (head(x_new) - y_new).square().mean() < 0.1 * y_new.var()


def test_the_evidence_is_differentiable():
    head = make()
    x, y = rows(12)

    def value(*parameters):
        named = dict(zip([name for name, _ in head.named_parameters()], parameters, strict=True))
        return torch.func.functional_call(head, named, (x, y), tie_weights=False)

    head.forward = head.log_evidence
    inputs = tuple(parameter.detach().double().requires_grad_() for parameter in head.parameters())
    assert torch.autograd.gradcheck(value, inputs)


def test_precisions_are_learned_by_the_evidence():
    torch.manual_seed(0)
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    best = head.log_evidence(x, y).item()
    for shift in (-0.5, 0.5):
        for group in range(len(head.group_sizes)):
            with torch.no_grad():
                head.log_precision[group] += shift
                assert head.log_evidence(x, y).item() <= best + 1e-4
                head.log_precision[group] -= shift


def test_the_joint_covariance_is_that_of_drawn_functions():
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    mean, covariance = head.joint(x[:4])
    _, _, epistemic, _ = head.predict(x[:4])
    torch.testing.assert_close(covariance[0].diagonal(), epistemic[:, 0])
    drawn = head.sample_functions(x[:4], 50_000, torch.Generator().manual_seed(0))[..., 0]
    spread = drawn.std(0)
    assert ((drawn.mean(0) - mean[:, 0]).abs() < 5 * spread / 50_000**0.5).all()
    error = 6 * torch.outer(spread, spread) / 50_000**0.5
    assert ((torch.cov(drawn.T) - covariance[0]).abs() < error).all()


def test_a_state_dict_keeps_what_was_seen():
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    other = make()
    other.load_state_dict(head.state_dict())
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        assert torch.equal(a, b)


def test_wrong_uses():
    with pytest.raises(ValueError, match=r"group_sizes must add up to n_features \(5\); got \(2, 2\)"):
        make(group_sizes=(2, 2))
    x, y = rows()
    with pytest.raises(ValueError, match="y must have 2 outputs"):
        make(2).log_evidence(x, y)
    with pytest.raises(ValueError, match="n_samples must be at least 1; got 0"):
        make().update(x, y).sample_functions(x, 0)
