"""Numbers behind a report, apart from its words and pictures: predictions, scores, and what each column does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from vmg import metrics
from vmg.estimators import TableModel
from vmg.estimators.table_estimator import column_relevance, conformal_interval
from vmg.math.distributions import Array
from vmg.prediction import ClassPrediction
from vmg.tables.cells import Cells, to_texts
from vmg.tables.columns import DateColumn, NumberColumn
from vmg.tables.dates import to_timestamps
from vmg.tables.inputs import label_positions

__all__ = [
    *("Bin", "Contents", "Coverage", "Effect", "Influence", "Intervals", "Positions"),
    *("calibration_error_by_chance", "choose", "column_effects", "column_influences", "effect_grid", "extremes"),
    *("function_draws", "read_columns", "read_contents", "read_intervals", "read_reliability"),
]

Positions = NDArray[np.int64]

SEED = 0  # of every subsample: the same table gives the same page
SHOWN_ROWS = 5_000  # rows behind the pictures,
SHOWN_DRAWS = 2**25  # or as many as give this many posterior draws of outputs, for the sake of memory
FEWEST_SHOWN = 400
CERTAIN_ROWS = 5
MOST_CLASSES = 6  # in one picture of effects
COVERAGES = (0.5, 0.8, 0.9, 0.95)
INTERVAL_ROWS = 400  # rows whose interval ends are drawn; in a mixture each is found by a root search
INFLUENCE_ROWS = 200  # rows among which one column is shuffled
EFFECT_ROWS = 50  # rows that an effect is averaged over
EFFECT_GRID = 17  # values of a column that an effect is drawn at
MOST_CATEGORIES = 12
FUNCTION_DRAWS = 200  # of a posterior in closed form
BAND = (0.05, 0.95)  # of posterior draws


@dataclass(frozen=True)
class Contents:
    """Predictions of the rows that are shown, and the scores of all rows whose truth is known.

    ``scores`` and ``base``, those of the training targets' base rate, are what ``vmg evaluate`` gives; None and empty
    where no truth is known.
    """

    position: Positions  # [N], of the rows that are shown in the frame
    prediction: Any
    uncertainty: Array  # [N], standard deviation or entropy
    ignorance_share: Array  # [N], of the variance or the entropy
    truth: NDArray[Any]  # [N], numbers or places of classes; NaN or -1 where unknown
    known: Positions  # [K], shown rows whose truth is known
    scores: dict[str, float] | None
    base: dict[str, float]
    n_unknown_classes: int = 0  # rows with a class that the model has never seen

    @property
    def extremes(self) -> tuple[Positions, Positions]:
        """The most and the least certain of the shown rows."""
        return extremes(self.uncertainty)

    @property
    def shown_classes(self) -> list[int]:
        """Places of the classes in pictures of effects: the second of two, or of many the most frequent."""
        if not isinstance(self.prediction, ClassPrediction):
            return [0]
        probabilities = self.prediction.probabilities
        order = np.argsort(-probabilities.mean(0), kind="stable")
        return [1] if probabilities.shape[1] == 2 else sorted(order[:MOST_CLASSES].tolist())

    @property
    def confidence(self) -> tuple[Array, NDArray[np.bool_]]:
        """The highest probability of each known row, [K], and whether it is that of the true class."""
        probabilities = self.prediction.probabilities[self.known]
        return probabilities.max(1), probabilities.argmax(1) == self.truth[self.known]


def read_contents(model: TableModel, frame: pd.DataFrame) -> Contents:
    """Predict rows of a frame to show, and score all whose truth is known."""
    one = model.filled_dist(frame.iloc[:1])
    in_memory = SHOWN_DRAWS // (one.samples.size if isinstance(one, ClassPrediction) else 1)
    position = choose(len(frame), min(SHOWN_ROWS, max(in_memory, FEWEST_SHOWN)))
    prediction = model.pred_dist(frame.iloc[position])
    has_target, n_strange = model.target in frame.columns, 0
    if isinstance(prediction, ClassPrediction):
        truth = np.full(len(frame), -1)
        if has_target:
            truth = label_positions(Cells(frame[model.target]), prediction.classes)
            n_strange = int(((truth < 0) & to_texts(frame[model.target]).notna().to_numpy()).sum())
        given = truth >= 0
        uncertainty, ignorance = prediction.predictive_entropy, prediction.mutual_information
        total = uncertainty
    else:
        truth = model.read_target(frame[model.target]) if has_target else np.full(len(frame), np.nan)
        given = np.isfinite(truth)
        uncertainty, ignorance = prediction.std, prediction.epistemic_std**2
        total = prediction.aleatoric_std**2 + ignorance
    usable = np.isfinite(total) & (total > 0)
    share = np.divide(ignorance, total, out=np.zeros(len(total)), where=usable)
    scores = model.evaluate(frame[given]) if given.any() else None
    base = model.evaluate_base_rate(frame[given]) if given.any() else {}
    shown = truth[position], np.flatnonzero(given[position]), scores, base
    return Contents(position, prediction, uncertainty, share, *shown, n_strange)


def choose(n: int, most: int) -> Positions:
    """At most ``most`` of n positions, at random but always the same ones, in order."""
    return np.arange(n) if n <= most else np.sort(np.random.default_rng(SEED).choice(n, most, replace=False))


def extremes(uncertainty: Array) -> tuple[Positions, Positions]:
    """Positions of the most certain and the least certain rows, the most telling first; none is in both."""
    order = np.argsort(uncertainty, kind="stable")
    n = min(CERTAIN_ROWS, (len(order) + 1) // 2)
    return order[:n], order[n:][::-1][:n]


def read_columns(model: TableModel, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that the model uses, in their own types: floats, timestamps, texts or booleans.

    The encoder makes the same features of them as of the cells themselves.
    """
    read = {}
    for column in model.encoder.columns:
        cells = frame[column.name]
        if isinstance(column, NumberColumn):
            cells = column.values(Cells(cells))
        elif isinstance(column, DateColumn):
            cells = to_timestamps(Cells(cells), column.date_format)
        else:
            cells = to_texts(cells)
        read[column.name] = cells
    return pd.DataFrame(read, index=frame.index)


