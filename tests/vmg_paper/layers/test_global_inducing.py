"""Global inducing points: the posterior, its divergence, and the bound on exactly solvable models."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import vmg
from reference import assert_close, normal
from vmg.likelihoods import KnownNoiseLikelihood
from vmg.math.preactivations import augment
from vmg.nn import use_generator
from vmg.training import cosine, train
from vmg_paper.layers import GlobalInducingMLP
from vmg_paper.layers.global_inducing import induced_posterior

P, R, C = 6, 4, 2
N, IN, NOISE = 10, 3, 0.5


def explicit(features, outputs, precision):
    """The posterior of each column, a Gaussian of its own."""
    Sigma = torch.linalg.inv(torch.eye(features.shape[-1]).double() + features.mT @ precision.diag() @ features)
    return [MultivariateNormal(Sigma @ features.mT @ (precision * v), Sigma) for v in outputs.mT]


def problem():
    return normal(P, R, seed=1), normal(P, C, seed=2), normal(P, seed=3).exp()


def test_posterior_and_divergence_against_explicit_matrices():
    q, columns = induced_posterior(*problem()), explicit(*problem())
    prior = MultivariateNormal(torch.zeros(R).double(), torch.eye(R).double())
    root = torch.stack([(q.sample(unit.unsqueeze(-1)) - q.mean)[:, 0] for unit in torch.eye(R).double()], -1)
    for c, column in enumerate(columns):
        assert_close(q.mean[:, c], column.mean)
        assert_close(root @ root.mT, column.covariance_matrix)
    assert_close(q.kl_divergence(), sum(kl_divergence(column, prior) for column in columns))


def test_without_precision_the_posterior_is_the_prior():
    features, outputs, precision = problem()
    assert induced_posterior(features, outputs, 1e-12 * precision).kl_divergence().abs() < 1e-9


def make(perturb, hidden=(4, 3), **options):
    return perturb(GlobalInducingMLP(IN, hidden, 2, **{"n_inducing": 5, "activation": "tanh", **options}))


def test_gradients_of_a_draw(perturb):
    network, x = make(perturb), normal(N, IN, seed=1)
    names, parameters = zip(*network.named_parameters(), strict=True)

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self):
            use_generator(network, torch.Generator().manual_seed(0))
            drawn = network.sample_weights()
            return drawn.kl, network.apply_weights(drawn.weights, x)

    def values(*tensors):
        named = {f"network.{name}": value for name, value in zip(names, tensors, strict=True)}
        return torch.func.functional_call(Both(), named)

    assert torch.autograd.gradcheck(values, [p.detach().clone().requires_grad_() for p in parameters])


def test_a_draw_carries_the_inducing_points_along(perturb):
    """Each layer's divergence is that of its posterior at what the drawn layers below made of the points."""
    network, x = make(perturb, batch_shape=(2,)), normal(N, IN, seed=1)
    drawn = network.sample_weights()
    outputs = network.apply_weights(drawn.weights, x)
    for k in range(2):  # replicas are a loop
        h, f, total = network.inducing_inputs[k], x, 0.0
        for number, W in enumerate(drawn.weights):
            features, f = (augment(rows.tanh() if number else rows) for rows in (h, f))
            scale = network.log_prior_scales[number][k].exp()
            v, log_precision = network.pseudo_outputs[number][k], network.log_precisions[number][k]
            columns = explicit((scale * features).detach(), v.detach(), log_precision.exp().detach())
            prior = MultivariateNormal(torch.zeros(features.shape[-1]).double(), torch.eye(features.shape[-1]).double())
            total = total + sum(kl_divergence(column, prior) for column in columns)
            h, f = features @ W[k], f @ W[k]
        assert_close(drawn.kl[k].detach(), total)
        assert_close(outputs[k], f)


# -- bounds on the linear model ---------------------------------------------------------------------------------------


class LinearRegression:
    """y = x̂w + noise with w ~ N(0, scale² I), one layer, solved exactly."""

    def __init__(self, seed=1, scale=1.0):
        self.x, self.y = normal(N, IN, seed=seed), normal(N, 1, seed=seed + 100)
        self.A = augment(self.x)
        eye = torch.eye(N, dtype=torch.float64)
        marginal = MultivariateNormal(torch.zeros(N).double(), scale**2 * self.A @ self.A.mT + NOISE**2 * eye)
        self.log_evidence = marginal.log_prob(self.y.squeeze(-1))
        self.likelihood = KnownNoiseLikelihood(NOISE).double()

    def bound(self, network):
        """The bound with the expectation over the weights in closed form."""
        [v], [log_precision] = network.pseudo_outputs, network.log_precisions
        scale = network.log_prior_scales[0].exp()
        q = induced_posterior(scale * augment(network.inducing_inputs), v, log_precision.exp())
        variance = torch.linalg.solve_triangular(q.root, scale * self.A.mT, upper=False).square().sum()
        at_mean = self.likelihood.expected_log_prob(scale * self.A @ q.mean, self.y).sum()
        return (at_mean - 0.5 * variance / NOISE**2 - q.kl_divergence()).detach()


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_with_the_data_as_inducing_points_the_bound_is_the_evidence(scale):
    exact = LinearRegression(scale=scale)
    network = GlobalInducingMLP(IN, (), 1, n_inducing=N).double()
    torch.nn.init.constant_(network.log_prior_scales[0], math.log(scale))
    network.start_at(exact.x, exact.y)
    torch.nn.init.constant_(network.log_precisions[0], -2 * math.log(NOISE))
    assert_close(exact.bound(network), exact.log_evidence)


