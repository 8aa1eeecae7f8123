"""The divergence of what a layer with pseudo-data uses, and the bound that it makes."""

import itertools
import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import vmg
from reference import assert_close, matrix_normal
from vmg.likelihoods import KnownNoiseLikelihood
from vmg.nn import MLP, MatrixGaussianLinear, bayesianize, use_generator
from vmg.priors import FixedPrior, GammaPrior
from vmg.training import cosine, train

FAMILIES = ("diagonal", "rank_one", "dense")
IN, OUT, R = 4, 2, 5
QUIET = 1e-4  # a bound on √α that makes the noise of pseudo-data negligible

pytestmark = pytest.mark.filterwarnings("ignore:n_pseudo should be")
over_points = pytest.mark.parametrize("n_pseudo", [1, 3, R, R + 2])


def dense_posterior(layer, A, B):
    """q(W | Ã, B̃) as the Gaussian of vec(W), by Bayesian regression on explicit Kronecker products."""
    U, V = (part().to_dense() for part in (layer.row, layer.column))
    A = A / math.sqrt(R)
    eye = torch.eye(OUT, dtype=torch.float64)
    design, noise = torch.kron(eye, A), torch.kron(V, layer.damping * torch.eye(len(A), dtype=torch.float64))
    prior = torch.linalg.inv(torch.kron(V, U))
    precision = prior + design.mT @ torch.linalg.solve(noise, design)
    mean = torch.zeros(R * OUT, dtype=torch.float64) if layer.loc is None else layer.loc.mT.reshape(-1)
    mean = torch.linalg.solve(precision, prior @ mean + design.mT @ torch.linalg.solve(noise, B.mT.reshape(-1)))
    return MultivariateNormal(mean, precision_matrix=precision)


def make(perturb, **options):
    layer = MatrixGaussianLinear(IN, OUT, **{"kl": "conditional", "damping": 1e-3, "n_pseudo": 3, **options})
    return perturb(layer)


@over_points
@pytest.mark.parametrize("zero_mean", [False, True])
@pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))
def test_against_explicit_kronecker_products(perturb, row, column, zero_mean, n_pseudo):
    layer = make(perturb, row_covariance=row, column_covariance=column, zero_mean=zero_mean, n_pseudo=n_pseudo)
    data = layer.pseudo_data
    with torch.no_grad():
        A, B = data.sample()
        exact, found = dense_posterior(layer, A, B), layer.posterior_given(A, B)
        assert_close(found.loc.mT.reshape(-1), exact.mean, 1e-8)
        assert_close(found.covariance_matrix, exact.covariance_matrix, 1e-8)
        prior = MultivariateNormal(torch.zeros(R * OUT).double(), torch.eye(R * OUT).double())
        use_generator(layer, torch.Generator().manual_seed(3))
        A, B = data.sample((), layer.generator)
        use_generator(layer, torch.Generator().manual_seed(3))
        assert_close(layer.kl_divergence(), kl_divergence(dense_posterior(layer, A, B), prior), 1e-8)
        at_means = kl_divergence(layer.posterior_given(data.inputs, data.outputs), layer.posterior_given())
        assert at_means.abs() < 1e-8


def test_fixed_and_gamma_priors(perturb):
    layer = make(perturb)
    with torch.no_grad():
        A, B = layer.pseudo_data.sample()
        exact, q = dense_posterior(layer, A, B), layer.posterior_given(A, B)
        fixed = FixedPrior(torch.randn(R, OUT).double(), torch.rand(R).double() + 0.5, torch.rand(OUT).double() + 0.5)
        p = fixed.distribution
        reference = matrix_normal(p.loc, p.row_covariance.to_dense(), p.column_covariance.to_dense())
        found = fixed.kl_divergence(q.loc, q.row_covariance, q.column_covariance)
        assert_close(found, kl_divergence(exact, reference), 1e-8)
        energy = exact.mean.square().sum() + exact.covariance_matrix.trace()
        for prior in (GammaPrior(), GammaPrior(conjugate=False)):
            logdet = torch.logdet(exact.covariance_matrix)
            expected = prior.kl_of_energy(energy, R * OUT) - 0.5 * logdet
            assert_close(prior.kl_divergence(q.loc, q.row_covariance, q.column_covariance), expected, 1e-8)


