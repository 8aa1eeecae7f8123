"""The objective: its bookkeeping, and the bounds among its forms against exact evidence."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import vmg
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.math.evidence import log_evidence
from vmg.nn import (
    MLP,
    BayesianHead,
    MatrixGaussianLinear,
    bayesianize,
    fixed_draw,
    kl_divergence,
    use_generator,
)
from vmg.nn.mlp import Elementwise
from vmg.objective import collapsed_elbo, elbo
from vmg.priors import GammaPrior, IsotropicPrior
from vmg.training import cosine, train

N, D, NOISE = 12, 3, 0.4
FAMILIES = ("diagonal", "rank_one", "dense")


class LinearRegression:
    """y = x̂w + noise with w ~ N(0, scale² I), solved exactly."""

    def __init__(self, scale=1.0):
        self.x = torch.randn(N, D, dtype=torch.float64)
        self.y = self.x[:, :1] - 0.5 * self.x[:, 1:2] + NOISE * torch.randn(N, 1, dtype=torch.float64)
        A = torch.cat([self.x, torch.ones_like(self.y)], -1) / math.sqrt(D + 1)
        eye, identity = torch.eye(N, dtype=torch.float64), torch.eye(D + 1, dtype=torch.float64)
        marginal = MultivariateNormal(torch.zeros(N).double(), scale**2 * A @ A.mT + NOISE**2 * eye)
        self.log_evidence = marginal.log_prob(self.y.squeeze(-1))
        self.covariance = torch.linalg.inv(A.mT @ A / NOISE**2 + identity / scale**2)
        self.mean = self.covariance @ A.mT @ self.y / NOISE**2
        self.likelihood = KnownNoiseLikelihood(NOISE).double()

    def bound(self, network, likelihood=None):
        """The bound on the log evidence with the expectations over f and the noise in closed form."""
        (layer,) = network.layers
        precision = NOISE**-2 if likelihood is None else likelihood.posterior.mean.squeeze()
        likelihood = self.likelihood if likelihood is None else likelihood
        variance = layer.kernel(self.x, full=True).diagonal()
        at_mean = likelihood.expected_log_prob(layer.forward_mean(self.x), self.y).sum()
        kl = kl_divergence(network) + likelihood.kl_divergence()
        return (at_mean - 0.5 * precision * variance.sum() - kl).detach()


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("column", FAMILIES)
@pytest.mark.parametrize("row", FAMILIES)
def test_bound_never_exceeds_the_evidence(row, column, scale):
    """At many posteriors: near the exact one, around it, and far away."""
    problem = LinearRegression(scale)
    options = {"row_covariance": row, "column_covariance": column, "prior": IsotropicPrior(scale)}
    network = MLP(D, (), 1, **options).double()
    for distance in (0.0, 0.01, 0.1, 0.5, 1.0, 2.0):
        for _ in range(5):
            with torch.no_grad():
                network.layers[0].reset_parameters()
                network.layers[0].loc.copy_(problem.mean)
                for parameter in network.parameters():
                    parameter.add_(distance * torch.randn_like(parameter))
            assert problem.bound(network) <= problem.log_evidence


@pytest.mark.parametrize("sampling", ["marginal", "joint", "weights"])
def test_elbo_estimates_the_bound(perturb, sampling):
    """N times the mean of many draws against the closed form, within five standard errors."""
    problem = LinearRegression()
    network = perturb(MLP(D, (), 1, row_covariance="dense", sampling=sampling))
    with torch.no_grad():
        x, y = problem.x[:4], problem.y[:4]  # joint draws of few rows need no jitter
        problem.x, problem.y = x, y
        terms = [vmg.elbo(network, problem.likelihood, x, y, n_data=4) for _ in range(1_000)]
        totals = 4 * torch.stack([t.total for t in terms])
        error = totals.std() / math.sqrt(len(totals))
        assert abs(totals.mean() - problem.bound(network)) < 5 * error


def test_training_finds_the_exact_posterior():
    """With one output and a dense U the family holds the exact posterior, so the bound becomes the evidence."""
    problem = LinearRegression()
    network = MLP(D, (), 1, row_covariance="dense").double()
    start = problem.bound(network)
    generator = torch.Generator().manual_seed(1)
    options = {"n_steps": 1_500, "batch_size": N, "learning_rate": 0.05, "schedule": cosine, "averaging": 0.99}
    train(network, problem.likelihood, problem.x, problem.y, generator=generator, **options)
    bound = problem.bound(network)
    assert bound <= problem.log_evidence
    assert problem.log_evidence - start > 10, "there was something to learn"
    assert problem.log_evidence - bound < 0.05

    posterior, std = network.layers[0].posterior, problem.covariance.diagonal().sqrt()
    U = posterior.row_covariance.to_dense() * posterior.column_covariance.to_dense()
    assert ((posterior.loc - problem.mean).squeeze(-1) / std).abs().max() < 0.1
    assert ((U - problem.covariance) / (std[:, None] * std)).abs().max() < 0.15


# -- bookkeeping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_pseudo", [0, 2])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_kl_is_a_sum_over_weights_divided_by_n(perturb, n_pseudo, batch_shape):
    network = perturb(MLP(3, (4,), 2, n_pseudo=n_pseudo, batch_shape=batch_shape, prior=GammaPrior()))
    likelihood = GaussianLikelihood(2, batch_shape=batch_shape, concentration=2.0).double().eval()
    with torch.no_grad():
        likelihood.log_rate.add_(1)
    x, y = torch.randn(5, 3).double(), torch.randn(5, 2).double().expand(*batch_shape, 5, 2)
    for n_data in (5, 500.0):
        terms = vmg.elbo(network, likelihood, x, y, n_data=n_data)
        expected = sum(layer.kl_divergence() for layer in network.layers) + likelihood.kl_divergence()
        torch.testing.assert_close(terms.kl * n_data, expected)
        torch.testing.assert_close(expected, kl_divergence(network) + likelihood.kl_divergence())
        assert (likelihood.kl_divergence() > 0).all()
        assert terms.kl.shape == terms.expected_log_likelihood.shape == terms.total.shape == batch_shape
        assert torch.equal(terms.total, terms.expected_log_likelihood - terms.kl)


def test_kl_weight_scales_the_kl_alone():
    network, x, y = MLP(3, (4,), 1), torch.randn(5, 3), torch.randn(5, 1)
    terms = []
    for kl_weight in (1.0, 0.25):
        use_generator(network, torch.Generator().manual_seed(1))
        terms.append(vmg.elbo(network, KnownNoiseLikelihood(1.0), x, y, n_data=9, kl_weight=kl_weight))
    assert torch.equal(terms[0].expected_log_likelihood, terms[1].expected_log_likelihood)
    torch.testing.assert_close(0.25 * terms[0].kl, terms[1].kl)


def test_works_with_any_module():
    model = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    use_generator(model, torch.Generator().manual_seed(1))
    terms = vmg.elbo(model, CategoricalLikelihood(), x, y, n_data=60)
    use_generator(model, torch.Generator().manual_seed(1))
    torch.testing.assert_close(terms.expected_log_likelihood, -nn.functional.cross_entropy(model(x), y))
    torch.testing.assert_close(terms.kl, (model[0].kl_divergence() + model[2].kl_divergence()) / 60)


KNOWN = {"likelihood": KnownNoiseLikelihood(1.0)}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"y": torch.zeros(5)}, TypeError, "y must hold integer classes, as y.long.. does; got torch.float32"),
        ({"y": torch.tensor([0, 1, 2, 3, 9])}, ValueError, "classes from 0 to 2, one for each output .*; got 0 to 9"),
        ({"y": torch.tensor([0, 1, 2, 0, -1])}, ValueError, "classes from 0 to 2, .*; got -1 to 2"),
        ({"y": [0, 1, 2, 0, 1]}, TypeError, "y must be a tensor; got list"),
        ({"n_data": 0}, ValueError, "n_data must be positive, the number of rows in the training set; got 0"),
        ({"n_data": math.nan}, ValueError, "n_data must be positive"),
        ({"n_data": torch.tensor([5.0, -1.0])}, ValueError, "n_data must be positive"),
        ({"likelihood": CategoricalLikelihood}, TypeError, "an object .*; got the class CategoricalLikelihood"),
        ({"likelihood": nn.CrossEntropyLoss()}, TypeError, "likelihood must be an object .*; got CrossEntropyLoss"),
        (KNOWN | {"y": torch.full((5, 3), math.nan)}, ValueError, "y must be finite; got NaN or infinite values"),
        (
            KNOWN | {"y": torch.zeros(5)},
            ValueError,
            r"y must have the shape of the network's output, \(5, 3\); got \(5,\)",
        ),
        ({"network": nn.Linear(2, 3)}, ValueError, "holds no Bayesian layer"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_in_one_line(changes, error, message):
    given = {"network": MatrixGaussianLinear(2, 3), "likelihood": CategoricalLikelihood(), "n_data": 5}
    given |= {"y": torch.zeros(5, dtype=torch.long)} | changes
    with pytest.raises(error, match=message):
        elbo(x=torch.zeros(5, 2), **given)


@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_the_tokens_of_a_row_are_one_datum(kind, n_samples):
    """The objective of N sequences of T tokens, per sequence, is T times that of NT rows, per row."""
    layer, T = MatrixGaussianLinear(2, 3, sampling="weights"), 4
    x, weight = torch.randn(5, T, 2), torch.rand(5)
    y = torch.randint(3, (5, T)) if kind == "classes" else torch.randn(5, T, 3)
    likelihoods = [CategoricalLikelihood() if kind == "classes" else GaussianLikelihood(3) for _ in range(3)]
    found = []
    with fixed_draw(layer):
        for likelihood, rows, n_data, options in zip(
            likelihoods,
            [(x, y), (x, y), (x.flatten(0, 1), y.flatten(0, 1))],
            [10, 10, 10 * T],
            [weight, weight[:, None].expand(5, T), weight.repeat_interleave(T)],
            strict=True,
        ):
            found.append(elbo(layer, likelihood, *rows, n_data=n_data, weight=options, n_samples=n_samples).total)
    assert all(total.shape == () for total in found)
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], T * found[2])
    for a, b in zip(likelihoods[0].state_dict().values(), likelihoods[2].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


# -- conjugate updates against gradients ------------------------------------------------------------------------------


def test_conjugate_updates_reach_the_bound_of_gradients():
    """The noise and the prior's precisions: optimal in closed form, or learned as in the paper."""
    problem = LinearRegression()
    bounds = {}
    for noise, prior in ((False, False), (True, False), (False, True)):
        network = MLP(D, (), 1, prior=GammaPrior(conjugate=prior)).double()
        likelihood = GaussianLikelihood(concentration=2.0, rate=0.5, conjugate=noise).double()
        options = {"n_steps": 500, "batch_size": N, "learning_rate": 0.1, "schedule": cosine, "averaging": 0.99}
        train(network, likelihood, problem.x, problem.y, generator=torch.Generator().manual_seed(1), **options)
        bounds[noise, prior] = problem.bound(network, likelihood).item()
    assert bounds[True, False] == pytest.approx(bounds[False, False], abs=0.1)
    assert bounds[False, True] == pytest.approx(bounds[False, False], abs=0.1)