@pytest.mark.parametrize("n_inducing", [1, 3, N])
def test_never_above_the_evidence(n_inducing):
    for seed in range(20):
        exact = LinearRegression(seed)
        network = GlobalInducingMLP(IN, (), 1, n_inducing=n_inducing).double()
        for distance in (0.0, 0.1, 1.0):
            network.start_at(exact.x[:n_inducing], exact.y[:n_inducing])
            with torch.no_grad():
                for parameter in filter(lambda one: one.requires_grad, network.parameters()):
                    parameter.add_(distance * torch.randn_like(parameter))
            assert exact.bound(network) < exact.log_evidence


def test_elbo_estimates_the_bound(perturb):
    exact = LinearRegression()
    network = perturb(GlobalInducingMLP(IN, (), 1, n_inducing=4))
    with torch.no_grad():
        terms = [vmg.elbo(network, exact.likelihood, exact.x, exact.y, n_data=N).total * N for _ in range(500)]
    totals = torch.stack(terms)
    assert abs(totals.mean() - exact.bound(network)) < 5 * totals.std() / math.sqrt(len(totals))


@pytest.mark.parametrize("learn_prior", [False, True])
def test_training_reaches_the_evidence(learn_prior):
    exact = LinearRegression()
    network = GlobalInducingMLP(IN, (), 1, n_inducing=IN + 1, learn_prior=learn_prior).double()
    network.start_at(exact.x[: IN + 1], exact.y[: IN + 1])
    options = {"n_steps": 600, "batch_size": N, "learning_rate": 0.1, "schedule": cosine, "averaging": 0.99}
    train(network, exact.likelihood, exact.x, exact.y, generator=torch.Generator().manual_seed(0), **options)
    if learn_prior:  # of all scales of the prior the evidence is the largest at the learned one
        evidences = [LinearRegression(scale=float(scale)).log_evidence for scale in torch.linspace(0.1, 3, 60)]
        exact = LinearRegression(scale=network.log_prior_scales[0].exp().item())
        assert exact.log_evidence > max(evidences) - 0.05
    assert exact.log_evidence - 0.1 < exact.bound(network) <= exact.log_evidence


# -- the module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_shape", [(), (2,), (3, 2)])
def test_shapes(batch_shape):
    network, x = GlobalInducingMLP(IN, (4,), 2, n_inducing=5, batch_shape=batch_shape), torch.randn(N, IN)
    assert network(x).shape == (*batch_shape, N, 2)
    assert vmg.nn.kl_divergence(network).shape == batch_shape
    functions = network.sample_functions(4)
    assert torch.equal(functions(x), functions(x))
    torch.testing.assert_close(functions(x)[..., :2, :], functions(x[:2]))


def test_a_fixed_draw_is_one_function():
    network, x = GlobalInducingMLP(IN, (4,), 2, n_inducing=5, batch_shape=(3,)), torch.randn(N, IN)
    with vmg.nn.fixed_draw(network, 2) as draws:
        first, second = (network(x) for _ in draws)
        assert torch.equal(network(x), second)
    assert not torch.equal(first, second)
    assert network.drawn is None
    assert vmg.sample_functions(network, 4, prior=True)(x).shape == (4, 3, N, 2)


def test_the_generator_decides_alone(perturb):
    network, x = make(perturb), normal(N, IN, seed=1)
    drawn = []
    for seed in (1, 1, 2):
        use_generator(network, torch.Generator().manual_seed(seed))
        drawn.append((network(x), network.kl_divergence()))
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])
    assert not torch.equal(drawn[0][0], drawn[2][0])
    states = []
    for _ in range(2):
        network.reset_parameters(torch.Generator().manual_seed(1))
        states.append([value.clone() for value in network.state_dict().values()])
    assert all(map(torch.equal, *states))


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="n_inducing must be at least 1; got 0"):
        GlobalInducingMLP(3, (4,), 1, n_inducing=0)
    with pytest.raises(ValueError, match="activation must be one of"):
        GlobalInducingMLP(3, (4,), 1, n_inducing=2, activation="step")
    with pytest.raises(ValueError, match=r"y must have shape \(2, 1\); got \(2,\)"):
        GlobalInducingMLP(3, (4,), 1, n_inducing=2).start_at(torch.ones(2, 3), torch.ones(2))
