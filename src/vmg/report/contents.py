"""What the report shows, as numbers: no pictures and no words, so that every figure on the page can be tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from vmg import metrics
from vmg.estimators.conformal import conformal_level
from vmg.prediction import ClassPrediction, Prediction
from vmg.tables.columns import DateColumn, NumberColumn
from vmg.tables.model import TableModel
from vmg.tables.values import to_dates, to_numbers, to_texts

__all__ = [
    "ClassificationContents",
    "ColumnSummary",
    "Effect",
    "Influence",
    "RegressionContents",
    "TrainingCurve",
    "classification_contents",
    "column_effects",
    "column_influences",
    "regression_contents",
    "summarise_columns",
    "training_curve",
]

Array = NDArray[np.float64]
Positions = NDArray[np.int64]

SEED = 0  # of every subsample: the same table gives the same page
SCORED_ROWS = 5_000  # rows behind every number on the page,
SCORED_DRAWS = 2**25  # or as many as give this many posterior draws of outputs, for the sake of memory
INTERVAL_ROWS = 400  # rows whose interval ends are found (a root search each) for pictures and mean widths
INFLUENCE_ROWS = 200  # rows among which one column is shuffled
EFFECT_ROWS = 50  # rows that an effect is averaged over
EFFECT_GRID = 17  # values of a column that an effect is drawn at
MOST_CATEGORIES = 12
CERTAIN_ROWS = 5
FEWEST_TO_JUDGE = 20  # below this chance alone decides
FEWEST_TO_DRAW = 5  # below this a distribution has no shape
COVERAGES = (0.5, 0.8, 0.9, 0.95)
BAND = (0.05, 0.95)  # of posterior draws


# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnSummary:
    """One column as the model understands it; ``numbers`` or ``common`` say what it holds."""

    name: str
    kind: str  # number, boolean, date, category, or target
    n_missing: int
    n_distinct: int
    numbers: tuple[Any, Any, Any] | None  # smallest, median, largest
    common: tuple[tuple[str, float], ...]  # most frequent values with their shares
    unused: str  # why the model does not use it; empty if it does


def read_columns(model: TableModel, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that the model uses, in their own types: floats, moments, texts or booleans.

    The encoder makes the same features of them as of the cells themselves.
    """
    read = {}
    for column in model.encoder.columns:
        cells = frame[column.name]
        if isinstance(column, NumberColumn):
            cells = to_numbers(cells, column.decimal_comma).values
        elif isinstance(column, DateColumn):
            cells = to_dates(cells, column.date_format)
        else:
            cells = to_texts(cells)
        read[column.name] = cells
    return pd.DataFrame(read, index=frame.index)


def summarise_columns(model: TableModel, frame: pd.DataFrame) -> list[ColumnSummary]:
    """Every column of a table, the target last."""
    used, kinds = read_columns(model, frame), {column.name: column.kind for column in model.encoder.columns}
    summaries = []
    for name in sorted(frame.columns, key=lambda name: name == model.target):
        kind, unused = kinds.get(name, "text"), ""
        if name in kinds:
            cells = used[name]
        elif name == model.target and model.task == "regression":
            kind, cells = "target", to_numbers(frame[name], model.decimal_comma).values
        elif name == model.target:
            kind, cells = "target", to_texts(frame[name])
        else:
            cells, unused = to_texts(frame[name]), model.encoder.dropped.get(name, "it is not known from the fit")
        given = cells.dropna()
        numbers: tuple[Any, Any, Any] | None = None
        common: tuple[tuple[str, float], ...] = ()
        if not len(given):
            pass
        elif given.dtype != object:
            middle = given.quantile(0.5, interpolation="lower" if kind == "date" else "linear")
            numbers = (given.min(), middle, given.max())
        else:
            common = tuple((str(value), n / len(given)) for value, n in Counter(given).most_common(3))
        n_missing = len(cells) - len(given)
        summaries.append(ColumnSummary(str(name), kind, n_missing, given.nunique(), numbers, common, unused))
    return summaries


