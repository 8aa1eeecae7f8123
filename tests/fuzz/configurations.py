"""Random options of the estimators on small tables: a ValueError that says what is wrong, or finite predictions."""

from __future__ import annotations

import random
import warnings
from collections.abc import Collection
from pathlib import Path

import numpy as np
from findings import Finding

import vmg
from vmg import TableClassifier, TableRegressor
from vmg.likelihoods.families import LIKELIHOODS
from vmg.variational import VMGClassifier, VMGRegressor

SOUND: dict[str, tuple] = {
    "hidden_layer_sizes": ((), (3,), (3, 2), 4, [2], "auto", np.int64(3)),
    "activation": ("relu", "tanh", "cos", "silu", "auto"),
    "n_pseudo": (0, 1, 3, 30, (2, 0)),
    "max_noise": (0.25, 0.01, 1.0, "auto"),
    "pseudo_noise": ("layer", "factored"),
    "row_covariance": ("diagonal", "rank_one", "dense"),
    "column_covariance": ("diagonal", "rank_one", "dense"),
    "zero_mean": (False, True),
    "prior": ("gamma", "isotropic"),
    "noise": ("auto", "constant", "input"),
    "likelihood": ("auto", "auto", *LIKELIHOODS),
    "learning_rate_init": (0.001, 0.1, 1e6),
    "batch_size": ("auto", 1, 5, 1000),
    "n_members": (1, 2, 3, "auto"),
    "n_draws": (1, 10),
    "n_iter_no_change": (1, 5),
    "averaging": (0.9, None, 0.0),
    "early_stopping": (False, True),
    "random_state": (0, 7),
}
WRONG: dict[str, tuple] = {
    "hidden_layer_sizes": ((0,), "3", None, (-1,), (2.5,), ((2,),)),
    "activation": ("nonsense", None, 3),
    "n_pseudo": (-1, 0.5, "2", (1, 2, 3, 4)),
    "max_noise": (0.0, -1, 2.0, "nonsense", float("nan")),
    "row_covariance": ("nonsense", None),
    "prior": ("nonsense", 1),
    "noise": ("nonsense", 0.1),
    "likelihood": ("nonsense", None, 3),
    "learning_rate_init": (0, -1, float("nan"), float("inf"), "fast"),
    "batch_size": (0, 2.5, "all"),
    "n_members": (0, -3, 1.5),
    "n_draws": (0, 1.5, -1),
    "averaging": (1.0, -0.5, "half"),
    "random_state": (-1, "a", 0.5),
    "validation_fraction": (0, 1, 2.0, "half"),
    "max_iter": (0, -1, 1.5, "long"),
}


def choose_options(rng: random.Random, known: Collection[str]) -> dict[str, object]:
    """A few options out of the ordinary, one in three times with one that is wrong."""
    options = {
        "max_iter": 1,
        "hidden_layer_sizes": (2,),
        "n_pseudo": 1,
        "max_noise": 0.25,
        "n_draws": 5,
        "n_members": 2,
    }
    sound = [name for name in SOUND if name in known]
    options |= {name: rng.choice(SOUND[name]) for name in rng.sample(sound, rng.choice((1, 2, 4)))}
    if rng.random() < 0.33:
        name = rng.choice([name for name in WRONG if name in known])
        options[name] = rng.choice(WRONG[name])
    return {name: value for name, value in options.items() if name in known}


def configuration(rng: random.Random, folder: Path) -> str:
    """Fit, predict, save and load with some options out of the ordinary."""
    kind = rng.choice((TableRegressor, TableClassifier, VMGRegressor, VMGClassifier))
    classes = kind in (TableClassifier, VMGClassifier)
    options = choose_options(rng, kind().get_params())
    draws = np.random.default_rng(rng.randrange(2**32))
    n, width = rng.choice((1, 2, 3, 8, 30, 30, 30)), rng.choice((1, 2, 5))
    X = draws.normal(size=(n, width)) * 10.0 ** rng.choice((0, 0, 0, 5, -5, 150))
    y = draws.normal(size=n) * 10.0 ** rng.choice((0, 0, 0, 3, -3, 100))
    kind_of_target = rng.randrange(6)  # numbers, counts, shares of the whole, amounts, two numbers a row
    if kind_of_target == 1:
        y = draws.poisson(rng.choice((0.3, 3, 1000)), size=n).astype(float)
    elif kind_of_target == 2:
        y = draws.beta(2, 3, size=n)
    elif kind_of_target == 3:
        y = draws.gamma(2, size=n) * (draws.random(n) < rng.choice((0.7, 1.0)))
    elif kind_of_target == 4:
        y = np.sort(draws.integers(0, 4, size=(n, 2)).astype(float), axis=1)
    if classes:
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
        if not classes and not np.isfinite(np.asarray(predicted, dtype=float)).all():
            raise Finding(f"{options} predicts what is not finite")
        try:
            model.save(folder / "model.vmg")
        except vmg.ModelFileError:
            return "fitted, not saved"
        if not np.array_equal(vmg.load(folder / "model.vmg").predict(X), predicted):
            raise Finding(f"{options} predicts otherwise after loading")
    return "fitted"
