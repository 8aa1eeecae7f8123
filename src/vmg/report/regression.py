"""Contents of a regression report as numbers, apart from pictures and words, so that each can be tested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from vmg import metrics
from vmg.estimators import TableModel
from vmg.prediction import ClassPrediction, NumberPrediction
from vmg.prediction.conformal import CoverageError, conformal_level
from vmg.report.table_facts import INTERVAL_ROWS, Array, Positions, choose, extremes, scored_rows

__all__ = [
    "Coverage",
    "RegressionContents",
    "RegressionScores",
    "nominal_coverage",
    "predict_interval",
    "regression_contents",
]


COVERAGES = (0.5, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Coverage:
    """How often an interval held the truth."""

    stated: float
    observed: float
    n_rows: int
    width: float

    @property
    def tolerance(self) -> float:
        """Tolerated difference: two standard errors of chance, and two percentage points."""
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
        """Coverage of the 90 % interval."""
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
    prediction = model.pred_dist(rows)
    assert not isinstance(prediction, ClassPrediction)
    truth = np.full(len(rows), np.nan)
    if model.target in frame.columns:
        truth = model.read_target(rows[model.target])
    known = np.flatnonzero(np.isfinite(truth))
    drawn = choose(len(rows), INTERVAL_ROWS)
    certain, uncertain = extremes(prediction.std)
    extreme = np.concatenate([certain, uncertain])
    ends = predict_interval(model.estimator, prediction.take(extreme), 0.9)
    scores, cdf = None, np.empty(0)
    if len(known):
        of_known = prediction.take(known)
        cdf = of_known.cdf(truth[known])
        scores = _regression_scores(model.estimator, of_known, truth[known], cdf)
    return RegressionContents(
        position=position,
        mean=prediction.mean,
        std=prediction.std,
        noise=prediction.aleatoric_std,
        ignorance=prediction.epistemic_std,
        drawn=drawn,
        interval=predict_interval(model.estimator, prediction.take(drawn), 0.9),
        certain=certain,
        uncertain=uncertain,
        interval_of={int(row): (float(low), float(high)) for row, (low, high) in zip(extreme, ends, strict=True)},
        known=known,
        truth=truth,
        cdf=cdf,
        scores=scores,
    )


def nominal_coverage(estimator: Any, coverage: float) -> float:
    """The coverage to ask the model for to get ``coverage``: more or less than that once it is conformalised.

    Where too few rows were held out for so high a coverage, the uncorrected one.
    """
    scores = estimator.conformal_scores_
    if scores is None:
        return coverage
    try:
        return float(conformal_level(scores, coverage)[0])
    except CoverageError:
        return coverage


def predict_interval(estimator: Any, prediction: NumberPrediction, coverage: float) -> Array:
    """The interval a user gets from ``estimator.predict_interval``, [N, 2]."""
    return prediction.interval_at(np.asarray(nominal_coverage(estimator, coverage)))


def _regression_scores(estimator: Any, prediction: NumberPrediction, y: Array, cdf: Array) -> RegressionScores:
    some = choose(len(y), INTERVAL_ROWS)
    of_some = prediction.take(some)
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
        crps=float(prediction.crps(y).mean()),
        crps_guess=metrics.crps_from_samples(guesses, y[some]),
        coverages=coverages,
        width_guess=float(np.subtract(*np.quantile(y, (0.95, 0.05)))),
    )
