"""Baselines that fit in a fraction of a second."""

import dataclasses

import numpy as np
import pytest

from vmg_paper import baselines
from vmg_paper.baselines import GlobalInducingRegressor, HMCRegressor, PBPRegressor

OPTIONS = {
    "hidden_layer_sizes": (8,),
    "batch_size": 300,  # more than any table here: one step an epoch
    "max_iter": 150,
    "learning_rate_init": 0.1,
    "averaging": 0.9,
    "n_draws": 50,
    "random_state": 0,
}
LAYERS = ("MeanField", "Graves", "MCDropout", "DeepEnsemble")
BATCHED = {
    "pbp": PBPRegressor((5,), n_epochs=10),
    "hmc": HMCRegressor((4,), noise_scale=0.5, n_chains=2, n_warmup=60, n_draws=30),
    "global inducing": GlobalInducingRegressor((5,), n_inducing=20, n_steps=300, n_draws=50),
}


def make(name, **options):
    """The estimator of a baseline of one kind of layer; what names a setting of the baseline goes there."""
    baseline = getattr(baselines, name)
    own = {field.name for field in dataclasses.fields(baseline)}
    settings = {key: value for key, value in options.items() if key in own}
    rest = {key: value for key, value in options.items() if key not in own}
    return baseline(**settings).regressor(**{**OPTIONS, **rest})


every_layer = pytest.mark.parametrize("name", LAYERS)
every_batched = pytest.mark.parametrize("model", BATCHED.values(), ids=BATCHED.keys())
every_method = pytest.mark.parametrize(
    "model",
    [*(make(name, max_iter=5, early_stopping=True) for name in LAYERS), *BATCHED.values()],
    ids=[*LAYERS, *BATCHED],
)


def bounds(model, X):
    """Two quantiles of every row."""
    return np.asarray(model.pred_dist(X).quantile([0.1, 0.9]))
