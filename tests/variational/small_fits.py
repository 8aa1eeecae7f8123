"""Fits of a fraction of a second without any estimator around them."""

import numpy as np
import torch

from quick import linear_table
from vmg.fit.design import Standardiser
from vmg.variational.fitter import Fitter, Method, NumericTargets, TrainingSet
from vmg.variational.recipe import GaussianNoise, Given, MatrixGaussianNetworks

METHOD = Method(MatrixGaussianNetworks((8,), n_pseudo=2), GaussianNoise(), Given(0.25))
TARGETS = NumericTargets(Standardiser(np.zeros(1), np.ones(1)), squeeze=True)


def small_fitter(**options):
    """One step an epoch on any table here."""
    defaults = {"batch_size": 300, "n_epochs": 40, "learning_rate": 0.1, "averaging": 0.9, "seed": 1}
    return Fitter(options.pop("method", METHOD), TARGETS, **{**defaults, **options})


def small_rows(n=30, weight=None):
    X, y = linear_table(n)
    w = None if weight is None else torch.as_tensor(weight, dtype=torch.float32)
    return TrainingSet(torch.as_tensor(X, dtype=torch.float32), TARGETS.encode(y), w, TARGETS.unit)
