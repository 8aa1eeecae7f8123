import itertools
import math

import pytest
import torch
from scipy import stats
from torch.distributions import Gamma, MultivariateNormal, Normal, StudentT, Wishart, kl_divergence
from torch.func import functional_call

from reference import assert_close, assert_expectation, gamma_nodes, members, normal
from vmg.likelihoods import (
    CategoricalLikelihood,
    FullCovarianceLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
    Likelihood,
)

N, C = 7, 3


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def data(*leading, n=N, c=C, seed=0):
    """Outputs f and targets y [*leading, n, c]."""
    return normal(*leading, n, c, seed=seed + 1), normal(*leading, n, c, seed=seed + 2)


def gaussian(a, b, **prior):
    """A gradient-version likelihood whose posterior is Gamma(a, b)."""
    likelihood = GaussianLikelihood(len(a), conjugate=False, **prior)
    with torch.no_grad():
        likelihood.log_concentration.copy_(a.log())
        likelihood.log_rate.copy_(b.log())
    return likelihood


def updated(likelihood, *leading, n=N, c=C, seed=0):
    """The likelihood after one conjugate update, away from its prior."""
    f, y = data(*leading, n=n, c=c, seed=seed)
    likelihood.update_(f, y, n)
    return likelihood


def updated_by(likelihood, f, y):
    """The likelihood after one conjugate update from the given data."""
    likelihood.update_(f, y, f.shape[-2])
    return likelihood


def assert_same_gamma(one, other):
    assert_close(one.concentration, other.concentration)
    assert_close(one.rate, other.rate)


def wishart(df, rate_matrix):
    """W(df, rate_matrix⁻¹)."""
    return Wishart(df, precision_matrix=rate_matrix)


A, B = torch.tensor([2.5, 4.0, 1.2], dtype=torch.float64), torch.tensor([1.3, 0.7, 3.0], dtype=torch.float64)


# Gaussian noise with a Gamma posterior on its precision


def test_expected_log_prob_against_quadrature():
    f, y = data()
    expected = torch.zeros(N)
    for c in range(C):
        tau, weight = gamma_nodes(A[c].item(), B[c].item())
        expected += Normal(f[:, c, None], tau.rsqrt()).log_prob(y[:, c, None]) @ weight
    assert_close(gaussian(A, B).expected_log_prob(f, y), expected, 1e-9)


def test_kl_of_the_noise():
    options = {"concentration": 6.0, "rate": torch.tensor([6.0, 1.0, 0.1])}
    prior = Gamma(torch.full((C,), 6.0), options["rate"])
    likelihood = gaussian(A, B, **options)
    assert_close(likelihood.kl_divergence(), kl_divergence(Gamma(A, B), prior).sum())
    assert_close(likelihood.prior.rate, prior.rate)
    assert_close(likelihood.posterior.mean, A / B)


@pytest.mark.parametrize("conjugate", [False, True])
def test_the_posterior_starts_at_the_prior(conjugate):
    likelihood = GaussianLikelihood(C, concentration=6.0, rate=2.0, conjugate=conjugate)
    assert_close(likelihood.kl_divergence(), torch.zeros(()))
    assert all(p.requires_grad is not conjugate for p in likelihood.parameters())


def test_student_is_the_gaussian_with_its_precision_integrated_out():
    f, y = data()
    df, scale = gaussian(A, B).student()
    for c in range(C):
        tau, weight = gamma_nodes(A[c].item(), B[c].item())
        marginal = Normal(f[:, c, None], tau.rsqrt()).log_prob(y[:, c, None]).exp() @ weight
        assert_close(StudentT(df[c], f[:, c], scale[c]).log_prob(y[:, c]), marginal.log(), 1e-9)


def test_a_full_batch_reaches_the_exact_posterior_at_once_and_stays():
    f, y = data()
    likelihood = GaussianLikelihood(C, concentration=2.0, rate=0.5)
    for _ in range(60):  # past the point where the step size stops falling
        likelihood.update_(f, y, N)
        assert_close(likelihood.posterior.concentration, torch.full((C,), 2.0 + N / 2))
        assert_close(likelihood.posterior.rate, 0.5 + 0.5 * (y - f).square().sum(0))


