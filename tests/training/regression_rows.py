"""Rows of a linear regression and small helpers for the tests of training."""

import torch

N, D = 24, 3


def regression(*leading):
    x = torch.randn(*leading, N, D)
    return x, x[..., :1] - 0.5 * x[..., 1:2]


def values(*modules):
    return [p.detach().clone() for m in modules for p in m.parameters()]


def all_finite(*modules):
    return all(torch.isfinite(p).all() for p in values(*modules))


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)