def choose(n: int, most: int, seed: int = SEED) -> Positions:
    """At most ``most`` of n positions, at random but always the same ones, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def scored_rows(model: TableModel, frame: pd.DataFrame) -> Positions:
    """Positions of the rows that are predicted and scored."""
    estimator = model.estimator
    n_outputs = len(estimator.classes_) if model.task == "classification" else 1
    in_memory = SCORED_DRAWS // (estimator.n_draws * estimator.n_members * n_outputs)
    return choose(len(frame), min(SCORED_ROWS, max(in_memory, INTERVAL_ROWS)))


def extremes(uncertainty: Array) -> tuple[Positions, Positions]:
    """Positions of the most certain and the least certain rows, the most telling first; none is in both."""
    order = np.argsort(uncertainty, kind="stable")
    n = min(CERTAIN_ROWS, (len(order) + 1) // 2)
    return order[:n], order[n:][::-1][:n]


# -- regression -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """How often an interval held the truth."""

    stated: float
    observed: float
    n_rows: int
    width: float

    @property
    def tolerance(self) -> float:
        """What is still fine: two standard errors of chance, and two percent points."""
        return 0.02 + 2 * float(np.sqrt(self.stated * (1 - self.stated) / self.n_rows))


@dataclass(frozen=True)
class RegressionScores:
    """Headline numbers, each beside that of a guess that ignores all columns: a normal with the target's moments."""

    n_rows: int
    rmse: float
    rmse_guess: float
    r2: float | None
    log_likelihood: float
    log_likelihood_guess: float | None
    crps: float
    crps_guess: float
    coverages: tuple[Coverage, ...]
    width_guess: float

    @property
    def interval(self) -> Coverage:
        """Of the 90 % interval."""
        return next(c for c in self.coverages if c.stated == 0.9)


@dataclass(frozen=True)
class RegressionContents:
    """Predictions of the rows that the page is about, and their scores where the truth is known.

    ``position`` are row numbers in the frame; ``known`` [K] and ``drawn`` [D] are indices into ``position``.
    """

    position: Positions
    mean: Array  # [N]
    std: Array  # [N]
    noise: Array  # [N], aleatoric
    ignorance: Array  # [N], epistemic
    drawn: Positions  # [D], rows whose 90 % interval is known
    interval: Array  # [D, 2]
    certain: Positions  # indices of the most and the least certain rows
    uncertain: Positions
    interval_of: dict[int, tuple[float, float]]  # their 90 % intervals
    known: Positions  # [K], rows whose truth is known
    truth: Array  # [N], NaN where unknown
    cdf: Array  # [K]
    scores: RegressionScores | None

    @property
    def ignorance_share(self) -> Array:
        """Share of ignorance in each row's variance, [N]."""
        total = self.noise**2 + self.ignorance**2
        with np.errstate(invalid="ignore", divide="ignore"):
            share = self.ignorance**2 / total
        return np.where(np.isfinite(total) & (total > 0), share, 0.0)


def regression_contents(model: TableModel, frame: pd.DataFrame) -> RegressionContents:
    """Predict and score the rows of a frame with a regressor."""
    position = scored_rows(model, frame)
    rows = frame.iloc[position]
    prediction = model.estimator.pred_dist(model.encoder.transform(rows))
    assert isinstance(prediction, Prediction)
    truth = np.full(len(rows), np.nan)
    if model.target in frame.columns:
        truth = to_numbers(rows[model.target], model.decimal_comma).values.to_numpy()
    known = np.flatnonzero(np.isfinite(truth))
    drawn = choose(len(rows), INTERVAL_ROWS)
    certain, uncertain = extremes(prediction.std)
    extreme = np.concatenate([certain, uncertain])
    ends = predict_interval(model.estimator, take(prediction, extreme), 0.9)
    scores, cdf = None, np.empty(0)
    if len(known):
        of_known = take(prediction, known)
        cdf = of_known.cdf(truth[known])
        scores = _regression_scores(model.estimator, of_known, truth[known], cdf)
    return RegressionContents(
        position=position,
        mean=prediction.mean,
        std=prediction.std,
        noise=prediction.aleatoric_std,
        ignorance=prediction.epistemic_std,
        drawn=drawn,
        interval=predict_interval(model.estimator, take(prediction, drawn), 0.9),
        certain=certain,
        uncertain=uncertain,
        interval_of={int(row): (float(low), float(high)) for row, (low, high) in zip(extreme, ends, strict=True)},
        known=known,
        truth=truth,
        cdf=cdf,
        scores=scores,
    )


