"""Influence of each column on the prediction: how far it moves it, and in which direction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators import TableModel
from vmg.estimators.table_estimator import column_relevance
from vmg.prediction import ClassPrediction
from vmg.report.facts import SEED, SHOWN_ROWS, Array, choose, read_columns

__all__ = ["EFFECT_GRID", "Effect", "Influence", "column_effects", "column_influences", "effect_grid", "function_draws"]

INFLUENCE_ROWS = 200  # rows among which one column is shuffled
EFFECT_ROWS = 50  # rows that an effect is averaged over
EFFECT_GRID = 17  # values of a column that an effect is drawn at
MOST_CATEGORIES = 12
FUNCTION_DRAWS = 200  # of a posterior in closed form
BAND = (0.05, 0.95)  # of posterior draws


@dataclass(frozen=True)
class Influence:
    """How far predictions move when one column is shuffled among rows: mean over draws and a band of draws.

    In the target's units (root mean square), or for classes the mean share of probability that moves elsewhere.
    """

    column: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Effect:
    """The mean prediction as one column takes other values and all others stay as they are, with its ignorance.

    ``values`` [G] are numbers, dates or names; ``mean``, ``low`` and ``high`` are [G, 1], or [G, K] for classes.
    """

    column: str
    kind: str
    values: NDArray[Any]
    mean: Array
    low: Array
    high: Array
    observed: NDArray[Any]  # nine deciles of a number, or the shares of categories


def function_draws(model: TableModel, rows: pd.DataFrame) -> Array:
    """Draws of the function [S, N, 1] or of class probabilities [S, N, K]; the weights of a draw serve all rows."""
    prediction = model.filled_dist(rows)
    if isinstance(prediction, ClassPrediction):
        return prediction.samples
    return prediction.sample_functions(FUNCTION_DRAWS, SEED)[..., None]  # one seed: the same functions at other rows


def column_influences(model: TableModel, frame: pd.DataFrame, most: int) -> list[Influence]:
    """The influence of the ``most`` columns that the first layer looks at most, the strongest first."""
    joint = column_relevance(model.encoder, model.estimator.feature_relevance_)
    rows = read_columns(model, frame.iloc[choose(len(frame), INFLUENCE_ROWS)])
    order = np.random.default_rng(SEED).permutation(len(rows))
    base = function_draws(model, rows)
    influences = []
    for name in sorted(joint, key=lambda name: -joint[name])[:most]:
        shuffled = rows.assign(**{name: rows[name].array[order]})
        change = function_draws(model, shuffled) - base  # [S, N, K]
        if model.task == "classification":
            moved = np.abs(change).sum(-1).mean(-1) / 2
        else:
            moved = np.sqrt(np.mean(change[..., 0] ** 2, axis=-1))
        low, high = np.quantile(moved, BAND)
        influences.append(Influence(name, float(moved.mean()), float(low), float(high)))
    return sorted(influences, key=lambda influence: -influence.mean)


def column_effects(model: TableModel, frame: pd.DataFrame, names: Sequence[str]) -> list[Effect]:
    """The effect of each of these columns that takes more than one value."""
    table = read_columns(model, frame.iloc[choose(len(frame), SHOWN_ROWS)])
    rows = table.iloc[choose(len(table), EFFECT_ROWS)]
    kinds = {column.name: column.kind for column in model.encoder.columns}
    effects = []
    for name in names:
        grid, observed = effect_grid(table[name])
        if len(grid) < 2:
            continue
        varied = pd.concat([rows] * len(grid), ignore_index=True)
        varied[name] = grid.repeat(len(rows)).array
        if kinds[name] == "date" and len(grid) == EFFECT_GRID:
            # rows spread over the time between two values, lest each value be some day of the week or season
            step = 1e6 * (grid.iloc[1] - grid.iloc[0]).total_seconds()
            shift = step * np.tile((np.arange(len(rows)) + 0.5) / len(rows) - 0.5, len(grid))
            varied[name] += shift.astype("timedelta64[us]")
        draws = function_draws(model, varied)
        draws = draws.reshape(len(draws), len(grid), len(rows), -1).mean(2)  # [S, G, K]
        low, high = np.quantile(draws, BAND, axis=0)
        mean, values = draws.mean(0), grid.to_numpy()
        if values.dtype == object and mean.shape[1] <= 2:  # categories in the order of their effect
            order = np.argsort(-mean[:, -1], kind="stable")
            values, mean, low, high, observed = (part[order] for part in (values, mean, low, high, observed))
        effects.append(Effect(name, kinds[name], values, mean, low, high, observed))
    return effects


def effect_grid(column: pd.Series) -> tuple[pd.Series, NDArray[Any]]:
    """Values to draw an effect at and what is observed around them.

    Numbers and dates: the observed ones if few, else evenly spaced over the central 98 %; with the deciles.
    Texts: the most frequent; with their shares.
    """
    given = column.dropna()
    if column.dtype == object:
        counts = Counter(given).most_common(MOST_CATEGORIES)
        return pd.Series([text for text, _ in counts], dtype=object), np.array([n / len(given) for _, n in counts])
    distinct = given.drop_duplicates().sort_values()
    if not len(distinct):
        return distinct, np.empty(0)
    deciles = given.quantile(np.linspace(0.1, 0.9, 9)).to_numpy()
    if len(distinct) <= MOST_CATEGORIES:
        return distinct, deciles
    first, last = given.quantile(0.01), given.quantile(0.99)
    if not last > first:
        first, last = distinct.iloc[0], distinct.iloc[-1]
    values = [first + (last - first) * share for share in np.linspace(0, 1, EFFECT_GRID)]
    return pd.Series(values, dtype=deciles.dtype), deciles