def bound(likelihood, f, y):
    """The terms of the evidence bound that hold the likelihood's own posterior."""
    return likelihood.expected_log_prob(f, y).sum(-1) - likelihood.kl_divergence()


class Bound(torch.nn.Module):
    """The bound as a forward pass, for functional_call."""

    def __init__(self, likelihood):
        super().__init__()
        self.likelihood = likelihood

    def forward(self, f, y):
        return bound(self.likelihood, f, y)


def test_the_conjugate_posterior_maximises_the_bound_of_the_gradient_version():
    f, y = data()
    conjugate = updated(GaussianLikelihood(C, concentration=2.0, rate=0.5))
    q = conjugate.posterior
    learned = gaussian(q.concentration, q.rate, concentration=2.0, rate=0.5)
    best = bound(learned, f, y)
    assert_close(bound(conjugate, f, y), best)
    for gradient in torch.autograd.grad(best, list(learned.parameters())):
        assert_close(gradient, torch.zeros(C), 1e-9)

    def moved(parameters):
        a, b = parameters
        names = {"likelihood.log_concentration": a, "likelihood.log_rate": b}
        return functional_call(Bound(learned), names, (f, y))

    point = torch.stack([q.concentration.log(), q.rate.log()]).detach()
    hessian = torch.autograd.functional.hessian(moved, point).reshape(2 * C, 2 * C)
    assert torch.linalg.eigvalsh(hessian).max() < -1e-3
    for seed, size in itertools.product(range(20), (0.01, 0.3, 2.0)):
        assert moved(point + size * normal(2, C, seed=seed)) < best


def test_the_bound_at_the_conjugate_posterior_is_the_exact_evidence():
    # f is given, so the only unknown is τ and the bound is tight: log ∫ Π N(y|f, 1/τ) Gamma(τ) dτ
    f, y = data(c=1)
    likelihood = updated(GaussianLikelihood(1, concentration=2.0, rate=0.5), c=1)
    tau, weight = gamma_nodes(2.0, 0.5)
    joint = Normal(f, tau.rsqrt()).log_prob(y).sum(0).exp()
    assert_close(bound(likelihood, f, y), (joint @ weight).log(), 1e-9)


def test_the_gradient_version_leaves_its_posterior_to_the_optimiser():
    likelihood = gaussian(A, B)
    updated(likelihood)
    assert_close(torch.stack([likelihood.posterior.concentration, likelihood.posterior.rate]), torch.stack([A, B]))


def test_the_prior_in_the_targets_own_units():
    # τ_y ~ Gamma(6, 6) for y = σ z means τ_z = σ² τ_y ~ Gamma(6, 6/σ²); only the units of the density differ
    f, y = data(c=1)
    sigma = 2.5
    raw = updated_by(GaussianLikelihood(1, concentration=6.0, rate=6.0), f, y)
    unit = updated_by(GaussianLikelihood(1, concentration=6.0, rate=6.0 / sigma**2), f / sigma, y / sigma)
    assert_close(unit.kl_divergence(), raw.kl_divergence())
    assert_close(unit.expected_log_prob(f / sigma, y / sigma) - math.log(sigma), raw.expected_log_prob(f, y))
    assert_close(sigma * unit.student()[1], raw.student()[1])


def test_components_are_the_student_at_the_outputs():
    f, y = data(4)
    likelihood = gaussian(A, B)
    centre, scale, df = likelihood.components(f)
    student = StudentT(*likelihood.student()[:1], f, likelihood.student()[1])
    assert_close(StudentT(df, centre, scale).log_prob(y), student.log_prob(y))


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_posterior_as_prior(batch_shape):
    f, y = data(*batch_shape)
    first = updated_by(GaussianLikelihood(C, concentration=2.0, rate=0.5, batch_shape=batch_shape), f, y)
    before = first.kl_divergence().clone()
    second = first.posterior_as_prior()
    assert_close(second.kl_divergence(), torch.zeros(batch_shape))
    assert_same_gamma(second.prior, first.posterior)
    assert_same_gamma(second.posterior, first.posterior)
    assert torch.equal(first.kl_divergence(), before)  # the old one is left alone