def take(prediction: Prediction, rows: Positions) -> Prediction:
    """Some rows of a prediction."""
    scale, df = (part if part.shape[1] == 1 else part[:, rows] for part in (prediction.scale, prediction.df))
    return Prediction(prediction.loc[:, rows], scale, df, squeeze=prediction.squeeze)


def nominal_coverage(estimator: Any, coverage: float) -> float:
    """What the model must be asked for to give ``coverage``: more or less than that once it is conformalised.

    Where too few rows were held out for so high a coverage, the uncorrected one.
    """
    scores = estimator.conformal_scores_
    if scores is None:
        return coverage
    try:
        return float(conformal_level(scores, coverage)[0])
    except ValueError:
        return coverage


def predict_interval(estimator: Any, prediction: Prediction, coverage: float) -> Array:
    """The interval a user gets from ``estimator.predict_interval``, [N, 2]."""
    return prediction.interval_at(np.asarray(nominal_coverage(estimator, coverage)))


def _regression_scores(estimator: Any, prediction: Prediction, y: Array, cdf: Array) -> RegressionScores:
    some = choose(len(y), INTERVAL_ROWS)
    of_some = take(prediction, some)
    # y is inside the central interval of coverage c exactly where |2 F(y) − 1| <= c
    centrality = np.abs(2 * cdf - 1)
    coverages = tuple(
        Coverage(
            stated=coverage,
            observed=float(np.mean(centrality <= nominal_coverage(estimator, coverage))),
            n_rows=len(y),
            width=metrics.interval_width(predict_interval(estimator, of_some, coverage)),
        )
        for coverage in COVERAGES
    )
    spread = float(y.std())
    varies = spread > 1e-12 * float(np.abs(y).max())
    guesses = np.repeat(np.quantile(y, (np.arange(200) + 0.5) / 200)[:, None], len(some), axis=1)
    return RegressionScores(
        n_rows=len(y),
        rmse=metrics.rmse(y, prediction.mean),
        rmse_guess=spread,
        r2=1 - metrics.rmse(y, prediction.mean) ** 2 / spread**2 if varies else None,
        log_likelihood=metrics.log_likelihood(prediction.log_prob(y)),
        log_likelihood_guess=float(-0.5 * np.log(2 * np.pi * np.e * spread**2)) if varies else None,
        crps=metrics.crps_from_samples(prediction.sample(200, SEED), y),
        crps_guess=metrics.crps_from_samples(guesses, y[some]),
        coverages=coverages,
        width_guess=float(np.subtract(*np.quantile(y, (0.95, 0.05)))),
    )


# -- classification ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bin:
    """Rows whose highest probability lies in one range."""

    confidence: float
    accuracy: float
    low: float  # what chance leaves possible for the true share
    high: float
    n_rows: int


@dataclass(frozen=True)
class ClassificationScores:
    """Headline numbers, each beside that of a guess that knows only how frequent the classes are."""

    n_rows: int
    accuracy: float
    accuracy_guess: float
    log_likelihood: float
    log_likelihood_guess: float
    brier: float
    brier_guess: float
    calibration_error: float
    calibration_error_by_chance: float


