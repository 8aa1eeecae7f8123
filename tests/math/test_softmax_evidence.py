"""Gaussian weights of a softmax layer against slow references: autograd, explicit matrices and a plain fixed point."""

import math

import pytest
import torch

from vmg.fit.classes import improve_on
from vmg.math.softmax_evidence import (
    ClassRows,
    Curvature,
    RowSpread,
    SoftmaxPosterior,
    class_posterior,
    expected_curvature,
    expected_log_likelihood,
    improve,
    mean_probabilities,
    softmax_step,
)

D, N, K = 4, 30, 3


def problem(n=N, batch=(), seed=0, k=K):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    features = normal(n, D)
    labels = torch.nn.functional.one_hot(torch.randint(k, (n,), generator=generator), k).double()
    return features, labels, normal(D).exp(), normal(n).abs() + 0.2


def kl(posterior, precision):
    """KL of MN(M, S, I) to MN(0, diag(a)⁻¹, I), column by column with PyTorch's own."""
    covariance = torch.cholesky_inverse(posterior.root)
    q = [torch.distributions.MultivariateNormal(column, covariance) for column in posterior.mean.T]
    p = torch.distributions.MultivariateNormal(torch.zeros(D).double(), torch.diag(1 / precision))
    return sum(torch.distributions.kl_divergence(one, p) for one in q)


def test_mean_probabilities_are_close_to_draws():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 2, generator=generator, dtype=torch.float64) * 2
    variance = torch.linspace(0, 9, 6).double()
    noise = torch.randn(200_000, 6, 2, generator=generator, dtype=torch.float64)
    drawn = torch.softmax(logits + variance.sqrt().unsqueeze(-1) * noise, -1).mean(0)
    assert (mean_probabilities(logits, variance) - drawn).abs().max() < 0.06
    certain = mean_probabilities(logits, torch.zeros(6).double())
    torch.testing.assert_close(certain, torch.softmax(logits, -1))


def test_a_step_gives_the_log_of_a_mean_less_the_divergence_with_the_gradient_of_the_bound():
    """ω(y − p)Mᵀ − ωKhΦS is the gradient of Σ ω(Σ(y − p₀)φᵀM − ½Kh₀ φᵀSφ) with p₀ and h₀ held where they are."""
    features, labels, precision, weight = problem(batch=(1,))
    before = improve(None, features, labels, precision, weight, 1)
    spread = RowSpread.of(before, features, 2)
    features = torch.cat([features[..., :2] + 0.3, features[..., 2:]], -1).requires_grad_()  # two of four have learned
    precision.requires_grad_()
    posterior, value = softmax_step(before, features, labels, precision, weight, spread)
    value.sum().backward()

    again, a = features.detach().clone().requires_grad_(), precision.detach().clone().requires_grad_()
    with torch.no_grad():
        p = mean_probabilities(again @ before.mean, before.variance(again))
        pull = (again * weight.unsqueeze(-1)).mT @ (labels - p) - precision.unsqueeze(-1) * before.mean
        torch.testing.assert_close(posterior.mean, before.mean + torch.cholesky_solve(pull, before.majorant))
        p = mean_probabilities(again @ posterior.mean, before.variance(again))
    divergence = kl(SoftmaxPosterior(posterior.mean[0], before.root[0]), a[0])
    torch.testing.assert_close(value[0], (weight * (labels * p.log()).sum(-1)).sum() - divergence)
    linear = ((labels - p) * (again @ posterior.mean)).sum(-1)
    quadratic = -0.5 * K * (p * (1 - p)).mean(-1) * before.variance(again)
    ((weight * (linear + quadratic)).sum() - divergence).backward()
    torch.testing.assert_close(features.grad[..., :2], again.grad[..., :2])
    assert not features.grad[..., 2:].any()
    torch.testing.assert_close(precision.grad, a.grad)


def slow_optimum(features, labels, precision, weight, n_steps=20_000):
    """The fixed point of the module's two lines: M by plain gradient steps, S anew at each of them."""
    mean = torch.zeros(D, labels.shape[-1], dtype=torch.float64)
    A = torch.diag(precision)
    rate = 1 / (precision.max() + 0.5 * (weight * features.square().sum(-1)).sum())
    for _ in range(n_steps):
        variance = torch.einsum("nd,de,ne->n", features, torch.linalg.inv(A), features)
        p = torch.softmax(features @ mean / (1 + math.pi / 4 * variance).sqrt().unsqueeze(-1), -1)
        mean = mean + rate * (features.T @ (weight.unsqueeze(-1) * (labels - p)) - precision.unsqueeze(-1) * mean)
        h = (p * (1 - p)).mean(-1)
        A = torch.diag(precision) + features.T @ ((weight * h).unsqueeze(-1) * features)
    return mean, A