def test_learning_in_two_parts_is_learning_at_once():
    f, y = data()
    options = {"concentration": 2.0, "rate": 0.5, "step_size": 1.0}
    at_once = updated_by(GaussianLikelihood(C, **options), f, y)
    part = updated_by(GaussianLikelihood(C, **options), f[:4], y[:4])
    assert_same_gamma(updated_by(part.posterior_as_prior(), f[4:], y[4:]).posterior, at_once.posterior)


def test_posterior_as_prior_of_posteriors_with_different_shapes():
    replicas = GaussianLikelihood(C, batch_shape=(2,))
    replicas.update_(*data(2), torch.tensor([10.0, 50.0]))
    for likelihood in (replicas, gaussian(A, B)):
        assert_same_gamma(likelihood.posterior_as_prior().prior, likelihood.posterior)


def test_a_posterior_that_became_the_prior_survives_a_state_dict():
    likelihood = updated(GaussianLikelihood(C)).posterior_as_prior()
    restored = GaussianLikelihood(C)
    restored.load_state_dict(likelihood.state_dict())
    assert_same_gamma(restored.prior, likelihood.prior)


# Noise that depends on the input


def heteroscedastic(c=C, fade=(0, 1), **options):
    """A likelihood whose fade is over and whose posterior is not its prior."""
    likelihood = HeteroscedasticLikelihood(c, fade=fade, **options)
    with torch.no_grad():
        likelihood.n_updates.fill_(fade[1])
        likelihood.log_concentration.copy_(A[:c].log().expand_as(likelihood.log_concentration))
        likelihood.log_rate.copy_(B[:c].log().expand_as(likelihood.log_rate))
    return likelihood


def noise_scale(f, limit=3.0):
    """e^g of the second half of the outputs."""
    return (limit * torch.tanh(f[..., C:] / limit)).exp()


def test_heteroscedastic_against_quadrature():
    f, y = 0.7 * normal(N, 2 * C, seed=1), normal(N, C, seed=2)
    likelihood = heteroscedastic()
    centre, scale, df = likelihood.components(f)
    expected = torch.zeros(N)
    for c in range(C):
        tau, weight = gamma_nodes(A[c].item(), B[c].item())
        given_tau = Normal(f[:, c, None], noise_scale(f)[:, c, None] * tau.rsqrt()).log_prob(y[:, c, None])
        expected += given_tau @ weight
        student = StudentT(df[0, c], centre[:, c], scale[:, c])
        assert_close(student.log_prob(y[:, c]), (given_tau.exp() @ weight).log(), 1e-9)
    assert_close(likelihood.expected_log_prob(f, y), expected, 1e-9)


@pytest.mark.parametrize("limit", [0.5, 3.0])
def test_the_log_scale_is_bounded(limit):
    f = torch.cat([torch.zeros(2, C), torch.tensor([[-1e6], [1e6]]).expand(2, C)], -1)
    likelihood = heteroscedastic(limit=limit)
    _, scale, _ = likelihood.components(f)
    assert_close(scale[1] / scale[0], torch.full((C,), math.exp(2 * limit)))


def test_heteroscedastic_with_no_log_scale_is_the_gaussian():
    f, y = data()
    wide = torch.cat([f, torch.zeros(N, C)], -1)
    noise, plain = HeteroscedasticLikelihood(C), GaussianLikelihood(C)
    for _ in range(3):
        assert_close(noise.expected_log_prob(wide, y), plain.expected_log_prob(f, y))
        assert_close(noise.kl_divergence(), plain.kl_divergence())
        noise.update_(wide, y, 2 * N)
        plain.update_(f, y, 2 * N)


def test_the_heteroscedastic_posterior_maximises_the_bound():
    f, y = normal(N, 2 * C, seed=1), normal(N, C, seed=2)
    likelihood = HeteroscedasticLikelihood(C, concentration=2.0, rate=0.5, step_size=1.0, fade=(-1, 0))
    likelihood.update_(f, y, N)
    whitened = (y - f[:, :C]) / noise_scale(f)
    assert_close(likelihood.posterior.rate, 0.5 + 0.5 * whitened.square().sum(0))
    likelihood.requires_grad_()
    for gradient in torch.autograd.grad(bound(likelihood, f, y), list(likelihood.parameters())):
        assert_close(gradient, torch.zeros(C), 1e-9)