@dataclass(frozen=True)
class ClassificationContents:
    """Class probabilities of the rows that the page is about, and their scores where the truth is known."""

    classes: tuple[str, ...]
    position: Positions
    probabilities: Array  # [N, K]
    entropy: Array  # [N], all uncertainty
    mutual_information: Array  # [N], its part that is ignorance
    certain: Positions  # indices of the most and the least certain rows
    uncertain: Positions
    known: Positions  # [M], rows whose class is known
    label: Positions  # [N], -1 where unknown
    n_unknown_classes: int  # rows with a class the model has never seen
    scores: ClassificationScores | None
    confusion: NDArray[np.int64]  # [K, K], rows are the truth
    reliability: tuple[Bin, ...]

    @property
    def predicted(self) -> Positions:
        """The most probable class, [N]."""
        return self.probabilities.argmax(1)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Of known rows, [M]."""
        return self.predicted[self.known] == self.label[self.known]

    @property
    def ignorance_share(self) -> Array:
        """Share of ignorance in each row's entropy, [N]."""
        return np.divide(self.mutual_information, self.entropy, out=np.zeros_like(self.entropy), where=self.entropy > 0)

    def rejection(self, uncertainty: Array) -> tuple[Array, Array]:
        """Share of rows set aside, and accuracy on the rest."""
        return metrics.rejection_curve(uncertainty[self.known], self.correct)


def classification_contents(model: TableModel, frame: pd.DataFrame) -> ClassificationContents:
    """Predict and score the rows of a frame with a classifier."""
    position = scored_rows(model, frame)
    rows = frame.iloc[position]
    prediction = model.estimator.pred_dist(model.encoder.transform(rows))
    assert isinstance(prediction, ClassPrediction)
    probabilities = prediction.probabilities
    n_classes = probabilities.shape[1]
    label, n_unknown = np.full(len(rows), -1), 0
    if model.target in frame.columns:
        place = {str(name): k for k, name in enumerate(prediction.classes)}
        given = to_texts(rows[model.target])
        label = np.array([place.get(text, -1) for text in given])
        n_unknown = int(((label < 0) & given.notna().to_numpy()).sum())
    known = np.flatnonzero(label >= 0)
    scores: ClassificationScores | None = None
    reliability: tuple[Bin, ...] = ()
    certain, uncertain = extremes(prediction.predictive_entropy)
    confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
    if len(known):
        scores = _classification_scores(probabilities[known], label[known])
        reliability = _reliability(probabilities[known], label[known])
        np.add.at(confusion, (label[known], probabilities[known].argmax(1)), 1)
    return ClassificationContents(
        classes=tuple(str(name) for name in prediction.classes),
        position=position,
        probabilities=probabilities,
        entropy=prediction.predictive_entropy,
        mutual_information=prediction.mutual_information,
        certain=certain,
        uncertain=uncertain,
        known=known,
        label=label,
        n_unknown_classes=n_unknown,
        scores=scores,
        confusion=confusion,
        reliability=reliability,
    )