LIKELIHOOD = GaussianLikelihood(concentration=2.0, rate=0.5)


def standardised(y):
    """Targets of the variance one, in whose units a head takes the rate of its noise."""
    return (y - y.mean(0)) / y.std(0, correction=0)


def hidden_stack(n_in, sizes, **options):
    """Matrix Gaussian hidden layers as a module that makes features."""
    layers = MLP(n_in, sizes[:-1], sizes[-1], activation="tanh", sampling="weights", prior=IsotropicPrior(), **options)
    return nn.Sequential(layers, Elementwise(torch.tanh))


def tiny_head(seed, n_units=2):
    torch.manual_seed(seed)
    head = BayesianHead(hidden_stack(1, (n_units,)), likelihood=LIKELIHOOD, n_features=n_units).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    x = torch.randn(6, 1, dtype=torch.float64)
    return head, x, standardised(torch.sin(2 * x) + 0.3 * torch.randn_like(x))


def evidence_by_sampling(head, x, y, n_samples):
    """log p(y) with hidden weights drawn from their prior, and its standard error."""
    layer = head.features[0].layers[0]
    with torch.no_grad():
        hidden = torch.tanh(layer.apply_weight(x, layer.sample_prior_weight((n_samples,))))
        phi = torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)
        values = log_evidence(phi, y, head.output.prior_precision(), prior=LIKELIHOOD.noise_prior())
        peak = values.max()
        ratios = (values - peak).exp()
    return (peak + ratios.mean().log()).item(), (ratios.std() / ratios.mean() / math.sqrt(n_samples)).item()