@pytest.mark.parametrize("k", [2, 3])
def test_improving_converges_to_the_optimum(k):
    features, labels, precision, weight = problem(k=k)
    posterior = None
    for _ in range(20):
        posterior = improve(posterior, features, labels, precision, weight, 30)
    mean, A = slow_optimum(features, labels, precision, weight)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(posterior.root @ posterior.root.T, A, rtol=1e-5, atol=1e-6)
    stationary = (features * weight.unsqueeze(-1)).T @ (
        labels - mean_probabilities(features @ posterior.mean, posterior.variance(features))
    )
    torch.testing.assert_close(posterior.mean, stationary / precision.unsqueeze(-1), rtol=1e-4, atol=1e-5)


def test_steps_never_overshoot():
    """Without variance every step raises the log joint density, however large the features."""
    features, labels, precision, weight = problem()
    features = 30 * features
    nothing = torch.eye(D).double() * 1e12

    def log_joint(mean):
        fit = (weight * (labels * torch.log_softmax(features @ mean, -1)).sum(-1)).sum()
        return fit - 0.5 * (precision.unsqueeze(-1) * mean.square()).sum()

    mean, before = torch.zeros(D, K).double(), -math.inf
    for _ in range(30):
        mean = improve(SoftmaxPosterior(mean, nothing), features, labels, precision, weight, 1).mean
        assert log_joint(mean) >= before
        before = log_joint(mean)


def test_weights_are_repeated_rows():
    features, labels, precision, _ = problem()
    weight = torch.arange(N).remainder(3).double() + 1
    weighted = improve(None, features, labels, precision, weight, 50)
    times = weight.long()
    ones = torch.ones(int(times.sum())).double()
    repeated = improve(
        None, features.repeat_interleave(times, 0), labels.repeat_interleave(times, 0), precision, ones, 50
    )
    torch.testing.assert_close(weighted.mean, repeated.mean)
    torch.testing.assert_close(weighted.root, repeated.root)


def test_replicas_are_a_loop():
    features, labels, precision, weight = problem(batch=(2,))
    together = improve(None, features, labels, precision, weight, 20)
    for i in range(2):
        alone = improve(None, features[i], labels, precision[i], weight[i], 20)
        torch.testing.assert_close(together.mean[i], alone.mean)
        torch.testing.assert_close(together.root[i], alone.root)


# -- updates ----------------------------------------------------------------------------------------------------------


