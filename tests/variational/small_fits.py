"""Fits of a fraction of a second without any estimator around them."""

import numpy as np
import torch

from quick import linear_table
from vmg.variational.fitter import Fitter, GaussianNoise, Method, TrainingSet, given, matrix_gaussian_networks

METHOD = Method(matrix_gaussian_networks((8,), n_pseudo=2), GaussianNoise(), given(0.25))


def small_fitter(**options):
    """One step an epoch on any table here."""
    defaults = {"batch_size": 300, "n_epochs": 40, "learning_rate": 0.1, "averaging": 0.9, "seed": 1}
    return Fitter(METHOD, **{**defaults, **options})


def small_rows(n=30, weight=None):
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in linear_table(n))
    w = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)
    return TrainingSet(x, y[:, None], w, np.ones(1))
