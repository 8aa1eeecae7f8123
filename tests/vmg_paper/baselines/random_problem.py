"""Rows and states to evaluate log posteriors at."""

import torch


def data(n=7, seed=0):
    """x [n, 2] and y [n]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return x, torch.randn(n, dtype=torch.float64, generator=generator)


def states(model, n=3, seed=1):
    """Of n chains."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, model.n_dimensions, dtype=torch.float64, generator=generator)