def test_an_update_of_a_prior_is_a_fit():
    """In whitened coordinates the prior MN(0, diag(a)⁻¹, I) is a standard one: the same optimum either way."""
    features, labels, precision, weight = problem()
    start = SoftmaxPosterior(torch.zeros(D, K).double(), torch.diag(precision.sqrt()))
    updated = improve_on(start, features, labels, weight, 400)
    batch = improve(None, features, labels, precision, weight, 400)
    batch = improve(batch, features, labels, precision, weight, 400)
    torch.testing.assert_close(updated.mean, batch.mean, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(updated.root @ updated.root.mT, batch.root @ batch.root.mT, rtol=1e-6, atol=1e-7)


def test_halves_are_the_whole_where_the_likelihood_is_nearly_gaussian():
    """Small features leave logits near zero, where the log-likelihood is quadratic and order does not matter."""
    features, labels, precision, weight = problem()
    small = 0.01 * features
    start = SoftmaxPosterior(torch.zeros(D, K).double(), torch.diag(precision.sqrt()))
    first = improve_on(start, small[:15], labels[:15], weight[:15], 200)
    both = improve_on(first, small[15:], labels[15:], weight[15:], 200)
    whole = improve_on(start, small, labels, weight, 200)
    torch.testing.assert_close(both.mean, whole.mean, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(both.root @ both.root.mT, whole.root @ whole.root.mT, rtol=1e-6, atol=1e-6)


# -- a covariance of features times one of classes --------------------------------------------------------------------


def class_rows(n=25, k=K):
    features, labels, precision, weight = problem(n, k=k)
    draws = torch.randn(6, D, k, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return ClassRows(features, labels.argmax(-1), weight), precision, draws


def explicit_curvature(rows, draws):
    """Minus the second derivative of the mean log-likelihood by all weights, by autograd; [K, D, K, D]."""

    def mean_log_likelihood(weights):
        log_p = torch.log_softmax(rows.features @ (draws + weights.mT), -1)
        return (rows.weight * log_p.mean(0)[torch.arange(len(rows.y)), rows.y]).sum()

    return -torch.autograd.functional.hessian(mean_log_likelihood, torch.zeros(draws.shape[2], D).double())


def test_the_curvature_has_the_partial_traces_of_the_second_derivative(monkeypatch):
    rows, _, draws = class_rows()
    exact = explicit_curvature(rows, draws)
    for chunk in (2**22, 50):  # rows at once or in pieces
        monkeypatch.setattr("vmg.math.softmax_evidence.CHUNK", chunk)
        found = expected_curvature(rows, draws)
        torch.testing.assert_close(found.rows, torch.einsum("kdke->de", exact))
        torch.testing.assert_close(found.classes, torch.einsum("kdmd->km", exact))
    weights = torch.randn(D, K, dtype=torch.float64)
    one = ClassRows(*(part[:1] for part in rows))
    exact = explicit_curvature(one, draws)  # that of one row is such a product
    product = expected_curvature(one, draws)
    torch.testing.assert_close(product.times(weights), torch.einsum("kdme,em->dk", exact, weights))


def test_rows_that_count_alike_have_the_mean_curvature_over_classes():
    rows, _, draws = class_rows()
    p = torch.softmax(rows.features @ draws, -1)
    each = torch.diag_embed(p.mean(0)) - torch.einsum("snk,snm->nkm", p, p) / len(draws)
    of_classes = (rows.weight[:, None, None] * each).sum(0) / rows.weight.sum()
    gram = (rows.features * rows.weight[:, None]).mT @ rows.features
    weights = torch.randn(D, K, dtype=torch.float64)
    found = expected_curvature(rows, draws, alike=True)
    torch.testing.assert_close(found.times(weights), gram @ weights @ of_classes)


def test_very_many_classes_keep_a_diagonal(monkeypatch):
    rows, _, draws = class_rows()
    whole = expected_curvature(rows, draws)
    monkeypatch.setattr("vmg.math.softmax_evidence.MOST_CLASSES", 2)
    found = expected_curvature(rows, draws)
    torch.testing.assert_close(found.classes, whole.classes.diagonal())
    weights = torch.randn(D, K, dtype=torch.float64)
    dense = Curvature(found.rows, torch.diag(found.classes))
    torch.testing.assert_close(found.times(weights), dense.times(weights))


def test_the_expected_log_likelihood_has_the_gradient_of_autograd():
    rows, _, draws = class_rows()
    centre = torch.zeros(D, K, dtype=torch.float64, requires_grad=True)
    log_p = torch.log_softmax(rows.features @ (draws + centre), -1).mean(0)
    value = (rows.weight * log_p[torch.arange(len(rows.y)), rows.y]).sum()
    found, gradient = expected_log_likelihood(rows, draws)
    torch.testing.assert_close(found, value.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(value, centre)[0])


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_class_posterior_is_the_gaussian_of_its_precision(diagonal):
    rows, a, draws = class_rows()
    curvature = expected_curvature(rows, draws)
    if diagonal:
        curvature = Curvature(curvature.rows, curvature.classes.diagonal())
    mean = draws[0]
    q = class_posterior(mean, a, curvature)
    units = torch.eye(D * K, dtype=torch.float64).reshape(-1, D, K)
    explicit = torch.stack([curvature.times(unit) + a.unsqueeze(-1) * unit for unit in units]).flatten(1)
    covariance = torch.linalg.inv(explicit)  # in the order (d, k)
    root = q.deviations(units).flatten(1)
    torch.testing.assert_close(root.mT @ root, covariance)
    by_class = covariance.view(D, K, D, K).diagonal(dim1=1, dim2=3).movedim(-1, 0)
    torch.testing.assert_close(q.class_covariances(), by_class)
    torch.testing.assert_close(q.feature_variances(), covariance.diagonal().view(D, K).sum(-1))
    x, n = rows.features[:3], 50_000
    logits = q.sample_logits(x, n, torch.Generator().manual_seed(0))
    both = torch.einsum("nd,dkem,ne->nkm", x, covariance.view(D, K, D, K), x)
    for row in range(3):
        spread = both[row].diagonal()
        assert ((torch.cov(logits[:, row].mT) - both[row]).abs() < 6 * (spread.outer(spread) / n).sqrt()).all()
    assert ((logits.mean(0) - x @ mean).abs() < 6 * (both.diagonal(dim1=1, dim2=2) / n).sqrt()).all()