def bound_by_sampling(head, x, y, n_samples):
    with torch.no_grad():
        draws = torch.stack([collapsed_elbo(head, x, y).total for _ in range(n_samples)]) * len(x)
    return draws.mean().item(), (draws.std() / math.sqrt(n_samples)).item()


def test_linear_models_have_their_exact_log_evidence():
    torch.manual_seed(0)
    x, y = torch.randn(9, 3, dtype=torch.float64), standardised(torch.randn(9, 2, dtype=torch.float64))
    likelihood = GaussianLikelihood(2, concentration=2.0, rate=0.5)
    head = BayesianHead(nn.Identity(), likelihood, n_features=3).double()
    phi = torch.cat([x, torch.ones(9, 1, dtype=torch.float64)], -1)
    exact = log_evidence(phi, y, torch.ones(4, dtype=torch.float64), prior=LIKELIHOOD.noise_prior())
    terms = collapsed_elbo(head, x, y)
    assert terms.kl.item() == 0.0
    torch.testing.assert_close(terms.total * 9, exact)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_it_never_exceeds_the_evidence_of_a_tiny_network(start):
    for seed in range(start, start + 20):
        head, x, y = tiny_head(seed)
        evidence, evidence_error = evidence_by_sampling(head, x, y, 4000)
        bound, bound_error = bound_by_sampling(head, x, y, 40)
        assert bound <= evidence + 4 * (evidence_error + bound_error)


def test_training_brings_it_close_to_the_evidence():
    head, x, y = tiny_head(3)
    evidence, _ = evidence_by_sampling(head, x, y, 20_000)
    before, _ = bound_by_sampling(head, x, y, 200)
    hidden = list(head.features.parameters())  # precisions stay, so that the evidence does
    optimiser = torch.optim.Adam(hidden, lr=0.03)
    for _ in range(400):
        optimiser.zero_grad()
        (-collapsed_elbo(head, x, y).total).backward()
        optimiser.step()
    after, error = bound_by_sampling(head, x, y, 400)
    assert before < after <= evidence + 4 * error
    assert evidence - after < 1.0


def test_weights_repeat_rows():
    torch.manual_seed(1)
    head = BayesianHead(hidden_stack(2, (3,)), LIKELIHOOD, n_features=3).double()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    counts = torch.tensor([1, 2, 0, 3, 1])
    torch.manual_seed(5)
    weighted = collapsed_elbo(head, x, y, weight=counts.double())
    torch.manual_seed(5)
    repeated = collapsed_elbo(head, x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    torch.testing.assert_close(weighted.total, repeated.total)
    torch.testing.assert_close(weighted.kl * 7, repeated.kl * 7)
