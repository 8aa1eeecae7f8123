"""Slow, obvious versions of the library's mathematics, to test the fast ones against.

Nothing here calls a method of the library: covariances are built entry by entry, matrix Gaussians are ordinary
Gaussians on the explicit Kronecker product, expectations are sums over a grid. Everything is float64.
"""

import itertools
import math

import numpy as np
import torch
from scipy import integrate, stats
from torch.distributions import MultivariateNormal

from vmg.covariance import Dense, Diagonal, RankOne

FAMILIES = ["diagonal", "rank_one", "dense"]


def normal(*shape, seed):
    """Standard normal float64 numbers that depend on the seed alone."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def many_draws(layer, x, n):
    """So many calls of the layer, [n, ...]."""
    return torch.func.vmap(lambda _: layer(x), randomness="different")(torch.empty(n)).detach()


def assert_close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def members(batch_shape):
    """The indices of all members of a batch."""
    return itertools.product(*(range(n) for n in batch_shape))


# Covariances


def family_parameters(family, n, batch_shape=(), seed=0):
    """Random tensors that define a member of the family."""
    scale = torch.exp(0.3 * normal(*batch_shape, n, seed=seed))
    if family == "diagonal":
        return (scale,)
    if family == "rank_one":
        return scale, 0.7 * normal(*batch_shape, n, seed=seed + 1)
    return (torch.diag_embed(scale) + 0.5 * normal(*batch_shape, n, n, seed=seed + 2).tril(-1),)


def family_member(family, *parameters):
    return {"diagonal": Diagonal, "rank_one": RankOne, "dense": Dense}[family](*parameters)


def family_root(family, scale, *vector):
    """The square root L that defines a member of the family."""
    if family == "dense":
        return scale.tril()
    return torch.diag_embed(scale) + sum(v.unsqueeze(-1) * v.unsqueeze(-2) for v in vector)


def random_covariance(family, n, batch_shape=(), seed=0):
    """A random member of a family, and the matrix that it stands for."""
    parameters = family_parameters(family, n, batch_shape, seed)
    root = family_root(family, *parameters)
    return family_member(family, *parameters), root @ root.mT


# Gaussians


def vec(W):
    """The columns of W stacked into one vector."""
    return torch.cat([W[..., :, j] for j in range(W.shape[-1])], dim=-1)


def matrix_normal(M, U, V):
    """MN(M, U, V) as the Gaussian of vec(W)."""
    return MultivariateNormal(vec(M), covariance_matrix=torch.kron(V, U))


def gaussian_linear(mean, covariance, T):
    """Mean and covariance of T w for a Gaussian w."""
    return T @ mean, T @ covariance @ T.mT


def gaussian_condition(mean, covariance, given, value):
    """Mean and covariance of the other coordinates, in order, given that the coordinates ``given`` equal ``value``."""
    rest = [i for i in range(len(mean)) if i not in given]
    S_rr, S_rg = covariance[rest][:, rest], covariance[rest][:, given]
    gain = torch.linalg.solve(covariance[given][:, given], S_rg.mT).mT
    return mean[rest] + gain @ (value - mean[given]), S_rr - gain @ S_rg.mT


def layer_given_pseudo_data(x, M, U, V, A, B, damping):
    """Mean and covariance of vec(xW) given ÃW + σξ = B̃, ξ ~ MN(0, I, V), by conditioning one large Gaussian."""
    P, (n, _), C = A.shape[0], x.shape, V.shape[0]
    z = torch.cat([A, x])
    mean, covariance = gaussian_linear(vec(M), torch.kron(V, U), torch.kron(torch.eye(C, dtype=x.dtype), z))
    noise = torch.zeros(P + n, P + n, dtype=x.dtype)
    noise[range(P), range(P)] = damping
    given = [c * (P + n) + p for c in range(C) for p in range(P)]
    return gaussian_condition(mean, covariance + torch.kron(V, noise), given, vec(B))


def regression_given_pseudo_data(x, M, U, V, A, B, damping):
    """The same by Bayesian linear regression of B̃ on Ã, where precisions of the weights add."""
    P, eye = len(A), torch.eye(len(V), dtype=x.dtype)
    design = torch.kron(eye, A)
    noise_precision = torch.linalg.inv(torch.kron(V, damping * torch.eye(P, dtype=x.dtype)))
    prior_precision = torch.linalg.inv(torch.kron(V, U))
    precision = prior_precision + design.mT @ noise_precision @ design
    mean = torch.linalg.solve(precision, prior_precision @ vec(M) + design.mT @ noise_precision @ vec(B))
    return gaussian_linear(mean, torch.linalg.inv(precision), torch.kron(eye, x))


def push_noise(function, shape):
    """Exact mean and covariance of vec(function(noise)) for standard normal noise, ``function`` being affine in it."""
    origin = vec(function(torch.zeros(*shape, dtype=torch.float64)))
    columns = []
    for index in members(shape):
        unit = torch.zeros(*shape, dtype=torch.float64)
        unit[index] = 1
        columns.append(vec(function(unit)) - origin)
    root = torch.stack(columns, -1)
    return origin, root @ root.mT


def keep_row_blocks(covariance, n_rows):
    """The covariance of vec(B) with the correlations between different rows of B removed."""
    row = torch.arange(covariance.shape[0]) % n_rows
    return covariance * (row[:, None] == row[None, :])


# Monte Carlo


def assert_moments(samples, mean, covariance, n_errors=5.0):
    """Compare the first two moments of samples [S, n] of a Gaussian within standard errors."""
    S = samples.shape[0]
    variance = covariance.diagonal()
    centred = samples - mean
    assert (centred.mean(0).abs() <= n_errors * (variance / S).sqrt()).all()
    errors = ((variance[:, None] * variance[None, :] + covariance.square()) / S).sqrt()
    assert ((centred.mT @ centred / S - covariance).abs() <= n_errors * errors).all()


def assert_expectation(values, expected, n_errors=5.0):
    """Compare the mean of values [S] with what it should be within standard errors."""
    assert abs(values.mean() - expected) <= n_errors * values.std() / math.sqrt(len(values))


# Expectations over Gamma variables, and the log-uniform prior


def gamma_nodes(concentration, rate, n=400):
    """Points and weights of the trapezoidal rule in log τ for expectations over Gamma(concentration, rate)."""
    gamma = stats.gamma(concentration, scale=1 / rate)
    log_tau = np.linspace(math.log(gamma.ppf(1e-17)), math.log(gamma.isf(1e-17)), n)
    weights = np.exp(gamma.logpdf(np.exp(log_tau)) + log_tau) * (log_tau[1] - log_tau[0])
    return torch.tensor(np.exp(log_tau)), torch.tensor(weights)


def log_uniform_negative_kl(alpha):
    """−KL(N(1, α) ‖ log-uniform) up to a constant: ½ log α − E log|ε|, by adaptive quadrature."""
    scale = math.sqrt(alpha)

    def integrand(z):
        return stats.norm.pdf(z) * math.log(abs(1 + scale * z))

    pole = -1 / scale
    edges = sorted({-38.0, max(pole, -38.0), 38.0})
    expectation = sum(integrate.quad(integrand, a, b, limit=500)[0] for a, b in itertools.pairwise(edges))
    return 0.5 * math.log(alpha) - expectation


def tensors_of(module):
    """A module's state without settings, which all its replicas share: names and tensors."""
    return [(name, value) for name, value in module.state_dict().items() if not name.endswith("_extra_state")]
