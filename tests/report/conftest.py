from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vmg.estimators import TableModel
from vmg.prediction import Prediction
from vmg.tables.inputs import TableInputs
from vmg.training import History, Progress

TINY = {"hidden_layer_sizes": (8,), "n_members": 4, "max_iter": 20, "random_state": 0}


def homes(n=120, seed=0):
    """A table with every kind of column, holes, and numbers and dates written as text."""
    rng = np.random.default_rng(seed)
    area = rng.gamma(6, 15, n).round(1)
    frame = pd.DataFrame(
        {
            "area, m²": [f"{value:.1f}" for value in area],
            "rooms": rng.integers(1, 7, n),
            "district": rng.choice(["North", "South", "Old <Town>"], n),
            "garden": rng.random(n) < 0.4,
            "sold": pd.Timestamp("2020-01-06") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "key": [f"k{i}" for i in range(n)],
        }
    )
    frame["price"] = area + 10 * frame["rooms"] + 5 * rng.standard_normal(n)
    frame["sold"] = frame["sold"].dt.strftime("%d.%m.%Y")
    frame.loc[::9, "area, m²"] = None
    frame.loc[::7, "district"] = None
    return frame


class KnownDraws(Prediction):
    """A prediction whose draws of the function are all that there are."""

    def sample_functions(self, n_samples, random_state=None):
        return self.loc[..., 0]


@dataclass
class Straight:
    """An estimator whose posterior is known: f = Σ_j slope_j x_j with slopes (1 + shift_s), noise of fixed scale."""

    inputs_: TableInputs
    slopes: Any
    shifts: Any = (-0.1, 0.0, 0.1)
    noise: float = 1.0
    df: float = np.inf
    conformal_scores_: Any = None
    limits = -np.inf, np.inf
    history_: History = field(
        default_factory=lambda: History([Progress(i, 10, -1.0 / i, -0.5 / i, 0.5 / i, 0.01, 1.0) for i in (4, 8, 10)])
    )

    @property
    def ensemble_(self):
        features = SimpleNamespace(hidden=(4, 3), activations=("relu",), n_members=1)
        return SimpleNamespace(members=SimpleNamespace(features=features))

    def get_params(self):
        return {}

    @property
    def feature_relevance_(self):
        return np.abs(self.slopes) / max(np.abs(self.slopes).max(), 1e-300)

    def predictions(self, X):
        yield slice(None), self.pred_dist(X)

    def pred_dist(self, X):
        shifts = 1 + np.asarray(self.shifts)[:, None, None]
        loc = shifts * (X.features @ np.asarray(self.slopes))[None, :, None]
        return KnownDraws(loc, np.full((len(shifts), 1, 1), self.noise), np.full((len(shifts), 1, 1), self.df))


@pytest.fixture(scope="session")
def line():
    """A model with f = 3a + 0b exactly, and rows of it."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.standard_normal((300, 2)), columns=["a", "b"])
    frame["y"] = 3 * frame["a"] + rng.standard_normal(300)
    inputs = TableInputs.of_numbers(frame[["a", "b"]].to_numpy(), ["a", "b"])
    return TableModel(Straight(inputs, [3.0, 0.0]), "y", "regression", base_rate=(0.0, 3.2)), frame


@pytest.fixture(scope="session")
def regression():
    frame = homes()
    return TableModel.fit(frame.iloc[:80], "price", options=TINY), frame.iloc[80:]


@pytest.fixture(scope="session")
def binary():
    frame = homes(seed=2)
    frame["dear"] = np.where(frame.pop("price") > 120, "yes", "no")
    return TableModel.fit(frame.iloc[:80], "dear", options=TINY), frame.iloc[80:]


@pytest.fixture(scope="session")
def multiclass():
    frame = homes(seed=3)[["area, m²", "garden", "price"]]
    frame["band"] = pd.cut(frame.pop("price"), [-np.inf, 100, 130, np.inf], labels=["low", "mid", "high"]).astype(str)
    return TableModel.fit(frame.iloc[:80], "band", options=TINY), frame.iloc[80:]