def test_the_log_scale_fades_in():
    f, y = normal(N, 2 * C, seed=1), normal(N, C, seed=2)
    likelihood = HeteroscedasticLikelihood(C, fade=(2, 6))
    for n_updates in range(9):
        centre, scale, _ = likelihood.components(f)
        strength = min(max((n_updates - 2) / 4, 0), 1)
        assert_close(scale / likelihood.student()[1], noise_scale(f) ** strength)
        assert torch.equal(centre, f[:, :C])
        likelihood.update_(f, y, N)


# Minibatch updates of the conjugate posteriors

CONJUGATE = {"gaussian": GaussianLikelihood, "full": FullCovarianceLikelihood}
over_conjugate = pytest.mark.parametrize("cls", list(CONJUGATE.values()), ids=list(CONJUGATE))


def natural_parameters(likelihood):
    """Shape and rate of the posterior; updates are linear in them."""
    if isinstance(likelihood, GaussianLikelihood):
        return likelihood.posterior.concentration, likelihood.posterior.rate
    return likelihood.df.clone(), likelihood.rate_matrix.clone()


def assert_same_posterior(one, other):
    for a, b in zip(natural_parameters(one), natural_parameters(other), strict=True):
        assert_close(a, b)


@over_conjugate
@pytest.mark.parametrize("n_before", [0, 3])
def test_a_minibatch_update_is_unbiased(cls, n_before):
    f, y = data(n=5)

    def after(index):
        likelihood = cls(C, concentration=2.0, rate=0.5, step_size=0.1)
        for seed in range(n_before):
            updated(likelihood, seed=10 * seed + 50)
        likelihood.update_(f[index], y[index], 5)
        return natural_parameters(likelihood)

    batches = [after(list(index)) for index in itertools.combinations(range(5), 2)]
    for mean, full in zip((torch.stack(p).mean(0) for p in zip(*batches, strict=True)), after(range(5)), strict=True):
        assert_close(mean, full)


@over_conjugate
def test_steps_average_the_first_batches_and_then_forget_slowly(cls):
    step_size, targets = 0.25, []
    likelihood = cls(C, step_size=step_size)
    for t in range(1, 8):
        targets.append(natural_parameters(updated(cls(C), seed=t)))  # one step of size 1 is the batch's own target
        before = natural_parameters(likelihood)
        updated(likelihood, seed=t)
        for i, after in enumerate(natural_parameters(likelihood)):
            if t <= 4:
                assert_close(after, torch.stack([target[i] for target in targets]).mean(0))
            else:
                assert_close(after, before[i] + step_size * (targets[-1][i] - before[i]))


@over_conjugate
def test_weights_are_repeated_rows(cls):
    f, y = data()
    count = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    repeated = cls(C)
    repeated.update_(f.repeat_interleave(count, 0), y.repeat_interleave(count, 0), count.sum())
    weighted = cls(C)
    weighted.update_(f, y, count.sum(), count / count.double().mean())
    assert_same_posterior(weighted, repeated)


@over_conjugate
def test_replicas_are_a_loop(cls):
    f, y = data(2, 3)
    n_data, weight = 10 + torch.arange(6.0).reshape(2, 3), normal(2, 3, N, seed=5).exp()
    likelihood = cls(C, concentration=2.0, rate=0.5, batch_shape=(2, 3))
    for _ in range(2):
        likelihood.update_(f, y, n_data, weight)
    log_prob, kl, student = likelihood.expected_log_prob(f, y), likelihood.kl_divergence(), likelihood.student()
    assert (log_prob.shape, kl.shape) == ((2, 3, N), (2, 3))
    for i in members((2, 3)):
        one = cls(C, concentration=2.0, rate=0.5)
        for _ in range(2):
            one.update_(f[i], y[i], n_data[i], weight[i])
        assert_close(log_prob[i], one.expected_log_prob(f[i], y[i]))
        assert_close(kl[i], one.kl_divergence())
        for a, b in zip(student, one.student(), strict=True):
            assert_close(a[i], b)


# Full noise covariance


def full_likelihood(c=C, seed=0):
    likelihood = FullCovarianceLikelihood(c, concentration=2.0, rate=0.5)
    return updated(likelihood, c=c, seed=seed)


