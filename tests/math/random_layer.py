"""A random layer beside plain matrices of it, for the tests of pre-activations."""

import itertools

import pytest
import torch

from reference import (
    FAMILIES,
    assert_close,
    gaussian_linear,
    layer_given_pseudo_data,
    normal,
    random_covariance,
    vec,
)
from vmg.math import preactivations as F

N, R, C, P = 3, 6, 2, 3  # rows of the batch, inputs, outputs, pseudo-points; P + N <= R
over_pairs = pytest.mark.parametrize(("row", "column"), list(itertools.product(FAMILIES, FAMILIES)))
over_damping = pytest.mark.parametrize("damping", [F.DAMPING, 1e-2, 1.0])


def eye(n):
    return torch.eye(n, dtype=torch.float64)


class Layer:
    """A random layer: its library objects, and U and V as plain matrices."""

    def __init__(self, row="dense", column="dense", n=N, p=P, r=R, batch_shape=(), seed=0):
        self.x = normal(*batch_shape, n, r, seed=seed + 1)
        self.M = normal(*batch_shape, r, C, seed=seed + 2)
        self.A = normal(*batch_shape, p, r, seed=seed + 3)
        self.B = normal(*batch_shape, p, C, seed=seed + 4)
        self.row, self.U = random_covariance(row, r, batch_shape, seed=seed + 5)
        self.column, self.V = random_covariance(column, C, batch_shape, seed=seed + 15)

    @property
    def prior(self):
        """M, U, V as the library takes them."""
        return self.M, self.row, self.column

    def function_moments(self, x=None):
        """Exact mean and covariance of vec(xW), W ~ MN(M, U, V), from the Gaussian of all weights."""
        T = torch.kron(eye(C), self.x if x is None else x)
        return gaussian_linear(vec(self.M), torch.kron(self.V, self.U), T)

    def conditional_moments(self, damping, M=None):
        return layer_given_pseudo_data(self.x, self.M if M is None else M, self.U, self.V, self.A, self.B, damping)


def assert_moments_equal(actual, expected, tolerance=1e-10):
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, tolerance)
