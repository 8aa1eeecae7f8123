"""The moments, gradients and updates of probabilistic backpropagation, each against an exact reference."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from vmg_paper.baselines import pbp
from vmg_paper.baselines.pbp import (
    filter_rows,
    matched_gamma,
    rectify,
    split_layers,
    tilted_gamma,
)
from vmg_paper.data.tables import cubic


def expectation(function, density, low, high):
    return integrate.quad(lambda t: function(t) * density(t), low, high, epsabs=0, epsrel=1e-10, limit=200)[0]


@pytest.mark.parametrize(("m", "v"), [(0.3, 0.5), (-2.0, 1.3), (4.0, 0.2), (-6.0, 1.0), (9.0, 1e-2)])
def test_rectified_moments_equal_quadrature(m, v):
    density = stats.norm(m, v**0.5).pdf
    high = m + 40 * v**0.5
    mean = expectation(lambda a: a, density, max(0, m - 40 * v**0.5), max(high, 1))
    centred = expectation(lambda a: (a - mean) ** 2, density, max(0, m - 40 * v**0.5), max(high, 1))
    variance = centred + mean**2 * stats.norm(m, v**0.5).cdf(0)
    found = rectify(np.array(m), np.array(v))
    np.testing.assert_allclose([found.mean, found.variance], [mean, variance], rtol=1e-7)


@pytest.mark.parametrize("m", [-1e3, -50.0, 1e6])
def test_rectified_moments_far_out(m):
    found = rectify(np.array(m), np.array(2.0))
    np.testing.assert_allclose([found.mean, found.variance], [max(m, 0), 2.0 if m > 0 else 0.0], rtol=1e-12, atol=1e-99)


def torch_log_evidence(m, v, x, y, noise_variance):
    """log Z of one row, written for autograd."""
    mean, variance = x, torch.zeros_like(x)
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=x.dtype), 1.0)
    for position, (m_l, v_l) in enumerate(zip(m, v, strict=True)):
        if position:
            s = variance.sqrt()
            a = mean / s
            pdf, cdf = normal.log_prob(a).exp(), normal.cdf(a)
            first = mean * cdf + s * pdf
            second = (mean**2 + variance) * cdf + mean * s * pdf
            mean, variance = first, second - first**2
        one = torch.ones(1, dtype=x.dtype)
        mean, variance = torch.cat([mean, one]), torch.cat([variance, 0 * one])
        R = len(mean)
        new_variance = ((mean**2 + variance) @ v_l + variance @ m_l**2) / R
        mean, variance = mean @ m_l / R**0.5, new_variance
    return torch.distributions.Normal(mean[0], (variance[0] + noise_variance).sqrt()).log_prob(y)


def test_the_gaussian_update_has_the_moments_of_the_tilted_distribution():
    """One weight w ~ N(m, v) and y ~ N(w, s²): moments of the product by quadrature."""
    m, v, y, s2 = 0.4, 1.7, -1.1, 0.6
    r, total = y - m, v + s2
    found = pbp.gaussian_update(*map(np.array, (m, v, r / total, 0.5 * (r**2 / total - 1) / total)))

    def tilted(w):
        return stats.norm.pdf(w, m, v**0.5) * stats.norm.pdf(y, w, s2**0.5)

    Z = expectation(lambda w: 1.0, tilted, -20, 20)
    mean = expectation(lambda w: w, tilted, -20, 20) / Z
    variance = expectation(lambda w: (w - mean) ** 2, tilted, -20, 20) / Z
    np.testing.assert_allclose([found.mean, found.variance], [mean, variance], rtol=1e-9)


def test_an_update_to_a_negative_variance_is_not_made():
    found = pbp.gaussian_update(np.array([1.0]), np.array([2.0]), np.array([3.0]), np.array([0.0]))
    assert (found.mean, found.variance) == (1.0, 2.0)


def tilted_moments(a, b, r, v):
    """The normaliser of Gamma(γ; a, b) N(r; 0, v + 1/γ), E γ and E γ²."""
    prior = stats.gamma(a, scale=1 / b)

    def tilted(g):
        return prior.pdf(g) * stats.norm.pdf(r, 0, (v + 1 / g) ** 0.5)

    Z, one, two = (expectation(lambda g, p=p: g**p, tilted, *prior.ppf([1e-14, 1 - 1e-14])) for p in range(3))
    return Z, one / Z, two / Z


@pytest.mark.parametrize(("a", "b", "r", "v"), [(6.0, 6.0, 1.5, 0.4), (40.0, 9.0, -0.2, 2.0), (6.0, 1.0, 0.01, 0.1)])
def test_matched_gamma_has_the_moments_of_the_tilted_distribution(a, b, r, v):
    levels = [np.log(tilted_moments(a + k, b, r, v)[0]) for k in range(3)]
    new_a, new_b = matched_gamma(*map(np.array, (a, b, levels[1] - levels[0], levels[2] - levels[1])))
    np.testing.assert_allclose(
        [new_a / new_b, new_a * (new_a + 1) / new_b**2], tilted_moments(a, b, r, v)[1:], rtol=1e-7
    )


def test_the_gaussian_evidence_is_right_for_a_concentrated_gamma():
    a, b, r, v = 3000.0, 900.0, 2.0, 0.5
    new_a, new_b = tilted_gamma(*map(np.array, (a, b, r, v)))
    _, mean, _ = tilted_moments(a, b, r, v)
    np.testing.assert_allclose(new_a / new_b - a / b, mean - a / b, rtol=5e-3)


def filter_linear(x, y, m, v, variance):
    """One pass over rows of a linear model with known noise, its bias held at zero by a tiny variance."""
    m, v = np.append(m, 0.0)[None], np.append(v, 1e-60)[None]
    noise = np.array([[np.nan, variance]])
    order = np.arange(len(y))[None]
    filter_rows([x.shape[1], 1], np.array([len(y)]), x[None], y[None], order, m, v, noise, known=True)
    return m[0, :-1], v[0, :-1]


def exact_linear(x, y, m, v, variance):
    """Posterior mean and covariance of Bayesian linear regression, inputs divided by √R as in the network."""
    z = x / np.sqrt(x.shape[1] + 1)
    precision = np.diag(1 / v) + z.T @ z / variance
    return np.linalg.solve(precision, m / v + z.T @ y / variance), np.linalg.inv(precision)


@pytest.mark.parametrize(
    "x",
    [np.array([[1.0], [-0.4], [2.2]]), np.diag([1.0, -2.0, 0.5, 3.0]), np.array([[1.0, -2.0, 0.5]])],
    ids=["one weight", "orthogonal inputs", "one row"],
)
def test_filtering_has_exact_marginals(x):
    D = x.shape[1]
    rng = np.random.default_rng(3)
    m, v, y = rng.normal(size=D), rng.uniform(0.5, 2, size=D), rng.normal(size=len(x))
    found_m, found_v = filter_linear(x, y, m, v, 0.3)
    exact_m, exact_v = exact_linear(x, y, m, v, 0.3)
    np.testing.assert_allclose(found_m, exact_m, rtol=1e-10)
    np.testing.assert_allclose(found_v, np.diag(exact_v), rtol=1e-10)


# -- a whole fit ------------------------------------------------------------------------------------------------------


class SlowPBP:
    """[HA15] line by line, gradients by autograd: rows one at a time, then one sweep over the prior's factors."""

    def __init__(self, sizes, m, noise):
        self.sizes, self.m, self.v = sizes, m.copy(), np.full_like(m, 6.0 / 5.0)
        self.noise, self.weight_gamma = noise, (6.0, 6.0)  # a number where known, else (a, b)
        self.factors = [(0.0, 5.0 / 6.0, 0.0, 0.0) for _ in m]  # m/v, 1/v and the part of q(λ)

    def log_z(self, x, y, noise_variance):
        leaves = [torch.tensor(flat[None], requires_grad=True) for flat in (self.m, self.v)]
        shaped = [[layer[0] for layer in split_layers(leaf, self.sizes)] for leaf in leaves]
        value = torch_log_evidence(*shaped, torch.tensor(x), torch.tensor(y), noise_variance)
        return value.item(), [gradient[0].numpy() for gradient in torch.autograd.grad(value, leaves)]

    @staticmethod
    def gamma(log_z, a, b):
        """Equations 7 and 8, with Z at a, a + 1 and a + 2."""
        z, z1, z2 = (np.exp(log_z(shape)) for shape in (a, a + 1, a + 2))
        return 1 / (z * z2 / z1**2 * (a + 1) / a - 1), 1 / (z2 / z1 * (a + 1) / b - z1 / z * a / b)

    @staticmethod
    def log_prior_z(m, v, b, a):
        return stats.norm(0, (v + b / (a - 1)) ** 0.5).logpdf(m)

    def take_in(self, x, y):
        a, b = (np.nan, np.nan) if np.isscalar(self.noise) else self.noise
        variance = self.noise if np.isscalar(self.noise) else b / (a - 1)
        _, (d_m, d_v) = self.log_z(x, y, variance)
        if not np.isscalar(self.noise):
            self.noise = self.gamma(lambda shape: self.log_z(x, y, b / (shape - 1))[0], a, b)
        m, v = self.m + self.v * d_m, self.v - self.v**2 * (d_m**2 - 2 * d_v)
        self.m, self.v = np.where(v > 0, m, self.m), np.where(v > 0, v, self.v)  # no variance below zero

    def refine(self):
        for k, (shift, precision, own_a, own_b) in enumerate(self.factors):
            cavity_v = 1 / (1 / self.v[k] - precision)
            cavity_m = cavity_v * (self.m[k] / self.v[k] - shift)
            a, b = self.weight_gamma[0] - own_a, self.weight_gamma[1] - own_b
            if not (0 < cavity_v < 1e6 and a > 1 and b > 0):
                continue
            total = cavity_v + b / (a - 1)
            self.m[k] = cavity_m - cavity_v * cavity_m / total
            self.v[k] = cavity_v - cavity_v**2 / total
            log_z = partial(self.log_prior_z, cavity_m, cavity_v, b)
            self.weight_gamma = self.gamma(log_z, a, b)
            own = self.weight_gamma[0] - a, self.weight_gamma[1] - b
            self.factors[k] = self.m[k] / self.v[k] - cavity_m / cavity_v, 1 / self.v[k] - 1 / cavity_v, *own


@pytest.mark.parametrize("hidden", [(4,), (3, 2), ()], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_a_whole_fit_of_figure_1_is_that_of_the_equations(known, hidden):
    """So what its panel shows, such as the peak where the noise is known from the first row on, is the method's."""
    X, y = cubic(seed=0)
    sizes, scale = [1, *hidden, 1], 3.0 if known else None
    fitted = pbp.PBPRegressor(hidden, 3, noise_scale=scale, random_state=5).fit(X, y)
    x, z = (X - X.mean()) / X.std(), (y - y.mean()) / y.std()
    generator = np.random.default_rng([5, 0])
    slow = SlowPBP(sizes, pbp._initial_means(sizes, generator), (3 / y.std()) ** 2 if known else (6.0, 6.0))
    for _ in range(3):
        for row in generator.permutation(len(y)):
            slow.take_in(x[row], z[row])
        slow.refine()
    flat = [np.concatenate([layer.ravel() for layer in part]) for part in fitted.posterior_[:2]]
    np.testing.assert_allclose(flat, [slow.m, slow.v], rtol=1e-5)
    noise = slow.noise if known else slow.noise[1] / (slow.noise[0] - 1)
    assert fitted.posterior_.noise_variance == pytest.approx(noise, rel=1e-6)