def test_the_wishart_prior_and_posterior():
    f, y = data()
    likelihood = FullCovarianceLikelihood(C, concentration=2.0, rate=0.5)
    assert_close(likelihood.df, torch.tensor(2 * 2.0 + C - 1))
    assert_close(likelihood.rate_matrix, 2 * 0.5 * torch.eye(C))
    for _ in range(60):
        likelihood.update_(f, y, N)
        assert_close(likelihood.df, torch.tensor(2 * 2.0 + C - 1 + N))
        outer = sum(torch.outer(r, r) for r in y - f)
        assert_close(likelihood.rate_matrix, torch.eye(C) + outer)


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_kl_is_that_of_torch(c):
    prior, posterior = FullCovarianceLikelihood(c, concentration=2.0, rate=0.5), full_likelihood(c)
    q, p = (wishart(one.df, one.rate_matrix) for one in (posterior, prior))
    assert_close(prior.kl_divergence(), torch.zeros(()))
    assert_close(posterior.kl_divergence(), kl_divergence(q, p))


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_expected_log_prob(c):
    f, y = data(c=c, seed=5)
    likelihood = full_likelihood(c)
    # a score has mean zero: E log|Λ| = log|Λ₀| − 2 ∂/∂ν log W(Λ₀ | ν, Ψ) at any Λ₀
    df, point = likelihood.df.clone().requires_grad_(), torch.eye(c) + 0.1
    (score,) = torch.autograd.grad(wishart(df, likelihood.rate_matrix).log_prob(point), df)
    expected_logdet = torch.logdet(point) - 2 * score
    precision = wishart(likelihood.df, likelihood.rate_matrix).mean
    expected = [0.5 * (expected_logdet - c * math.log(2 * math.pi) - r @ precision @ r) for r in y - f]
    assert_close(likelihood.expected_log_prob(f, y), torch.stack(expected))


def test_full_covariance_expected_log_prob_by_monte_carlo():
    f, y = data(n=1, seed=5)
    likelihood = full_likelihood()
    draws = stats.wishart(likelihood.df.item(), torch.linalg.inv(likelihood.rate_matrix).numpy())
    precision = torch.tensor(draws.rvs(20_000, random_state=0))
    values = MultivariateNormal(f[0], precision_matrix=precision).log_prob(y[0])
    assert_expectation(values, likelihood.expected_log_prob(f, y)[0])


@pytest.mark.parametrize("c", [1, 2, 3])
def test_full_covariance_student_is_the_gaussian_with_its_precision_integrated_out(c):
    f, y = data(c=c, seed=5)
    likelihood = full_likelihood(c)
    df, scale = likelihood.student()
    prior, point = wishart(likelihood.df, likelihood.rate_matrix), torch.eye(c) + 0.1
    for f_n, y_n in zip(f, y, strict=True):
        # p(y) = N(y | Λ) W(Λ) / W(Λ | y), whichever Λ it is computed at
        r = y_n - f_n
        posterior = wishart(likelihood.df + 1, likelihood.rate_matrix + torch.outer(r, r))
        evidence = MultivariateNormal(f_n, precision_matrix=point).log_prob(y_n)
        evidence = evidence + prior.log_prob(point) - posterior.log_prob(point)
        student = stats.multivariate_t(f_n.numpy(), (scale @ scale.mT).numpy(), df.item())
        assert evidence.item() == pytest.approx(float(student.logpdf(y_n.numpy())), rel=1e-10)


def test_full_covariance_of_one_output_is_the_gaussian():
    f, y = data(c=1)
    options = {"concentration": 2.0, "rate": 0.5}
    full, plain = FullCovarianceLikelihood(1, **options), GaussianLikelihood(1, **options)
    for _ in range(3):
        assert_close(full.expected_log_prob(f, y), plain.expected_log_prob(f, y))
        assert_close(full.kl_divergence(), plain.kl_divergence())
        for a, b in zip(full.student(), plain.student(), strict=True):
            assert_close(a.squeeze(), b.squeeze())
        for likelihood in (full, plain):
            likelihood.update_(f[:4], y[:4], N)


