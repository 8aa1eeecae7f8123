"""Estimators that fit in a fraction of a second, and tables for them."""

import inspect

import numpy as np
import torch

from vmg.estimators import TableClassifier, TableRegressor
from vmg.prediction import draw_functions
from vmg.variational import VMGClassifier, VMGRegressor

OPTIONS = {
    "hidden_layer_sizes": (8,),
    "n_pseudo": 2,
    "max_noise": 0.25,  # untried
    "batch_size": 300,  # more than any table here: one step an epoch
    "max_iter": 40,
    "learning_rate_init": 0.1,
    "averaging": 0.9,
    "n_draws": 50,
    "random_state": 0,
}
LINEAR = {"hidden_layer_sizes": (), "n_pseudo": 0}  # learns a linear table well in a hundred steps


def regressor(**options):
    """With constant noise, where exact answers are known; what else is special to input-dependent noise says so."""
    return VMGRegressor(**{**OPTIONS, "noise": "constant", **options})


def classifier(**options):
    return VMGClassifier(**{**OPTIONS, **options})


ENSEMBLE = {"hidden_layer_sizes": 8, "n_members": 4, "max_iter": 20, "random_state": 0}


def ensemble_regressor(**options):
    """With the output layer integrated out."""
    return TableRegressor(**{**ENSEMBLE, **options})


def ensemble_classifier(**options):
    return TableClassifier(**{**ENSEMBLE, **options})


def linear_table(n=60, n_features=3, n_outputs=None, seed=0):
    """y = Xw + noise, the last feature without effect; y is [n], or [n, n_outputs]."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_features))
    w = np.linspace(1, -1, n_features * (n_outputs or 1)).reshape(n_features, -1)
    w[-1] = 0
    y = X @ w + 0.2 * rng.normal(size=(n, w.shape[1]))
    return X, y if n_outputs else y[:, 0]


def class_table(n=60, seed=0, classes=("no", "perhaps", "yes")):
    """Blobs around the corners of a triangle."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % len(classes)
    angle = 2 * np.pi * label / len(classes)
    X = 2 * np.stack([np.cos(angle), np.sin(angle)], 1) + 0.5 * rng.normal(size=(n, 2))
    return X, np.array(classes)[label]


def functions(model, X):
    """Posterior draws of the network's outputs, [S, E, N, C], in its own units."""
    x = torch.as_tensor(model.input_scaling_.transform(X))
    return draw_functions(model.network_, x, model.n_draws, model.seed_)


def everything(model, X):
    """Every number that a fitted model gives."""
    p = model.pred_dist(X)
    return np.concatenate(
        [
            model.predict(X).ravel(),
            p.std.ravel(),
            p.epistemic_std.ravel(),
            model.predict_interval(X).ravel(),
            model.predict_quantiles(X, [0.2, 0.5]).ravel(),
            model.sample(X, 2).ravel(),
        ]
    )


def assert_same_bits(a, b, X):
    np.testing.assert_array_equal(everything(a, X), everything(b, X))


def command_runner():
    """A runner whose output and errors are apart, with click before 8.2 too."""
    from typer.testing import CliRunner

    apart = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**apart)