# -- intervals of numbers, probabilities of classes -------------------------------------------------------------------


class Coverage(NamedTuple):
    """How often an interval held the truth."""

    stated: float
    observed: float
    width: float
    tolerance: float  # two percentage points, and two standard errors of chance


class Intervals(NamedTuple):
    """90 % intervals of some of the shown rows, and how often intervals held the truth."""

    drawn: Positions  # [D]
    ends: Array  # [D, 2]
    of_row: dict[int, tuple[float, float]]  # of the most and the least certain rows
    coverages: list[Coverage]  # empty where no truth is known


def read_intervals(model: TableModel, contents: Contents) -> Intervals:
    """The intervals that the model predicts, conformal ones where it has them."""
    prediction, conformal = contents.prediction, model.estimator.conformal_scores_
    drawn, known = choose(len(contents.position), INTERVAL_ROWS), contents.known
    extreme = np.concatenate(contents.extremes)
    ends, outer = (conformal_interval(prediction.take(rows), conformal, 0.9) for rows in (drawn, extreme))
    coverages = []
    for stated in COVERAGES if contents.scores is not None else ():
        interval = conformal_interval(prediction.take(known), conformal, stated)
        held = metrics.interval_coverage(contents.truth[known], interval)
        tolerance = 0.02 + 2 * float(np.sqrt(stated * (1 - stated) / len(known)))
        coverages.append(Coverage(stated, held, metrics.interval_width(interval), tolerance))
    of_row = {int(row): (float(low), float(high)) for row, (low, high) in zip(extreme, outer, strict=True)}
    return Intervals(drawn, ends, of_row, coverages)


class Bin(NamedTuple):
    """Rows whose highest probability lies in one range."""

    confidence: float
    accuracy: float
    low: float  # what chance leaves possible for the true share, at 95 % (Clopper & Pearson 1934)
    high: float
    n_rows: int


def read_reliability(contents: Contents, n_bins: int = 10) -> list[Bin]:
    """Shown rows whose class is known, by the probability of their likeliest class."""
    confidence, correct = contents.confidence
    bins, filled = metrics.confidence_bins(confidence, n_bins), []
    for b in np.unique(bins):
        hits = correct[bins == b]
        plausible = stats.binomtest(int(hits.sum()), len(hits)).proportion_ci()
        stated = float(confidence[bins == b].mean())
        filled.append(Bin(stated, float(hits.mean()), plausible.low, plausible.high, len(hits)))
    return filled


def calibration_error_by_chance(confidence: Array, n_bins: int = 15) -> float:
    """The calibration error to expect of perfect probabilities: Σ_b (n_b/N) E|accuracy_b − confidence_b|."""
    bins = metrics.confidence_bins(confidence, n_bins)
    variance = np.bincount(bins, weights=confidence * (1 - confidence), minlength=n_bins)  # of a bin's count of hits
    return float(np.sqrt(2 / np.pi * variance).sum() / len(confidence))  # E|z| of a normal is √(2/π)


# -- influence of columns: how far each moves the prediction, and in which direction ----------------------------------


class Influence(NamedTuple):
    """How far predictions move when one column is shuffled among rows: mean over draws and a band of draws.

    In the target's units (root mean square), or for classes the mean share of probability that moves elsewhere.
    """

    column: str
    mean: float
    low: float
    high: float


class Effect(NamedTuple):
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
        change = function_draws(model, rows.assign(**{name: rows[name].array[order]})) - base  # [S, N, K]
        if model.task == "classification":
            moved = np.abs(change).sum(-1).mean(-1) / 2
        else:
            moved = np.sqrt(np.mean(change[..., 0] ** 2, axis=-1))
        influences.append(Influence(name, float(moved.mean()), *np.quantile(moved, BAND).tolist()))
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