def test_the_wishart_posterior_maximises_the_bound():
    f, y = data()
    likelihood = full_likelihood()
    df, rate_matrix = likelihood.df.clone(), likelihood.rate_matrix.clone()

    def moved(df, rate_matrix):
        return functional_call(Bound(likelihood), {"likelihood.df": df, "likelihood.rate_matrix": rate_matrix}, (f, y))

    best = moved(df.requires_grad_(), rate_matrix.requires_grad_())
    for gradient in torch.autograd.grad(best, (df, rate_matrix)):
        assert_close(gradient, torch.zeros_like(gradient), 1e-9)
    for seed in range(10):
        noise = 0.1 * normal(C, C, seed=seed)
        assert moved(df * (1 + noise[0, 0]), rate_matrix + noise @ noise.mT) < best


# Known noise


@pytest.mark.parametrize("scale", [0.3, torch.tensor([0.3, 2.0, 1.0], dtype=torch.float64)])
def test_known_noise(scale):
    f, y = data()
    likelihood = KnownNoiseLikelihood(scale)
    assert_close(likelihood.expected_log_prob(f, y), Normal(f, scale).log_prob(y).sum(-1))
    df, student_scale = likelihood.student()
    assert torch.isinf(df).all()
    assert_close(student_scale, torch.as_tensor(scale).reshape(-1))
    assert likelihood.kl_divergence() == 0


# Classes


@pytest.mark.parametrize("leading", [(), (2,), (4, 2)])
def test_categorical_is_minus_cross_entropy(leading):
    f = normal(*leading, N, C, seed=1)
    y = torch.randint(C, (*leading, N), generator=torch.Generator().manual_seed(0))
    expected = -torch.nn.functional.cross_entropy(f.reshape(-1, C), y.reshape(-1), reduction="none")
    assert_close(CategoricalLikelihood().expected_log_prob(f, y), expected.reshape(*leading, N))


def test_categorical_survives_large_outputs():
    f = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert_close(CategoricalLikelihood().expected_log_prob(f, torch.tensor([0, 0])), torch.tensor([0.0, -1000.0]))


# Contract of every likelihood

LIKELIHOODS = {
    "gaussian": lambda: updated(GaussianLikelihood(C)),
    "gaussian, by gradient": lambda: gaussian(A, B),
    "input": heteroscedastic,
    "known": lambda: KnownNoiseLikelihood(0.3),
    "full": lambda: updated(FullCovarianceLikelihood(C)),
    "categorical": CategoricalLikelihood,
}
over_likelihoods = pytest.mark.parametrize("make", list(LIKELIHOODS.values()), ids=list(LIKELIHOODS))
over_regression = pytest.mark.parametrize(
    "make", [make for name, make in LIKELIHOODS.items() if name != "categorical"], ids=list(LIKELIHOODS)[:-1]
)


def data_for(likelihood, *leading, seed=0):
    """Network outputs and targets of the kind that the likelihood takes."""
    f, y = data(*leading, seed=seed)
    if isinstance(likelihood, HeteroscedasticLikelihood):
        f = torch.cat([f, normal(*leading, N, C, seed=seed + 3)], -1)
    return f, y.argmax(-1) if isinstance(likelihood, CategoricalLikelihood) else y


@over_likelihoods
def test_one_number_per_row_and_samples_lead(make):
    likelihood = make()
    assert isinstance(likelihood, Likelihood)
    f, y = data_for(likelihood, 4)
    log_prob = likelihood.expected_log_prob(f, y)
    assert log_prob.shape == (4, N)
    for s in range(4):
        assert_close(log_prob[s], likelihood.expected_log_prob(f[s], y[s]))
    assert likelihood.kl_divergence().shape == ()


@over_likelihoods
def test_gradcheck(make):
    likelihood = make()
    f, y = data_for(likelihood)
    f.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: likelihood.expected_log_prob(f, y), f)


def test_gradcheck_of_the_gamma_parameters():
    f, y = data()
    likelihood = gaussian(A, B, concentration=6.0, rate=2.0)

    def terms(log_concentration, log_rate):
        names = {"likelihood.log_concentration": log_concentration, "likelihood.log_rate": log_rate}
        return functional_call(Bound(likelihood), names, (f, y))

    assert torch.autograd.gradcheck(terms, (A.log().requires_grad_(), B.log().requires_grad_()))