def test_without_pseudo_data_both_are_one(perturb):
    conditional, marginal = (perturb(MatrixGaussianLinear(IN, OUT, kl=kl)) for kl in ("conditional", "marginal"))
    marginal.load_state_dict(conditional.state_dict())
    assert torch.equal(conditional.kl_divergence(), marginal.kl_divergence())
    with pytest.raises(ValueError, match="posterior_given needs a layer with pseudo-data; got n_pseudo=0"):
        conditional.posterior_given()


@pytest.mark.parametrize("n_pseudo", [3, R, 2 * R])
def test_single_precision_agrees_with_double(perturb, n_pseudo):
    layer = MatrixGaussianLinear(IN, OUT, n_pseudo=n_pseudo, kl="conditional", max_noise=QUIET)
    perturb(layer).float()
    values, gradients = [], []
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype).zero_grad()
        kl = layer.kl_divergence()
        kl.backward()
        assert kl.dtype == dtype
        values.append(kl.double())
        gradients.append(layer.pseudo_data.points.grad.double())
    torch.testing.assert_close(values[0], values[1], rtol=1e-2, atol=0)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=2e-2, atol=2e-2 * gradients[1].abs().max().item())


def test_options():
    assert "kl=conditional" in repr(MatrixGaussianLinear(3, 2, kl="conditional"))
    assert "kl" not in repr(MatrixGaussianLinear(3, 2))
    model = bayesianize(torch.nn.Sequential(torch.nn.Linear(6, 4)), n_pseudo=2, kl="conditional")
    assert model[0].kl == "conditional"


# -- the bound --------------------------------------------------------------------------------------------------------

N, NOISE = 12, 0.4


