"""Contents of a regression report as numbers, apart from its words, and its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator
from scipy import stats

from vmg import metrics
from vmg.estimators import TableModel
from vmg.prediction import ClassPrediction, NumberPrediction
from vmg.prediction.conformal import CoverageError, conformal_level
from vmg.report.facts import INTERVAL_ROWS, Array, Positions, choose, extremes, scored_rows
from vmg.report.panel import Colour, legend, panel, percent_axis, segments, shares_of_ignorance, short

__all__ = [
    "Coverage",
    "RegressionContents",
    "RegressionScores",
    "nominal_coverage",
    "predict_interval",
    "regression_contents",
    "regression_figures",
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


# -- pictures ----------------------------------------------------------------------------------------------------------

SCATTER_POINTS = 600
INTERVAL_BARS = 60


def regression_figures(contents: RegressionContents, target: str) -> dict[str, Markup]:
    """All panels of a regression; those that need the truth only where it is known."""
    name = short(target)
    figures = {
        "intervals": _interval_bars(contents, name),
        "spread": _histogram(contents.std, f"predicted standard deviation of {name}"),
        "shares": shares_of_ignorance(contents.std, contents.ignorance_share, "variance"),
    }
    if contents.scores is None:
        figures["target"] = _histogram(contents.mean, f"predicted {name}")
        return figures
    known = contents.known
    mean, std, truth = contents.mean[known], contents.std[known], contents.truth[known]
    return figures | {
        "target": _histogram(truth, name),
        "fit": _fit(contents, name),
        "calibration": _calibration(contents.cdf),
        "residuals": _residuals(mean, truth - mean, name),
        "standardised": _standardised((truth - mean) / std),
    }


def _fit(contents: RegressionContents, name: str) -> Markup:
    rows = contents.drawn
    seen = np.isfinite(contents.truth[rows])
    mean, truth, (low, high) = contents.mean[rows][seen], contents.truth[rows][seen], contents.interval[seen].T
    inside = (low <= truth) & (truth <= high)
    ends = np.array([min(mean.min(), truth.min()), max(mean.max(), truth.max())]) if len(mean) else np.array([0, 1])
    with panel(f"{name}: truth against prediction with 90 % intervals") as drawn:
        ax = drawn.axes
        ax.plot(ends, ends, color=Colour.MUTED, linewidth=0.9, zorder=1)
        ax.plot(*segments(truth, low, high), color=Colour.BLUE, alpha=0.22, linewidth=1.1, zorder=2)
        for which, colour, label in ((inside, Colour.BLUE, "truth inside"), (~inside, Colour.RED, "truth outside")):
            marker = "o" if colour == Colour.BLUE else "D"
            ax.scatter(
                truth[which], mean[which], s=11, color=colour, marker=marker, linewidths=0, zorder=3, label=label
            )
        ax.set_xlabel(f"true {name}")
        ax.set_ylabel(f"predicted {name}")
        legend(ax)
    return drawn.svg


def _interval_bars(contents: RegressionContents, name: str) -> Markup:
    some = choose(len(contents.drawn), INTERVAL_BARS)
    rows = contents.drawn[some]
    order = np.argsort(contents.mean[rows], kind="stable")
    rows, (low, high) = rows[order], contents.interval[some][order].T
    truth, place = contents.truth[rows], np.arange(len(rows), dtype=np.float64)
    outside = (truth < low) | (truth > high)
    with panel(f"90 % intervals of {name} for some rows") as drawn:
        ax = drawn.axes
        ax.plot(*segments(place, low, high), color=Colour.BLUE, alpha=0.35, linewidth=3.2)
        ax.plot(
            place,
            contents.mean[rows],
            linestyle="none",
            marker="_",
            markersize=4.5,
            color=Colour.BLUE,
            label="prediction",
        )
        if np.isfinite(truth).any():
            inside = np.isfinite(truth) & ~outside
            ax.scatter(place[inside], truth[inside], s=9, color=Colour.INK, linewidths=0, zorder=3, label="truth")
            ax.scatter(place[outside], truth[outside], s=13, color=Colour.RED, marker="D", linewidths=0, zorder=3)
        ax.set_xlabel(f"{len(rows)} rows, ordered by prediction" if len(rows) > 1 else "one row")
        ax.set_ylabel(name)
        ax.set_xticks([])
        ax.grid(axis="x", visible=False)
        legend(ax)
    return drawn.svg


def _calibration(cdf: Array) -> Markup:
    levels, n = np.linspace(0, 1, 101), len(cdf)
    observed = metrics.calibration_curve(cdf, levels)
    inner = levels[1:-1]
    # what perfect predictions would show in 95 of 100 tables of this size, at each level
    low, high = (stats.binom.ppf(q, n, inner) / n for q in (0.025, 0.975))
    with panel("Calibration curve") as drawn:
        ax = drawn.axes
        ax.fill_between(inner, low, high, color=Colour.MUTED, alpha=0.18, linewidth=0, label="chance")
        ax.plot([0, 1], [0, 1], color=Colour.MUTED, linewidth=0.9)
        ax.plot(levels, observed, color=Colour.BLUE, label="observed")
        ax.set_xlabel("predicted probability of a value this low")
        ax.set_ylabel("share of rows that low")
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        percent_axis(ax, "x")
        percent_axis(ax, "y")
        legend(ax)
    return drawn.svg


def _residuals(mean: Array, residual: Array, name: str) -> Markup:
    some = choose(len(mean), SCATTER_POINTS)
    with panel(f"Residuals of {name} against predictions") as drawn:
        ax = drawn.axes
        ax.axhline(0, color=Colour.MUTED, linewidth=0.9)
        ax.scatter(mean[some], residual[some], s=11, color=Colour.BLUE, alpha=0.55, linewidths=0)
        if len(mean) >= 40:
            groups = np.array_split(np.argsort(mean, kind="stable"), min(12, len(mean) // 10))
            centre = [[mean[g].mean(), residual[g].mean()] for g in groups]
            ax.plot(*np.array(centre).T, color=Colour.RED, label="running mean")
            legend(ax)
        ax.set_xlabel(f"predicted {name}")
        ax.set_ylabel("truth − prediction")
    return drawn.svg


def _standardised(z: Array) -> Markup:
    z = z[np.isfinite(z)]
    edges = np.linspace(-4, 4, 33 if len(z) > 100 else 17).tolist()
    grid = np.linspace(-4, 4, 161)
    with panel("Histogram of standardised residuals against a normal") as drawn:
        ax = drawn.axes
        if len(z):
            ax.hist(
                np.clip(z, -4, 4),
                bins=edges,
                density=True,
                color=Colour.BLUE,
                alpha=0.75,
                edgecolor=Colour.PAPER,
                linewidth=0.6,
            )
        ax.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=Colour.RED, label="standard normal")
        ax.set_xlabel("(truth − prediction) / predicted standard deviation")
        ax.set_ylabel("density")
        ax.set_xticks(range(-4, 5), ["≤ −4", *(str(v).replace("-", "−") for v in range(-3, 4)), "≥ 4"])
        ax.grid(axis="x", visible=False)
        legend(ax)
    return drawn.svg


def _bins(values: Array, most: int = 30) -> list[float]:
    """Edges of histogram bins, also where all values are the same."""
    low, high = float(values.min()), float(values.max())
    if not high - low > 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = 0.05 * abs(low) or 0.5
        return [float(edge) for edge in np.linspace(low - margin, low + margin, 12)]
    return [float(edge) for edge in np.linspace(low, high, int(np.clip(2 * len(values) ** 0.5, 6, most)) + 1)]


def _histogram(values: Array, label: str) -> Markup:
    shown = values[np.isfinite(values)]
    with panel(f"Histogram of {label}", height=2.9) as drawn:
        ax = drawn.axes
        if len(shown):
            ax.hist(shown, bins=_bins(shown), color=Colour.BLUE, alpha=0.75, edgecolor=Colour.PAPER, linewidth=0.6)
        ax.set_xlabel(label)
        ax.set_ylabel("rows")
        ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.grid(axis="x", visible=False)
    return drawn.svg
