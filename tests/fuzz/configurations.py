"""Random options of the estimators on small tables: a ValueError that says what is wrong, or finite predictions."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
from findings import Finding

import vmg
from vmg import VMGClassifier, VMGRegressor

OPTIONS: dict[str, tuple] = {
    "hidden_layer_sizes": ((), (3,), (3, 2), 4, (0,), "3", None, [2]),
    "activation": ("relu", "tanh", "cos", "silu", "nonsense", None),
    "n_pseudo": (0, 1, 3, 30, -1, 0.5, (2, 0)),
    "max_noise": (0.25, 0.01, 1.0, 0.0, -1, 2.0, "nonsense"),
    "row_covariance": ("diagonal", "rank_one", "dense", "nonsense"),
    "prior": ("gamma", "isotropic", "nonsense"),
    "learning_rate_init": (0.001, 0.1, 1e6, 0, -1, float("nan")),
    "batch_size": ("auto", 1, 5, 1000, 0, 2.5),
    "n_members": (1, 2, 0),
    "n_draws": (1, 10, 0, 1.5),
    "averaging": (0.9, None, 0.0, 1.0, -0.5),
    "random_state": (0, None, -1, "a"),
    "warm_start": (False, True),
}


def configuration(rng: random.Random, folder: Path) -> str:
    """Fit, predict, save and load with some options out of the ordinary."""
    kind = rng.choice((VMGRegressor, VMGClassifier))
    known = kind().get_params()
    chosen = rng.sample([name for name in OPTIONS if name in known], rng.choice((1, 2, 4)))
    options = {"max_iter": 1, "hidden_layer_sizes": (2,), "n_pseudo": 1, "max_noise": 0.25, "n_draws": 5}
    options = {name: value for name, value in options.items() if name in known}
    options |= {name: rng.choice(OPTIONS[name]) for name in chosen}
    draws = np.random.default_rng(rng.randrange(2**32))
    n, width = rng.choice((1, 2, 3, 8, 30)), rng.choice((1, 2, 5))
    X = draws.normal(size=(n, width)) * 10.0 ** rng.choice((0, 0, 5, -5, 150))
    y = draws.normal(size=n) * 10.0 ** rng.choice((0, 0, 3, -3, 100))
    if kind is VMGClassifier:
        y = (draws.random(n) * rng.choice((1, 2, 3))).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = kind(**options).fit(X, y)
        except (ValueError, TypeError) as error:
            if not str(error):
                raise Finding(f"{options} refused without a word") from error
            return "refused"
        except vmg.training.TrainingError:
            return "training stopped"
        predicted = model.predict(X)
        if kind is VMGRegressor and not np.isfinite(np.asarray(predicted, dtype=float)).all():
            raise Finding(f"{options} predicts what is not finite")
        try:
            model.save(folder / "model.vmg")
        except vmg.ModelFileError:
            return "fitted, not saved"
        if not np.array_equal(vmg.load(folder / "model.vmg").predict(X), predicted):
            raise Finding(f"{options} predicts otherwise after loading")
    return "fitted"