def _classification_scores(probs: Array, labels: Positions) -> ClassificationScores:
    share = np.bincount(labels, minlength=probs.shape[1]) / len(labels)
    of_truth = np.maximum(probs[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
    return ClassificationScores(
        n_rows=len(labels),
        accuracy=1 - metrics.error_rate(probs, labels),
        accuracy_guess=float(share.max()),
        log_likelihood=metrics.log_likelihood(np.log(of_truth)),
        log_likelihood_guess=float(-special.entr(share).sum()),
        brier=metrics.brier_score(probs, labels),
        brier_guess=float(1 - np.sum(share**2)),
        calibration_error=metrics.expected_calibration_error(probs, labels),
        calibration_error_by_chance=_calibration_error_by_chance(probs.max(1)),
    )


def _calibration_error_by_chance(confidence: Array, n_bins: int = 15) -> float:
    """The calibration error to expect of perfect probabilities: Σ_b (n_b/N) E|accuracy_b − confidence_b|."""
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    variance = np.bincount(bins, weights=confidence * (1 - confidence), minlength=n_bins)  # of a bin's count of hits
    return float(np.sqrt(2 / np.pi * variance).sum() / len(confidence))  # E|z| of a normal is √(2/π)


def _reliability(probs: Array, labels: Positions, n_bins: int = 10) -> tuple[Bin, ...]:
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    found = []
    for b in np.unique(bins):
        inside = bins == b
        n, hits = int(inside.sum()), int(correct[inside].sum())
        # shares of hits that would not have been surprising, at 95 % (Clopper & Pearson 1934)
        low = float(special.betaincinv(hits, n - hits + 1, 0.025)) if hits else 0.0
        high = float(special.betaincinv(hits + 1, n - hits, 0.975)) if hits < n else 1.0
        found.append(Bin(float(confidence[inside].mean()), hits / n, low, high, n))
    return tuple(found)


# -- columns: what they do to the prediction ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Influence:
    """How far predictions move when one column is shuffled among rows: mean over draws and a band of draws.

    In the target's units (root mean square), or for classes the mean share of probability that moves elsewhere.
    ``relevance`` is the estimator's own, over all numbers made of the column; the largest is 1.
    """

    column: str
    mean: float
    low: float
    high: float
    relevance: float


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

    @property
    def size(self) -> float:
        """Largest change of the mean."""
        return float(np.ptp(self.mean, axis=0).max())


def function_draws(model: TableModel, rows: pd.DataFrame) -> Array:
    """Draws of the function [S, N, 1] or of class probabilities [S, N, K]; the weights of a draw serve all rows."""
    prediction = model.estimator.pred_dist(model.encoder.transform(rows))
    return prediction.samples if isinstance(prediction, ClassPrediction) else prediction.loc


def column_influences(model: TableModel, frame: pd.DataFrame, most: int) -> list[Influence]:
    """The influence of the ``most`` relevant columns, the strongest first."""
    relevance, joint, start = model.estimator.feature_relevance_, {}, 0
    for name, features in model.encoder.features_of.items():
        joint[name] = float(np.linalg.norm(relevance[start : start + len(features)]))
        start += len(features)
    largest = max(joint.values()) or 1.0

    rows = read_columns(model, frame.iloc[choose(len(frame), INFLUENCE_ROWS)])
    order = np.random.default_rng(SEED).permutation(len(rows))
    base = function_draws(model, rows)
    found = []
    for name in sorted(joint, key=lambda name: -joint[name])[:most]:
        shuffled = rows.assign(**{name: rows[name].array[order]})
        change = function_draws(model, shuffled) - base  # [S, N, K]
        if model.task == "classification":
            moved = np.abs(change).sum(-1).mean(-1) / 2
        else:
            moved = np.sqrt(np.mean(change[..., 0] ** 2, axis=-1))
        low, high = np.quantile(moved, BAND)
        found.append(Influence(name, float(moved.mean()), float(low), float(high), joint[name] / largest))
    return sorted(found, key=lambda influence: -influence.mean)


def column_effects(model: TableModel, frame: pd.DataFrame, names: Sequence[str]) -> list[Effect]:
    """The effect of each of these columns that takes more than one value."""
    table = read_columns(model, frame.iloc[choose(len(frame), SCORED_ROWS)])
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
            step = grid.iloc[1] - grid.iloc[0]
            varied[name] += step * np.tile((np.arange(len(rows)) + 0.5) / len(rows) - 0.5, len(grid))
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
    return pd.Series([first + (last - first) * share for share in np.linspace(0, 1, EFFECT_GRID)]), deciles


# -- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingCurve:
    """The bound and its two terms over optimiser steps, per row: bound = fit − complexity."""

    step: Positions
    bound: Array
    fit: Array
    complexity: Array
    stopped: str

    @property
    def late_gain(self) -> float:
        """What the last fifth of training added to the bound."""
        start = np.searchsorted(self.step, 0.8 * self.step[-1])
        return float(self.bound[-1] - self.bound[min(start, len(self.bound) - 1)])


def training_curve(estimator: Any) -> TrainingCurve | None:
    """What training reported; None where the model has no record of it."""
    history = getattr(estimator, "history_", None)
    if history is None or not history.records:
        return None
    rows = np.array([(r.step, r.elbo, r.expected_log_likelihood, r.kl) for r in history.records])
    gaps = np.diff(rows[:, 0])
    if len(gaps) > 1 and gaps[-1] < gaps[0] / 2:  # the last report rests on the few steps left over: mostly noise
        rows = rows[:-1]
    step, bound, fit, kl = rows.T
    return TrainingCurve(step.astype(np.int64), bound, fit, kl, history.stopped)