class LinearRegression:
    """y = x̂w + noise with w ~ N(0, I), solved exactly; the bound of a layer at given pseudo-data in closed form."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(N, IN, generator=generator, dtype=torch.float64)
        noise = torch.randn(N, 1, generator=generator, dtype=torch.float64)
        self.y = self.x[:, :1] - 0.5 * self.x[:, 1:2] + NOISE * noise
        self.A = torch.cat([self.x, torch.ones_like(self.y)], -1) / math.sqrt(R)
        eye = torch.eye(N, dtype=torch.float64)
        marginal = MultivariateNormal(torch.zeros(N).double(), self.A @ self.A.mT + NOISE**2 * eye)
        self.log_evidence = marginal.log_prob(self.y.squeeze(-1))
        precision = self.A.mT @ self.A / NOISE**2 + torch.eye(R).double()
        self.mean = torch.linalg.solve(precision, self.A.mT @ self.y / NOISE**2)
        self.best = torch.linalg.lstsq(self.A, self.y).solution
        self.likelihood = KnownNoiseLikelihood(NOISE).double()

    def fit(self, q):
        """E log p(y | W) under q(W)."""
        variance = q.row_covariance.quadratic(self.A) * q.column_covariance.diagonal()
        at_mean = self.likelihood.expected_log_prob(self.A @ q.loc, self.y).sum()
        return at_mean - 0.5 * variance.sum() / NOISE**2

    def bound(self, layer, A, B):
        q = layer.posterior_given(A, B)
        return self.fit(q) - layer.prior.kl_divergence(q.loc, q.row_covariance, q.column_covariance)


@over_points
@pytest.mark.parametrize("row", FAMILIES)
def test_never_above_the_evidence(row, n_pseudo):
    """At many posteriors: near the exact one, around it, and far away."""
    options = {"row_covariance": row, "n_pseudo": n_pseudo, "kl": "conditional", "damping": 1e-2}
    layer = MatrixGaussianLinear(IN, 1, **options).double()
    gaps = []
    for seed, distance in itertools.product(range(5), (0.0, 0.1, 0.5, 2.0)):
        problem = LinearRegression(seed)
        with torch.no_grad():
            layer.reset_parameters()
            layer.loc.copy_(problem.mean)
            layer.pseudo_data.inputs.copy_(math.sqrt(R) * problem.A[:n_pseudo])
            layer.pseudo_data.outputs.copy_(problem.A[:n_pseudo] @ problem.mean)
            for parameter in layer.parameters():
                parameter.add_(distance * torch.randn_like(parameter))
            for _ in range(5):
                gaps.append(problem.log_evidence - problem.bound(layer, *layer.pseudo_data.sample()))
    assert min(gaps) > 0


@pytest.mark.parametrize("n_pseudo", [3, R])
def test_the_papers_objective_is_above_the_evidence(n_pseudo):
    """Pseudo-data at the best fit, weights at the prior: nothing is charged, or all that is known."""
    problem = LinearRegression(1)
    layers = {}
    for kl in ("marginal", "conditional"):
        layer = layers[kl] = MatrixGaussianLinear(IN, 1, n_pseudo=n_pseudo, kl=kl, max_noise=QUIET).double()
        with torch.no_grad():
            _, _, directions = torch.linalg.svd(problem.A)
            layer.loc.zero_()
            layer.row.log_scale.zero_()
            layer.column.log_scale.zero_()
            layer.pseudo_data.inputs.copy_(10 * directions[:n_pseudo])
            layer.pseudo_data.outputs.copy_(10 / math.sqrt(R) * directions[:n_pseudo] @ problem.best)
    layer = layers["marginal"]
    fit = problem.fit(layer.posterior_given())
    paper = fit - layer.kl_divergence()
    assert layer.kl_divergence().abs() < 1e-4
    if n_pseudo == R:
        assert paper > problem.log_evidence + 5
    assert fit - layers["conditional"].kl_divergence() < problem.log_evidence - 10


def test_elbo_is_an_unbiased_estimate_of_the_bound():
    """Forward pass and divergence draw pseudo-data of their own."""
    problem = LinearRegression(2)
    network = MLP(IN, (), 1, n_pseudo=3, kl="conditional", max_noise=0.5, damping=0.1).double()
    layer = network.layers[0]
    with torch.no_grad():
        layer.pseudo_data.points.add_(torch.randn_like(layer.pseudo_data.points))
        drawn = [vmg.elbo(network, problem.likelihood, problem.x, problem.y, n_data=N).total * N for _ in range(1_000)]
        exact = [problem.bound(layer, *layer.pseudo_data.sample()) for _ in range(1_000)]
    drawn, exact = torch.stack(drawn), torch.stack(exact)
    error = math.sqrt((drawn.var() + exact.var()) / len(drawn))
    assert abs(drawn.mean() - exact.mean()) < 5 * error
    assert drawn.mean() < problem.log_evidence


@pytest.mark.parametrize("n_pseudo", [3, R])
def test_training_stays_below_where_the_papers_objective_does_not(n_pseudo):
    """The dense family holds the exact posterior, so the honest bound comes near the evidence."""
    problem = LinearRegression(3)
    reached = {}
    for kl in ("marginal", "conditional"):
        torch.manual_seed(0)
        options = {"n_pseudo": n_pseudo, "kl": kl, "row_covariance": "dense", "max_noise": QUIET, "damping": 1e-2}
        network = MLP(IN, (), 1, **options).double()
        generator = torch.Generator().manual_seed(1)
        settings = {"n_steps": 500, "batch_size": N, "learning_rate": 0.1, "schedule": cosine, "averaging": 0.99}
        train(network, problem.likelihood, problem.x, problem.y, generator=generator, **settings)
        layer = network.layers[0]
        with torch.no_grad():
            reached[kl] = (problem.fit(layer.posterior_given()) - layer.kl_divergence()).item()
    assert reached["marginal"] > problem.log_evidence + 2
    assert problem.log_evidence - 0.3 < reached["conditional"] <= problem.log_evidence + 1e-3