@over_likelihoods
def test_an_update_between_forward_and_backward_does_no_harm(make):
    gradients = []
    for update_first in (False, True):
        likelihood = make()
        f, y = data_for(likelihood)
        log_prob = likelihood.expected_log_prob(f.requires_grad_(), y).sum()
        if update_first:
            likelihood.update_(f.detach(), y, N)
        gradients.append(torch.autograd.grad(log_prob, f)[0])
    assert torch.equal(*gradients)


@over_likelihoods
def test_state_dict_round_trip(make):
    likelihood, restored = make(), make()
    f, y = data_for(likelihood, seed=5)
    likelihood.update_(f, y, 2 * N)
    restored.load_state_dict(likelihood.state_dict())
    for one in (likelihood, restored):  # the step size is part of the state
        one.update_(f[:2], y[:2], N)
    assert torch.equal(restored.expected_log_prob(f, y), likelihood.expected_log_prob(f, y))
    assert torch.equal(restored.kl_divergence(), likelihood.kl_divergence())
    assert type(likelihood).__name__ in repr(likelihood)


@over_likelihoods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_precision(make, dtype):
    torch.set_default_dtype(torch.float64 if dtype == torch.float32 else torch.float32)
    likelihood = make_in_default_precision(make).to(dtype)
    f, y = data_for(likelihood)
    f, y = f.to(dtype), y.to(dtype) if y.is_floating_point() else y
    likelihood.update_(f, y, N)
    assert likelihood.expected_log_prob(f, y).dtype == dtype
    assert torch.isfinite(likelihood.kl_divergence()).all()


def make_in_default_precision(make):
    """The likelihood in the default dtype, though the data that it saw are float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    likelihood = make()
    torch.set_default_dtype(default)
    return likelihood.to(default)


# Errors


@over_regression
@pytest.mark.parametrize("shape", [(N,), (N, 1), (1, N, C), (N - 1, C), (C, N)])
def test_targets_must_have_the_shape_of_the_output(make, shape):
    likelihood = make()
    f, _ = data_for(likelihood)
    with pytest.raises(ValueError, match=rf"y must have the shape of the network's output, \({N}, {C}\); got"):
        likelihood.expected_log_prob(f, torch.zeros(shape))


@pytest.mark.parametrize("cls", [GaussianLikelihood, HeteroscedasticLikelihood, FullCovarianceLikelihood])
@pytest.mark.parametrize("shape", [(N,), (N, 1), (1, C)])
def test_an_update_checks_the_shape_too(cls, shape):
    likelihood = cls(C)
    f, _ = data_for(likelihood)
    with pytest.raises(ValueError, match=rf"y must have the shape of the network's output, \({N}, {C}\); got"):
        likelihood.update_(f, torch.zeros(shape), N)


@pytest.mark.parametrize("n_outputs", [1, 2])
@over_conjugate
def test_the_number_of_outputs_is_checked(cls, n_outputs):
    f, y = data()
    with pytest.raises(ValueError, match=f"{n_outputs}.*{C}"):
        cls(n_outputs).expected_log_prob(f, y)


def test_known_scales_must_fit_the_outputs():
    f, y = data(c=1)
    with pytest.raises(ValueError, match="2"):
        KnownNoiseLikelihood(torch.tensor([0.3, 1.0])).expected_log_prob(f, y)


@pytest.mark.parametrize("shape", [(N, 1), (N - 1,), (1, N)])
def test_classes_must_be_one_per_row(shape):
    with pytest.raises(ValueError, match=rf"y must have shape \({N},\), one class per row; got"):
        CategoricalLikelihood().expected_log_prob(torch.zeros(N, C), torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_arguments_must_be_positive(bad):
    for cls in (GaussianLikelihood, FullCovarianceLikelihood):
        with pytest.raises(ValueError, match="must be positive"):
            cls(2, concentration=bad)
        with pytest.raises(ValueError, match="must be positive"):
            cls(2, rate=bad)
    with pytest.raises(ValueError, match="must be positive"):
        GaussianLikelihood(2, rate=torch.tensor([1.0, bad]))
    with pytest.raises(ValueError, match="must be positive"):
        KnownNoiseLikelihood(bad)
