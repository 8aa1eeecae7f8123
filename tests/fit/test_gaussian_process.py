"""The Gaussian process beside the networks, against dense algebra and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from fit_rows import fit_rows
from scipy.optimize import approx_fprime

from vmg.fit import gaussian_process
from vmg.fit.gaussian_process import GaussianProcess, Kernel, negative_log_evidence, predict_exactly


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3))
    y = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(60)
    return x, y, rng.uniform(0.5, 2.0, 60), 2 * rng.standard_normal((20, 3))


LOG = np.array([0.3, -0.1, 0.5, 0.2, -0.4, 0.1, -1.0])


def dense(kernel, x, y, weight, new):
    """Mean and covariance by the textbook formula."""
    _, linear, constant, noise = kernel.variances

    def k(a, b):
        return kernel.matern(a, b) + linear / 3 * (a @ b.T) + constant

    K, between = k(x, x) + np.diag(noise / weight), k(new, x)
    return between @ np.linalg.solve(K, y), k(new, new) - between @ np.linalg.solve(K, between.T)


def test_all_rows_as_centres_are_the_exact_process(rows):
    x, y, weight, new = rows
    kernel = Kernel(LOG)
    process = GaussianProcess.of(kernel, x, x, y, weight)
    mean, covariance = dense(kernel, x, y, weight, new)
    loc, variance = process.predict(new)
    np.testing.assert_allclose(loc, mean, atol=1e-5)
    np.testing.assert_allclose(variance, np.diag(covariance), atol=1e-5)
    factor = process.factor(new)
    between = factor.T @ factor
    np.testing.assert_allclose(np.diag(between), np.diag(covariance), atol=1e-5)
    np.testing.assert_allclose(between, covariance, atol=0.15 * covariance.max())  # by random cosines
    np.testing.assert_allclose(process.factor(new[5:9]), factor[:, 5:9], atol=1e-9)


def test_random_cosines_have_the_covariance_of_the_kernel(rows, monkeypatch):
    x, y, weight, new = rows
    monkeypatch.setattr(gaussian_process, "COSINES", 40_000)
    kernel = Kernel(LOG)
    factor = GaussianProcess.of(kernel, x, x, y, weight).factor(new)
    np.testing.assert_allclose(factor.T @ factor, dense(kernel, x, y, weight, new)[1], atol=0.02)


def test_fewer_centres_are_linear_regression_with_the_prior_variance_that_is_left(rows):
    x, y, weight, new = rows
    kernel, centres = Kernel(LOG), x[:15]
    root = np.linalg.cholesky(kernel.matern(centres, centres) + 1e-6 * kernel.variances[0] * np.eye(15))
    scales = np.sqrt([*[kernel.variances[1] / 3] * 3, kernel.variances[2]])

    def features(rows):
        hidden = np.linalg.solve(root, kernel.matern(centres, rows)).T
        return np.column_stack([hidden, np.column_stack([rows, np.ones(len(rows))]) * scales])

    phi, at, noise = features(x), features(new), kernel.variances[3]
    covariance = np.linalg.inv(np.eye(19) + (phi * weight[:, None]).T @ phi / noise)
    left = kernel.variances[0] - np.square(at[:, :15]).sum(1)
    loc, variance = GaussianProcess.of(kernel, centres, x, y, weight).predict(new)
    np.testing.assert_allclose(loc, at @ covariance @ (phi * weight[:, None]).T @ y / noise, atol=1e-8)
    np.testing.assert_allclose(variance, np.einsum("nf,fg,ng->n", at, covariance, at) + left, atol=1e-8)


def test_predictions_without_centres_are_the_exact_process(rows):
    x, y, weight, new = rows
    loc, covariance = dense(Kernel(LOG), x, y, weight, new)
    said = predict_exactly(Kernel(LOG), x, y, weight, new)
    np.testing.assert_allclose(said.loc, loc, atol=1e-8)
    np.testing.assert_allclose(said.variance, np.diag(covariance), atol=1e-8)


@pytest.mark.parametrize(("frequency", "noise", "n_centres"), [(0.5, 0.05, 20), (8.0, 0.05, 120), (8.0, 0.0, 20)])
def test_all_rows_are_centres_where_few_predict_held_out_rows_worse(frequency, noise, n_centres, monkeypatch):
    """Without noise they are not: the jitter between centres would count as noise that held-out rows do not have."""
    monkeypatch.setattr(gaussian_process, "CENTRES", 20)
    x, fold = np.linspace(-1.7, 1.7, 120)[:, None], np.arange(120) % 4 == np.arange(4)[:, None]
    y = np.sin(frequency * x[:, 0]) + noise * np.random.default_rng(0).standard_normal(120)
    process, held_out = GaussianProcess.fit(fit_rows(x, y, fold), np.arange(120))
    assert len(process.centres) == n_centres and process.kernel.is_noisy == (noise > 0)
    error = np.concatenate([(said.loc - y)[rows] for said, rows in zip(held_out, fold, strict=True)])
    assert np.sqrt(np.mean(error**2)) < 0.1


def test_gradient_of_the_evidence(rows):
    x, y, weight, _ = rows
    numeric = approx_fprime(LOG, lambda log: negative_log_evidence(log, x, y, weight)[0], 1e-6)
    np.testing.assert_allclose(negative_log_evidence(LOG, x, y, weight)[1], numeric, rtol=1e-4, atol=1e-4)


def test_more_rows_are_an_exact_update_in_any_order(rows):
    x, y, weight, new = rows
    kernel = Kernel(LOG)
    whole = GaussianProcess.of(kernel, x[:20], x, y, weight).predict(new)
    parts = GaussianProcess.of(kernel, x[:20], x[30:], y[30:], weight[30:]).updated(x[:30], y[:30], weight[:30])
    np.testing.assert_allclose(parts.predict(new), whole, atol=1e-10)


def test_irrelevant_columns_fade():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((150, 8))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(150)
    process, _ = GaussianProcess.fit(fit_rows(x, y), np.arange(0))
    assert process.kernel.lengths[0] < 0.5 * process.kernel.lengths[1:].min()
    new = rng.standard_normal((200, 8))
    assert np.sqrt(np.mean((process.predict(new).loc - np.sin(2 * new[:, 0])) ** 2)) < 0.15


def test_other_sizes_and_numbers_that_are_not_finite_are_refused(rows):
    x, y, weight, _ = rows
    process = GaussianProcess.of(Kernel(LOG), x[:20], x, y, weight)
    process.check(3)
    for n_inputs, changed, message in (
        (4, process, "centres must have the shape"),
        (3, replace(process, kernel=Kernel(LOG[1:])), "log must have the shape"),
        (3, replace(process, moment=process.moment * np.nan), "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            changed.check(n_inputs)
